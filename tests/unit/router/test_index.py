"""The prefix index."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from moonpool.router.index import PrefixIndex


def test_leading_blocks_are_counted_for_each_owner() -> None:
    index = PrefixIndex()
    index.add(0, [1, 2, 3])
    index.add(1, [1, 2])
    index.add(2, [2, 3])
    assert index.match([1, 2, 3, 4]) == {0: 3, 1: 2}
    assert index.match([]) == {}
    assert index.match([9]) == {}


def test_a_gap_ends_a_prefix() -> None:
    index = PrefixIndex()
    index.add(0, [1, 2, 3])
    index.remove(0, [2, 77])
    assert index.match([1, 2, 3]) == {0: 1}
    assert index.held(0) == 2


def test_the_least_recently_used_tail_goes_first() -> None:
    index = PrefixIndex(blocks_max=4)
    index.add(0, [1, 2, 3])
    index.add(0, [10, 11])
    assert index.match([1, 2, 3]) == {0: 2}
    index.add(0, [1, 2])
    index.add(0, [20, 21])
    assert index.match([1, 2]) == {0: 2}
    assert index.match([10, 11]) == {}


def test_an_engine_s_own_capacity_bounds_it() -> None:
    index = PrefixIndex()
    index.add(0, list(range(1, 100)), capacity=10)
    assert index.held(0) == 10
    assert index.match(list(range(1, 100))) == {0: 10}


def test_memory_is_given_back() -> None:
    index = PrefixIndex()
    index.add(0, [1, 2])
    index.add(1, [2, 3])
    index.clear(0)
    assert len(index) == 2
    index.clear(1)
    assert len(index) == 0
    assert index.match([2, 3]) == {}


def test_a_growing_prefix_stays_while_it_is_used() -> None:
    index = PrefixIndex(blocks_max=400)
    used = list(range(100))
    for turn in range(200):
        used.append(1000 + turn)
        index.add(0, used[-150:] if len(used) > 150 else used)
        index.add(0, [10_000 + turn * 10 + place for place in range(10)])
        index.validate()
    assert index.held(0) == 400
    assert index.match(used[-150:]) == {0: 150}


def test_long_prefixes_end_where_they_end() -> None:
    index, keys = PrefixIndex(), list(range(1, 1000))
    for owner, length in enumerate((1, 15, 16, 17, 500, 999)):
        index.add(owner, keys[:length])
    assert index.match(keys) == {0: 1, 1: 15, 2: 16, 3: 17, 4: 500, 5: 999}
    assert index.match(keys[:400]) == {0: 1, 1: 15, 2: 16, 3: 17, 4: 400, 5: 400}


_KEYS = st.lists(st.integers(0, 12), max_size=6)
_STEPS = st.lists(
    st.tuples(st.sampled_from(["add", "remove", "clear"]), st.integers(0, 3), _KEYS), max_size=40
)


@given(_STEPS, _KEYS)
def test_both_directions_agree_whatever_happens(
    steps: list[tuple[str, int, list[int]]], asked: list[int]
) -> None:
    index = PrefixIndex(blocks_max=8)
    for what, owner, keys in steps:
        if what == "clear":
            index.clear(owner)
        elif what == "add":
            index.add(owner, keys)
        else:
            index.remove(owner, keys)
        index.validate()
        assert all(index.held(each) <= 8 for each in range(4))
    for owner, count in index.match(asked).items():
        assert 0 < count <= len(asked)
        assert owner in range(4)
