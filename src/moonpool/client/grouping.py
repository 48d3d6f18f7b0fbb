"""From the master's answers to one batch per segment, with NumPy."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

import numpy as np

from moonpool.client.answers import words
from moonpool.transport.base import I64, U64, Pieces, Places

CHUNK_OBJECTS = 512
CHUNK_BYTES = 64 * 1024 * 1024

Row = tuple[int, int, int, int, int, int, int, int]
"""(object, segment, index, offset, size, capacity, generation, checksum)"""

_OBJECT, _SEGMENT, _INDEX, _OFFSET, _SIZE, _CAPACITY, _GENERATION, _CHECKSUM = range(8)


def chunks(
    sizes: Sequence[int], objects_max: int = CHUNK_OBJECTS, bytes_max: int = CHUNK_BYTES
) -> Iterator[tuple[int, int]]:
    """Cut a batch into (first, last) of limited objects and bytes, one object at least."""
    first = total = 0
    for i, size in enumerate(sizes):
        if i > first and (i - first == objects_max or total + size > bytes_max):
            yield first, i
            first, total = i, 0
        total += size
    if first < len(sizes):
        yield first, len(sizes)


def one_place(row: Row) -> Places:
    """Return the place of a single object."""
    column = words(row)
    return Places(
        column[2:3].view(np.int64),
        column[3:4],
        column[4:5],
        column[5:6],
        column[6:7],
        column[7:8],
    )


def by_segment(rows: Sequence[Row]) -> Iterator[tuple[int, I64, Places]]:
    """Yield (segment, objects (n,), places) for each segment that occurs in the rows."""
    table = words(rows).reshape(-1, 8).T
    segments = table[_SEGMENT]
    if not segments.size:
        return
    if (segments == segments[0]).all():
        yield _group(int(segments[0]), table)
        return
    order = np.argsort(segments, kind="stable")
    table = table[:, order]
    edges = np.flatnonzero(np.diff(table[_SEGMENT])) + 1
    for part in np.split(table, edges, axis=1):
        yield _group(int(part[_SEGMENT, 0]), part)


def _group(segment: int, table: U64) -> tuple[int, I64, Places]:
    rows = [np.ascontiguousarray(row) for row in table]
    places = Places(
        rows[_INDEX].view(np.int64),
        rows[_OFFSET],
        rows[_SIZE],
        rows[_CAPACITY],
        rows[_GENERATION],
        rows[_CHECKSUM],
    )
    return segment, rows[_OBJECT].view(np.int64), places


def pieces_of(memory: Pieces, objects: I64) -> Pieces:
    """Return the pieces of the objects; the same ones if that is all of them in order."""
    if len(objects) == len(memory) and (objects == np.arange(len(memory))).all():
        return memory
    return memory.take(objects)
