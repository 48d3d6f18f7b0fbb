"""Lists of copies between host and GPU memory as arrays: joined, cut, divided."""

from __future__ import annotations

import itertools
from collections.abc import Iterator
from typing import NamedTuple

import numpy as np
import numpy.typing as npt

from moonpool.transport.base import U64, Pieces

Bools = npt.NDArray[np.bool_]


class Runs(NamedTuple):
    """r copies; all arrays have shape (r,) and are contiguous."""

    host: U64
    device: U64
    sizes: U64

    @property
    def nbytes(self) -> int:
        """Bytes of all together."""
        return int(self.sizes.sum())

    def where(self, chosen: Bools) -> Runs:
        """Return some of them."""
        return Runs(self.host[chosen], self.device[chosen], self.sizes[chosen])


class Pinned(NamedTuple):
    """Ranges of pinned host memory, rising, apart from each other or touching: shapes (c,).

    A copy lies in one of them or in none; the driver takes none that crosses a border.
    """

    starts: U64
    ends: U64

    def holds(self, runs: Runs) -> Bools:
        """Tell which copies lie in one range, shape (r,)."""
        if not len(self.starts):
            return np.zeros(len(runs.host), bool)
        i = np.searchsorted(self.starts, runs.host, side="right") - 1
        inside = runs.host + runs.sizes <= self.ends[np.maximum(i, 0)]
        return np.asarray(inside & (i >= 0))

    def plus(self, address: int, nbytes: int) -> Pinned:
        """Return them with one more."""
        i = np.searchsorted(self.starts, np.uint64(address))
        ends = np.insert(self.ends, i, np.uint64(address + nbytes))
        return Pinned(np.insert(self.starts, i, np.uint64(address)), ends)

    def outside(self, address: int, nbytes: int) -> Pinned:
        """Return those that do not start in a range."""
        keep = (self.starts < address) | (self.starts >= address + nbytes)
        return Pinned(self.starts[keep], self.ends[keep])


NONE_PINNED = Pinned(np.zeros(0, np.uint64), np.zeros(0, np.uint64))


def runs_of(memory: Pieces, host: U64) -> Runs:
    """Return the copies between objects in one piece each at ``host``, shape (n,), and their
    pieces in GPU memory; neighbours on both sides are one copy."""
    first, last = int(memory.starts[0]), int(memory.starts[-1])
    lengths = np.asarray(memory.lengths[first:last], np.uint64)
    starts = memory.starts - first
    done = np.zeros(len(lengths) + 1, np.uint64)
    np.cumsum(lengths, out=done[1:])
    # Unsigned arithmetic wraps around and comes back.
    offset = np.repeat(np.asarray(host, np.uint64) - done[starts[:-1]], np.diff(starts))
    return joined(Runs(offset + done[:-1], memory.addresses[first:last], lengths))


def joined(runs: Runs) -> Runs:
    """Return the same copies with neighbours in both memories joined, and empty ones gone."""
    if not runs.sizes.all():
        runs = runs.where(runs.sizes != 0)
    host, device, sizes = runs
    if len(sizes) < 2:
        return runs
    opens = np.ones(len(sizes) + 1, bool)
    opens[1:-1] = (host[:-1] + sizes[:-1] != host[1:]) | (device[:-1] + sizes[:-1] != device[1:])
    if opens.all():
        return runs
    at = np.flatnonzero(opens)
    done = np.zeros(len(sizes) + 1, np.uint64)
    np.cumsum(sizes, out=done[1:])
    return Runs(host[at[:-1]], device[at[:-1]], np.diff(done[at]))


def cut(runs: Runs, places: U64, bounds: U64) -> Runs:
    """Return the copies cut where they cross a bound.

    places: where each copy is among the bounds (its host address, say), shape (r,); bounds:
    rising, shape (b,).
    """
    ends = places + runs.sizes
    first = np.searchsorted(bounds, places, side="right")
    inner = np.searchsorted(bounds, ends, side="left") - first
    if not (inner > 0).any():
        return runs
    counts = np.maximum(inner, 0) + 1
    which = np.repeat(np.arange(len(places)), counts)
    rank = np.arange(len(which)) - np.repeat(np.cumsum(counts) - counts, counts)
    following = first[which] + rank
    begin = np.where(rank == 0, places[which], bounds[following - 1])
    bound = bounds[np.minimum(following, len(bounds) - 1)]
    end = np.where(rank == counts[which] - 1, ends[which], bound)
    moved = begin - places[which]
    return Runs(runs.host[which] + moved, runs.device[which] + moved, end - begin)


def divided(runs: Runs, pinned: Pinned) -> tuple[Runs, Runs]:
    """Return the copies from or to pinned memory, none of which crosses a range, and the rest."""
    inside = pinned.holds(runs)
    if not inside.all() and len(pinned.starts):
        runs = cut(runs, runs.host, np.union1d(pinned.starts, pinned.ends))
        inside = pinned.holds(runs)
    return runs.where(inside), runs.where(~inside)


def steps(runs: Runs, nbytes: int) -> Iterator[Runs]:
    """Yield the copies in lists of ``nbytes`` each, the last with what is left."""
    done = np.cumsum(runs.sizes) - runs.sizes
    bounds = np.arange(nbytes, runs.nbytes, nbytes, dtype=np.uint64)
    runs = cut(runs, done, bounds)
    done = np.cumsum(runs.sizes) - runs.sizes
    at = [0, *np.searchsorted(done, bounds).tolist(), len(done)]
    for first, last in itertools.pairwise(at):
        yield Runs(*(array[first:last] for array in runs))
