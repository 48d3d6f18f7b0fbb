"""Reuse distances: how much a cache must hold for a block still to be there when it is asked for.

The cache is a pool that forgets what was used least recently, and of a prompt its end first. A
block is a hit if the distinct blocks that were touched after it fit in with it. Exact, for all
sizes at once: one pass that notes when each block was touched before, then a count of inversions.
Prompts repeat others in long runs, so what is kept and counted are runs of blocks.
"""

from __future__ import annotations

from array import array
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

Counts = NDArray[np.int64]
NEVER = -1


@dataclass(frozen=True, slots=True, eq=False)
class Distances:
    """Distances of all touches that were not a block's first.

    Run ``r`` is ``lengths[r]`` touches, of which the nearest has ``nearest[r]`` distinct blocks
    between it and its last touch, the next one more, and so on. ``firsts``: touches before which
    their block was never seen.
    """

    nearest: Counts
    lengths: Counts
    firsts: int

    def hits(self, blocks: int) -> int:
        """Return how many touches hit in a cache of so many blocks."""
        return int(np.clip(blocks - self.nearest, 0, self.lengths).sum())

    def quantile(self, share: float) -> int:
        """Return the distance that so large a share of the touches (but first ones) does not
        exceed; 0 where there is none."""
        total = int(self.lengths.sum())
        low, high = 0, int((self.nearest + self.lengths).max(initial=0))
        while low < high:
            middle = (low + high) // 2
            if self.hits(middle + 1) >= share * total:
                high = middle
            else:
                low = middle + 1
        return low


class Touches:
    """Notes requests in order of time."""

    def __init__(self) -> None:
        self._last: dict[object, int] = {}
        self._place = 0
        self._runs = array("q")
        self.firsts = 0

    @property
    def distinct(self) -> int:
        """Blocks that were touched at all."""
        return len(self._last)

    def add(self, scope: object, ids: Sequence[int]) -> int:
        """Note a prompt's blocks, first to last; return how many of its head were touched before.

        Its end counts as touched first, as if its head was used last. An id is unique in a scope.
        """
        if len(set(ids)) < len(ids):
            ids = list(dict.fromkeys(ids))  # a block that a prompt names twice is one block
        last, place = self._last, self._place
        start, known = place, 0
        run_from, run = NEVER, 0
        for index in range(len(ids) - 1, -1, -1):
            key = (scope, ids[index])
            before = last.get(key, NEVER)
            last[key] = place
            place += 1
            if before == NEVER:
                self.firsts += 1
                known = 0
            else:
                known += 1
            if run and before == run_from + run:
                run += 1
                continue
            if run:
                self._runs.extend((start, run_from, run))
            run_from, run = before, before != NEVER
        if run:
            self._runs.extend((start, run_from, run))
        self._place = place
        return known

    def distances(self) -> Distances:
        """Return the distances of all touches so far."""
        runs = np.array(self._runs, dtype=np.int64).reshape(-1, 3)
        starts, before, lengths = runs[:, 0], runs[:, 1], runs[:, 2]
        # What was touched since, less what of that was touched again since, which is one block.
        nearest = starts - before - lengths - greater_before(before, lengths)
        return Distances(nearest, lengths, self.firsts)


def greater_before(values: Counts, weights: Counts) -> Counts:
    """Return for each value the sum of the weights of those before it that are greater.

    Bit by bit of their ranks, from the highest: among those that agree so far, those before one
    with a 0 are greater if they have a 1. Then those with a 0 go before the others.
    """
    _, ranks = np.unique(values, return_inverse=True)
    ranks, weights = ranks.astype(np.int64), weights.copy()
    place = np.arange(len(ranks))
    found = np.zeros(len(ranks), dtype=np.int64)
    for bit in reversed(range(int(ranks.max(initial=0)).bit_length())):
        one = (ranks >> bit) & 1
        first = np.flatnonzero(np.diff(ranks >> (bit + 1), prepend=-1))
        sizes = np.diff(np.append(first, len(ranks)))
        heavy = _running(one * weights, first, sizes)
        zero = one == 0
        found[place[zero]] += heavy[zero]
        ones = _running(one, first, sizes)
        zeros = np.repeat(sizes - np.add.reduceat(one, first), sizes)
        begin = np.repeat(first, sizes)
        within = np.arange(len(ranks)) - begin
        target = begin + np.where(zero, within - ones, zeros + ones - 1)
        for each in (ranks, place, weights):
            each[target] = each.copy()
    return found


def _running(values: Counts, first: Counts, sizes: Counts) -> Counts:
    """Return running sums that begin anew in each group."""
    sums = np.cumsum(values)
    return sums - np.repeat(sums[first] - values[first], sizes)
