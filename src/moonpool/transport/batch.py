"""Parts of batches."""

from __future__ import annotations

import numpy as np

from moonpool.errors import InvalidArgumentError
from moonpool.transport.base import I64, Pieces, Places

_BAD = InvalidArgumentError.code


def fitting(places: Places, memory: Pieces) -> I64:
    """Return 0 for each object whose pieces are as long as it is, else -600, shape (n,)."""
    if len(places) != len(memory):
        return np.full(len(places), _BAD, np.int64)
    if len(memory.lengths) == len(places) == memory.starts[-1] and not memory.starts[0]:
        sizes = memory.lengths  # a piece for each
    else:
        sizes = memory.sizes()
    return np.where(sizes == places.sizes, 0, _BAD).astype(np.int64)


def chosen(places: Places, which: I64) -> Places:
    """Return some of the places, in rising order."""
    if len(which) == len(places):
        return places
    return Places(
        places.indexes[which],
        places.offsets[which],
        places.sizes[which],
        places.capacities[which],
        places.generations[which],
        places.checksums[which],
    )


def some(memory: Pieces, which: I64) -> Pieces:
    """Return the pieces of some of the objects, in rising order."""
    return memory if len(which) == len(memory) else memory.take(which)


def picked(items: list[bytes], which: I64) -> list[bytes]:
    """Return some of the items; an empty list stays empty."""
    return items if len(which) == len(items) or not items else [items[i] for i in which.tolist()]


def span(memory: Pieces, first: int, last: int) -> Pieces:
    """Return the pieces of the objects ``first`` up to ``last``, without a copy of them."""
    if last - first == len(memory):
        return memory
    starts = memory.starts[first : last + 1]
    a, b = int(starts[0]), int(starts[-1])
    return Pieces(memory.addresses[a:b], memory.lengths[a:b], starts - a)


def places_span(places: Places, first: int, last: int) -> Places:
    """Return the places ``first`` up to ``last``, without a copy of them."""
    if last - first == len(places):
        return places
    return Places(
        places.indexes[first:last],
        places.offsets[first:last],
        places.sizes[first:last],
        places.capacities[first:last],
        places.generations[first:last],
        places.checksums[first:last],
    )
