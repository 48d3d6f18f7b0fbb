"""Which blocks each kind of layer needs, which of them an object holds, and what a hit needs."""

from __future__ import annotations

from types import SimpleNamespace as Bag

import numpy as np
import pytest

from moonpool.vllm.parts import (
    Keyspace,
    Part,
    begins_anew,
    namespace_of,
    parts_of,
    windowed,
    with_states,
)
from moonpool.vllm.reach import Asker, reach
from tests.unit.vllm.test_namespace import spec

BLOCK, STRIDE, SPACE = 4, 4, b"n" * 16
WINDOW = windowed(9, BLOCK, number=1, groups=(1, 2), layers=(("a",), ("b",)))
BOTH = (Part(), WINDOW)


class SlidingWindowSpec(Bag):
    pass


def group(one: object, *layers: str) -> Bag:
    return Bag(kv_cache_spec=one, layer_names=list(layers))


def test_groups_that_look_equally_far_back_are_one_part() -> None:
    near, far = SlidingWindowSpec(sliding_window=9), SlidingWindowSpec(sliding_window=40)
    groups = [group(near, "a"), group(spec(), "b"), group(near, "c"), group(far, "d")]
    found = parts_of(Bag(kv_cache_groups=groups), BLOCK)
    assert [(part.number, part.groups, part.span) for part in found] == [
        (0, (1,), 0),
        (1, (3,), 10),
        (2, (0, 2), 2),
    ]
    assert found[2].layers == (("a",), ("c",))
    assert [begins_anew(found), begins_anew(found[:1])] == [True, False]


def test_full_attention_that_a_window_masks_keeps_all_blocks() -> None:
    (part,) = parts_of(Bag(kv_cache_groups=[group(spec(sliding_window=8), "a")]), BLOCK)
    assert (part.window, part.span) == (0, 0)


