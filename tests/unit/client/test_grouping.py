from __future__ import annotations

import numpy as np
from hypothesis import given
from hypothesis import strategies as st

from moonpool.client.grouping import by_segment, chunks, one_place, pieces_of
from moonpool.transport.base import Pieces


@given(st.lists(st.integers(0, 100), max_size=40), st.integers(1, 6), st.integers(1, 150))
def test_chunks_cover_everything_within_the_limits(
    sizes: list[int], objects_max: int, bytes_max: int
) -> None:
    cut = list(chunks(sizes, objects_max, bytes_max))
    assert [i for first, last in cut for i in range(first, last)] == list(range(len(sizes)))
    for first, last in cut:
        assert 1 <= last - first <= objects_max
        assert last - first == 1 or sum(sizes[first:last]) <= bytes_max


u63 = st.integers(0, 2**63 - 1)
rows = st.lists(st.tuples(u63, st.integers(0, 3), u63, u63, u63, u63, u63, u63), max_size=20)


@given(rows)
def test_grouping_loses_nothing_and_keeps_the_order(
    found: list[tuple[int, int, int, int, int, int, int, int]],
) -> None:
    seen = []
    segments = []
    for segment, objects, places in by_segment(found):
        segments.append(segment)
        columns = zip(
            objects.tolist(),
            [segment] * len(places),
            places.indexes.tolist(),
            places.offsets.tolist(),
            places.sizes.tolist(),
            places.capacities.tolist(),
            places.generations.tolist(),
            places.checksums.tolist(),
            strict=True,
        )
        group = list(columns)
        assert group == [row for row in found if row[1] == segment]
        seen += group
    assert sorted(seen) == sorted(found)
    assert len(set(segments)) == len(segments)


def test_one_place_is_like_a_group_of_one() -> None:
    row = (0, 7, 1, 2, 3, 4, 5, 2**64 - 1)
    ((_, _, group),) = by_segment([row])
    alone = one_place(row)
    for name in ("indexes", "offsets", "sizes", "capacities", "generations", "checksums"):
        assert getattr(alone, name).tolist() == getattr(group, name).tolist()
        assert getattr(alone, name).dtype == getattr(group, name).dtype


def test_pieces_of_all_objects_are_not_copied() -> None:
    memory = Pieces(np.arange(3, dtype=np.uint64), np.ones(3, np.uint64), np.arange(4))
    assert pieces_of(memory, np.arange(3)) is memory
    assert pieces_of(memory, np.array([2, 0])).addresses.tolist() == [2, 0]
