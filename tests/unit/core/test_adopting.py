"""Thousands of objects at once are taken in as they would be one by one."""

from __future__ import annotations

import random

import numpy as np
import pytest

from moonpool.core.adopting import packed_rows
from moonpool.core.marks import Marks
from moonpool.core.master import MasterConfig, MasterState
from moonpool.core.messages import (
    PACKED_COLUMNS,
    Announce,
    Announced,
    AnnouncePacked,
    Await,
    Failed,
    Found,
    Mount,
    Mounted,
    SegmentInfo,
)

MIB = 1 << 20
NAMESPACE = b"fingerprint"
HEAD = bytes([len(NAMESPACE)]) + NAMESPACE


def master(segments: int = 1) -> tuple[MasterState, list[int]]:
    state = MasterState(MasterConfig(), 5)
    handles = []
    for number in range(segments):
        info = SegmentInfo(f"s{number}", "node", "host", "a:1", "/p", 64 * MIB, 4096)
        mounted = state.handle(Mount(info), "node", 0.0).reply
        assert isinstance(mounted, Mounted)
        handles.append(mounted.handle)
    return state, handles


def packed(handle: int, objects: list[Found], last: bool = True) -> AnnouncePacked:
    columns = [np.array([getattr(o, c) for o in objects], np.uint64) for c in PACKED_COLUMNS]
    return AnnouncePacked(
        handle,
        NAMESPACE,
        b"".join(o.key[len(HEAD) :] for o in objects),
        b"".join(o.parent[len(HEAD) :] or bytes(16) for o in objects),
        packed_rows(columns),
        last,
    )


def some_objects(chance: random.Random, count: int) -> list[Found]:
    """Return objects as a segment may hold them, and a few that contradict each other."""
    found: list[Found] = []
    keys = [HEAD + chance.randbytes(16) for _ in range(count)]
    for i in range(count):
        parent = b"" if chance.random() < 0.2 else chance.choice(keys)
        size = chance.choice([100, 4096, 5000, 70_000, 3 * MIB])
        capacity = -(-size // 4096) * 4096
        if size > 65_536:
            capacity = 73_728 if size == 70_000 else size
        slab = chance.randrange(256)
        offset = slab * 262_144 + chance.randrange(max(1, 262_144 // capacity)) * capacity
        if chance.random() < 0.02:
            offset += chance.choice([1, 4096, 64 * MIB])
        key = keys[i] if chance.random() > 0.02 else chance.choice(keys)
        found.append(
            Found(key, parent, size, capacity, i, chance.randrange(1, 500), i % 4000, offset)
        )
    return found


def contents(state: MasterState) -> object:
    inner = state.state
    objects = {
        each.key: (each.where, each.parent_key, each.parent.key if each.parent else None)
        for each in inner.index
    }
    space = [
        (each.space.used_bytes, each.space.filled_bytes, each.table.used, each.ready)
        for each in inner.segments.by_handle.values()
    ]
    return objects, space, inner.generation, inner.counters["announced"]


@pytest.mark.parametrize("seed", range(40))
def test_packed_or_not_makes_no_difference(seed: int) -> None:
    chance = random.Random(seed)
    (one, handles), (other, _) = master(2), master(2)
    for handle in handles:
        for turn in range(3):
            # Where two contradict each other, the older one wins in either way if none are equal.
            objects = some_objects(chance, chance.choice([0, 1, 50, 300]))
            objects = list({found.generation: found for found in objects}.values())
            slow = one.handle(Announce(handle, objects, turn == 2), "node", 1.0).reply
            fast = other.handle(packed(handle, objects, turn == 2), "node", 1.0).reply
            assert isinstance(slow, Announced)
            assert isinstance(fast, Announced)
            assert sorted(slow.rejected) == sorted(fast.rejected)
            one.validate_state()
            other.validate_state()
            assert contents(one) == contents(other)


def test_who_waits_is_told() -> None:
    state, (handle,) = master()
    found = Found(HEAD + bytes(range(16)), b"", 10, 4096, 1, 7, 0, 0)
    assert state.handle(Await([found.key], "", 5.0), "client", 0.0).parked
    outcome = state.handle(packed(handle, [found]), "node", 0.0)
    assert [answer.count for _, answer in outcome.answers] == [1]


def test_malformed_ones_change_nothing() -> None:
    state, (handle,) = master()
    good = packed(handle, [Found(HEAD + bytes(range(16)), b"", 10, 4096, 1, 7, 0, 0)])
    for wrong in (
        AnnouncePacked(handle, NAMESPACE, good.digests[:-1], good.parents, good.numbers, True),
        AnnouncePacked(handle, NAMESPACE, good.digests, good.parents[:-1], good.numbers, True),
        AnnouncePacked(handle, NAMESPACE, good.digests, good.parents, good.numbers[:-1], True),
        AnnouncePacked(handle, bytes(1000), good.digests, good.parents, good.numbers, True),
        AnnouncePacked(99, NAMESPACE, good.digests, good.parents, good.numbers, True),
    ):
        assert isinstance(state.handle(wrong, "node", 0.0).reply, Failed)
    assert isinstance(state.handle(good, "other", 0.0).reply, Failed)
    assert state.state.index.count == 0
    numbers = packed_rows([np.full(3, 2**64 - 1, np.uint64)] * 6)
    most = AnnouncePacked(handle, NAMESPACE, bytes(48), bytes(48), numbers, True)
    assert state.handle(most, "node", 0.0).reply == Announced([2**64 - 1] * 3)
    state.validate_state()


@pytest.mark.parametrize("count", [1, 2, 700, 40_000])
def test_marks_of_many(count: int) -> None:
    chance = random.Random(count)
    keys = [HEAD + chance.randbytes(16) for _ in range(count)]
    marks = Marks(b"seed")
    marks.add_many(keys[: count // 2])
    marks.add_many([*keys, *keys[:3]])
    marks.validate(keys)
    for key in keys[::2]:
        marks.remove(key)
    marks.validate(keys[1::2])