@pytest.mark.parametrize(
    ("window", "block", "span"), [(1, 4, 1), (2, 4, 1), (5, 4, 1), (6, 4, 2), (9, 4, 2), (10, 4, 3)]
)
def test_a_window_needs_the_tokens_before_the_next_one(window: int, block: int, span: int) -> None:
    assert windowed(window, block).span == span
    # The token after a prefix of 8 blocks sees itself and window - 1 before it.
    first_seen = 8 * block - (window - 1)
    assert windowed(window, block).first_needed(8) == min(first_seen // block, 7)


def test_an_object_of_a_window_holds_what_the_next_token_sees() -> None:
    ends = np.array([4, 8, 9, 11], np.int32)
    assert BOTH[0].starts(ends, STRIDE).tolist() == [0, 4, 8, 8]
    assert WINDOW.starts(ends, STRIDE).tolist() == [2, 6, 8, 9]


def test_a_row_is_a_block_of_each_group() -> None:
    tables = [[1, 2, 3], [0, 5, 6], [0, 8, 9]]
    assert BOTH[0].rows(tables, 0, 3) == [1, 2, 3]
    assert WINDOW.rows(tables, 1, 3) == [5, 8, 6, 9]
    assert WINDOW.has(tables, 1, 3)
    assert not WINDOW.has(tables, 0, 3)
    assert not WINDOW.has(tables, 1, 4)
    assert WINDOW.first_kept(tables, 0, 3) == 1
    assert WINDOW.first_kept([[], [0, 0], []], 0, 2) == 0


def test_parts_and_shards_have_namespaces_of_their_own() -> None:
    assert Keyspace().of(SPACE, 0) == [SPACE]
    all_of = Keyspace(BOTH, ("0/2", "1/2")).all_of(SPACE)
    assert len(set(all_of)) == 4
    assert SPACE not in all_of
    assert namespace_of(SPACE, 1) not in all_of


class Pool:
    """What is there, by namespace: ends of objects."""

    def __init__(self, **ends: list[int]) -> None:
        self.ends = {namespace_of(SPACE, int(name[-1])): there for name, there in ends.items()}
        self.asked = 0
        self.asker = Asker(self.match, self.exist)

    def exist(self, space: bytes, digests: bytes) -> list[bool]:
        names = [int.from_bytes(digests[at : at + 16], "big") for at in range(0, len(digests), 16)]
        return [name in self.ends.get(space, []) for name in names]

    def match(self, space: bytes, digests: bytes) -> int:
        """As the master does: whole objects from the first on, then the longest tail."""
        self.asked += 1
        names = [int.from_bytes(digests[at : at + 16], "big") for at in range(0, len(digests), 16)]
        there, count = self.ends.get(space, []), 0
        while count + STRIDE <= len(names) and names[count + STRIDE - 1] in there:
            count += STRIDE
        tails = list(range(count + 1, min(count + STRIDE, len(names) + 1)))
        return max([n for n in tails if names[n - 1] in there], default=count)


DIGESTS = b"".join(end.to_bytes(16, "big") for end in range(1, 20))


@pytest.mark.parametrize(
    ("full", "window", "found"),
    [
        ([4, 8, 12, 16, 18], [4, 8, 12, 16, 18], 18),
        ([4, 8, 12, 16, 18], [18], 18),
        ([4, 8, 12, 16], [16], 16),
        ([4, 8, 12, 16, 18], [16], 16),
        ([4, 8, 12, 16, 18], [12], 12),
        ([4, 8, 12, 16, 18], [4, 12], 12),
        ([4, 8, 12, 16, 18], [4, 8], 8),
        ([4, 8], [4, 8, 12, 16, 18], 8),
        ([4, 8, 12, 16, 18], [], 0),
        ([], [4, 8], 0),
        ([4, 8, 12, 16, 17], [16, 17], 17),
        ([4, 8, 12, 16, 17], [16, 18], 16),
    ],
)
def test_a_hit_ends_where_all_parts_have_what_it_needs(
    full: list[int], window: list[int], found: int
) -> None:
    """A window of two blocks, objects of four: the last object is all that a whole hit needs."""
    pool = Pool(p0=full, p1=window)
    assert reach(pool.asker, Keyspace(BOTH), SPACE, DIGESTS, STRIDE) == found


def test_a_window_longer_than_an_object_needs_several() -> None:
    long = windowed(4 * BLOCK * 2, BLOCK, number=1)
    keys = Keyspace((Part(), long))
    both = Pool(p0=[4, 8, 12, 16], p1=[12, 16])
    assert reach(both.asker, keys, SPACE, DIGESTS, STRIDE) == 16
    gap = Pool(p0=[4, 8, 12, 16], p1=[4, 8, 16])
    assert reach(gap.asker, keys, SPACE, DIGESTS, STRIDE) == 8


def test_a_pool_that_has_little_is_not_asked_for_ever() -> None:
    digests = b"".join(end.to_bytes(16, "big") for end in range(1, 1001))
    pool = Pool(p0=list(range(4, 1001, 4)), p1=[4])
    assert reach(pool.asker, Keyspace(BOTH), SPACE, digests, STRIDE) == 0
    assert pool.asked < 40


STATE = windowed(0, BLOCK, number=2, groups=(3,), layers=((),), span=1, state=True)


@pytest.mark.parametrize(
    ("full", "window", "states", "found"),
    [
        ([4, 8, 12, 16], [4, 8, 12, 16], [16], 16),
        ([4, 8, 12, 16], [4, 8, 12, 16], [7, 12], 12),
        ([4, 8, 12, 15, 16], [4, 8, 12, 15, 16], [12, 15], 15),
        ([4, 8, 12, 16], [4, 8, 12, 16], [7, 15], 0),
        ([4, 7, 8, 12, 16], [4, 7], [7, 15], 7),
        ([4, 8, 12, 16], [4, 8, 12, 16], [], 0),
        ([], [4], [4], 0),
    ],
)
def test_a_hit_ends_where_there_is_a_state(
    full: list[int], window: list[int], states: list[int], found: int
) -> None:
    pool = Pool(p0=full, p1=window, p2=states)
    assert reach(pool.asker, Keyspace((*BOTH, STATE)), SPACE, DIGESTS, STRIDE) == found


def test_a_state_is_the_only_block_of_its_group() -> None:
    tables = with_states([[1, 2, 3], [7, 8, 9]], {1: 5}, 2)
    assert tables == [[1, 2, 3], [0, 5]]
    part = Part(1, (1,), ((),), 0, 1, True)
    assert part.has(tables, 1, 2)
    assert part.rows(tables, 1, 2) == [5]
    assert part.starts(np.array([2, 5], np.int32), STRIDE).tolist() == [1, 4]
