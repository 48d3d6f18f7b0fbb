"""Which spaces that a table still names are none any more."""

from __future__ import annotations

import numpy as np
import numpy.typing as npt
from hypothesis import given
from hypothesis import strategies as st

from moonpool.core.allocator import SlabAllocator
from moonpool.core.sizes import PAGE_BYTES, Plans

BYTES = 256 * PAGE_BYTES
"""A segment whose slabs are of one page."""


def overtaken(*spaces: tuple[int, int, int]) -> list[bool]:
    """Tell which of (first page, pages, generation) are overtaken."""
    offsets, capacities, generations = np.array(spaces, np.int64).T
    found: npt.NDArray[np.bool_] = Plans(BYTES).overtaken(
        offsets * PAGE_BYTES, capacities * PAGE_BYTES, generations.astype(np.uint64)
    )
    told: list[bool] = found.tolist()
    return told


def test_a_newer_span_takes_the_place_of_an_older_one_that_it_does_not_overwrite() -> None:
    # Three pages are cut from spans of 16, so the newer one's span is pages 32 to 47.
    assert overtaken((36, 18, 1), (32, 3, 2)) == [True, False]
    assert overtaken((36, 18, 2), (32, 3, 1)) == [False, True]


def test_neighbours_in_one_span_leave_each_other_alone() -> None:
    assert overtaken((32, 3, 1), (35, 3, 3), (38, 3, 2)) == [False] * 3
    assert overtaken((0, 1, 1), (1, 2, 9), (3, 1, 4)) == [False] * 3


def test_of_three_spans_one_upon_the_other_the_newest_stays() -> None:
    assert overtaken((32, 18, 1), (32, 3, 2), (40, 20, 3)) == [True, True, False]


def test_what_cannot_be_a_space_is_left_to_others() -> None:
    assert overtaken((33, 3, 1), (255, 18, 2), (32, 3, 3)) == [False] * 3
    none = np.zeros(0, np.int64)
    assert not len(Plans(BYTES).overtaken(none, none, none.astype(np.uint64)))


@given(
    st.lists(st.tuples(st.integers(1, 60), st.integers(0, 1 << 16), st.booleans()), max_size=120)
)
def test_all_that_is_allocated_can_be_had_again_oldest_first(
    steps: list[tuple[int, int, bool]],
) -> None:
    space = SlabAllocator(BYTES)
    ever: dict[tuple[int, int], int] = {}
    alive: dict[tuple[int, int], int] = {}
    for generation, (pages, which, gives) in enumerate(steps, 1):
        if gives and alive:
            offset, capacity = list(alive)[which % len(alive)]
            del alive[offset, capacity]
            space.free(offset)
        elif (at := space.allocate(pages * PAGE_BYTES)) is not None:
            ever[at, space.capacity_at(at)] = alive[at, space.capacity_at(at)] = generation
    spaces = sorted(ever, key=ever.__getitem__)
    columns = np.array([(*each, ever[each]) for each in spaces], np.int64).reshape(-1, 3).T
    lost = Plans(BYTES).overtaken(columns[0], columns[1], columns[2].astype(np.uint64))
    kept = [each for each, gone in zip(spaces, lost.tolist(), strict=True) if not gone]
    assert set(alive) <= set(kept)
    again = SlabAllocator(BYTES)
    for each in kept:
        # Of two at one place, as of two that overlap in a span, only the newer's bytes are whole.
        assert again.reserve(*each) or each not in alive
