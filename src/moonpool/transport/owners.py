"""The owners of a segment's pages, and vectorised questions about ranges of them."""

from __future__ import annotations

import numpy as np
import numpy.typing as npt

from moonpool.transport.base import I64, U64
from moonpool.transport.layout import PAGE_BYTES

_LONG_RUN_PAGES = 24
"""From this mean length on, a Python loop over slices beats building an index per page."""


def pages_of(offsets: U64, lengths: U64) -> tuple[I64, I64]:
    """Return (first page, number of pages) of byte ranges inside the data area; at least one."""
    page = np.uint64(PAGE_BYTES)
    count = np.maximum((lengths + (page - np.uint64(1))) // page, np.uint64(1))
    return (offsets // page).astype(np.int64), count.astype(np.int64)


class Owners:
    """One generation per page. Ranges are (first, count) arrays of shape (n,), in bounds."""

    def __init__(self, pages: U64) -> None:
        self.pages = pages

    def equal(self, first: I64, count: I64, generations: U64) -> npt.NDArray[np.bool_]:
        """Tell which ranges carry their generation on every page, shape (n,)."""
        pages = self.pages
        if _long(count):
            ranges = zip(first.tolist(), (first + count).tolist(), generations, strict=True)
            return np.array([bool((pages[a:b] == g).all()) for a, b, g in ranges], bool)
        where, starts = _spread(first, count)
        if not len(starts):
            return np.zeros(0, bool)
        same = pages[where] == np.repeat(generations, count)
        return np.logical_and.reduceat(same, starts)

    def newest(self, first: I64, count: I64) -> U64:
        """Return the highest generation in each range, shape (n,)."""
        pages = self.pages
        if _long(count):
            ranges = zip(first.tolist(), (first + count).tolist(), strict=True)
            return np.array([pages[a:b].max() for a, b in ranges], np.uint64)
        where, starts = _spread(first, count)
        if not len(starts):
            return np.zeros(0, np.uint64)
        return np.maximum.reduceat(pages[where], starts)

    def fill(self, first: I64, count: I64, generations: U64) -> None:
        """Store each range's generation on all of its pages."""
        pages = self.pages
        if _long(count):
            ranges = zip(first.tolist(), (first + count).tolist(), generations, strict=True)
            for a, b, generation in ranges:
                pages[a:b] = generation
            return
        where, _ = _spread(first, count)
        pages[where] = np.repeat(generations, count)


def _long(count: I64) -> bool:
    return bool(len(count)) and int(count.sum()) >= _LONG_RUN_PAGES * len(count)


def _spread(first: I64, count: I64) -> tuple[I64, I64]:
    """Return every page of every range, and where each range starts in that list."""
    starts = np.zeros(len(count), np.int64)
    np.cumsum(count[:-1], out=starts[1:])
    return np.arange(int(count.sum()), dtype=np.int64) + np.repeat(first - starts, count), starts
