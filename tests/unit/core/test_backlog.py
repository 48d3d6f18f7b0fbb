"""Announced objects are there at once, and made when they are asked for or bit by bit."""

from __future__ import annotations

import random

import pytest

from moonpool.core import codes
from moonpool.core.catching import LATE_S, QUIET_S, catch_up
from moonpool.core.master import MasterState
from moonpool.core.messages import (
    Announced,
    Codes,
    Damaged,
    Existing,
    Exists,
    Found,
    Get,
    GetStatus,
    Got,
    List,
    Listed,
    Match,
    Matched,
    PutItem,
    PutStart,
    PutStarted,
    Remove,
    RemoveAll,
    Tick,
    Unmount,
)
from tests.unit.core.test_adopting import HEAD, NAMESPACE, master, packed

PAGE = 4096


def objects(count: int, seed: int = 1) -> list[Found]:
    """Return chains of eight objects, of a page each."""
    chance = random.Random(seed)
    keys = [HEAD + chance.randbytes(16) for _ in range(count)]
    return [
        Found(keys[i], keys[i - 1] if i % 8 else b"", 100, PAGE, i, i + 1, i, i * PAGE)
        for i in range(count)
    ]


@pytest.fixture
def found() -> list[Found]:
    return objects(3000)


@pytest.fixture
def state(found: list[Found]) -> MasterState:
    made, (handle,) = master()
    assert made.handle(packed(handle, found), "node", 1.0).reply == Announced([])
    return made


def test_all_of_it_is_known_before_anything_is_made(state: MasterState, found: list[Found]) -> None:
    inner = state.state
    digests = b"".join(each.key[len(HEAD) :] for each in found)
    matched = state.handle(Match(NAMESPACE, digests, 16, 1), "client", 1.0).reply
    assert isinstance(matched, Matched)
    assert matched.count == len(found)
    status = state.handle(GetStatus(), "client", 1.0).reply
    assert status.objects == status.segments[0].objects == len(found)  # type: ignore[union-attr]
    assert len(inner.index.by_key) == 0
    assert inner.backlog.count == len(found)


def test_what_is_asked_for_is_made_and_the_rest_is_not(
    state: MasterState, found: list[Found]
) -> None:
    inner = state.state
    wanted = [each.key for each in found[16:24]]
    got = state.handle(Get([*wanted, HEAD + bytes(16)], 1, 5.0), "client", 1.0).reply
    assert isinstance(got, Got)
    assert [each.generation for each in got.objects[:8]] == [e.generation for e in found[16:24]]
    assert got.objects[8].code == codes.NOT_FOUND
    assert set(inner.index.by_key) == set(wanted)
    existing = state.handle(Exists([found[5].key, HEAD + b"x" * 16]), "client", 1.0).reply
    assert existing == Existing(b"\1\0")
    assert inner.backlog.count == len(found) - 9
    assert inner.index.count == len(found)
    child, parent = inner.index.find(found[17].key), inner.index.find(found[16].key)
    assert child is not None
    assert child.parent is parent
    state.validate_state()
    assert not inner.backlog
    assert inner.index.count == len(found)


def test_a_key_that_is_there_is_not_put_again(state: MasterState, found: list[Found]) -> None:
    granted = state.handle(PutStart([PutItem(found[9].key, 100)]), "client", 1.0).reply
    assert isinstance(granted, PutStarted)
    assert granted.grants[0].code == codes.EXISTS


def test_removed_ones_are_gone(state: MasterState, found: list[Found]) -> None:
    assert state.handle(Remove([found[9].key]), "client", 1.0).reply == Codes([codes.OK])
    assert state.handle(Exists([found[9].key]), "client", 1.0).reply == Existing(b"\0")
    state.validate_state()
    gone = state.handle(RemoveAll(HEAD), "client", 1.0).reply
    assert isinstance(gone, Matched)
    assert gone.count == len(found) - 1
    state.validate_state()


def test_a_list_has_all(state: MasterState, found: list[Found]) -> None:
    seen: set[bytes] = set()
    after = 0
    while True:
        page = state.handle(List(None, b"", after, 1000), "client", 1.0).reply
        assert isinstance(page, Listed)
        seen |= {each.key for each in page.objects}
        after = page.next
        if not after:
            break
    assert seen == {each.key for each in found}


@pytest.mark.parametrize("how", ["unmounted", "damaged"])
def test_a_segment_is_lost_before_its_objects_are_made(
    state: MasterState, found: list[Found], how: str
) -> None:
    handle = next(iter(state.state.segments.by_handle))
    if how == "unmounted":
        state.handle(Unmount(handle), "node", 1.0)
        assert state.state.index.count == 0
    else:
        some = found[::10]
        told = Damaged(handle, [e.offset for e in some], [e.generation for e in some])
        state.handle(told, "node", 1.0)
        assert state.state.index.count == len(found) - len(some)
    state.validate_state()


def test_the_rest_is_made_when_nothing_is_announced_any_more(found: list[Found]) -> None:
    state, (handle,) = master()
    for at in range(0, 3000, 300):
        state.handle(packed(handle, found[at : at + 300], last=False), "node", 1.0)
    inner = state.state
    inner.advance(1.0 + QUIET_S / 2)
    assert catch_up(inner, 700)
    assert inner.backlog.count == 3000
    inner.advance(1.0 + QUIET_S)
    assert catch_up(inner, 700)
    assert inner.backlog.count == 2300
    state.handle(Tick(), "", 2.0)
    assert inner.index.waiting == 0
    assert inner.index.late is None
    assert not state.catch_up(2.0)
    state.validate_state()


def test_who_announces_without_end_does_not_keep_the_rest_from_being_made() -> None:
    state, (handle,) = master()
    now, found = 1.0, objects(4000)
    for at in range(0, 4000, 20):
        state.handle(packed(handle, found[at : at + 20], last=False), "node", now)
        state.handle(Tick(), "", now)
        now += QUIET_S / 2
    assert now > LATE_S
    assert state.state.backlog.count < 4000
    state.validate_state()
