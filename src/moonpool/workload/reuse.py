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
    between it and its last touch, the next one more, and so on. ``owners``: numbers of the
    prompts that the runs are of; ``strata``: what ``add`` was told of them. ``firsts``: touches
    before which their block was never seen, by stratum.
    """

    nearest: Counts
    lengths: Counts
    owners: Counts
    strata: Counts
    firsts: Counts

    def hits(self, blocks: int) -> int:
        """Return how many touches hit in a cache of so many blocks."""
        return int(np.clip(blocks - self.nearest, 0, self.lengths).sum())

    def hits_by_stratum(self, blocks: int) -> Counts:
        """Return the same for each stratum."""
        hits = np.clip(blocks - self.nearest, 0, self.lengths)
        return np.bincount(self.strata, hits, len(self.firsts)).astype(np.int64)

    def touches_by_stratum(self) -> Counts:
        """Return how many touches each stratum has."""
        again = np.bincount(self.strata, self.lengths, len(self.firsts))
        return again.astype(np.int64) + self.firsts

    def hits_each(self, blocks: int, prompts: int) -> Counts:
        """Return how many blocks of each of so many prompts hit in a cache of so many blocks."""
        hits = np.clip(blocks - self.nearest, 0, self.lengths)
        return np.bincount(self.owners, hits, prompts).astype(np.int64)

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
        self._last: dict[object, dict[int, int]] = {}
        self._place = 0
        self._prompts = 0
        self._runs = array("q")
        self._firsts = [0]

    @property
    def distinct(self) -> int:
        """Blocks that were touched at all."""
        return sum(self._firsts)

    def add(self, scope: object, ids: Sequence[int], strata: Sequence[int] = ()) -> int:
        """Note a prompt's blocks, first to last; return how many of its head were touched before.

        Its end counts as touched first, as if its head was used last. An id is unique in a scope.
        strata: small numbers by which blocks are told apart later, one for each.
        """
        if strata:
            return self._add(scope, ids, strata)
        if len(set(ids)) < len(ids):
            ids = list(dict.fromkeys(ids))  # a block that a prompt names twice is one block
        return self._add(scope, ids, bytes(len(ids)))

    def _add(self, scope: object, ids: Sequence[int], strata: Sequence[int]) -> int:
        last, place = self._last.setdefault(scope, {}), self._place
        start, known = place, 0
        run_from, run, run_in = NEVER, 0, 0
        for index in range(len(ids) - 1, -1, -1):
            key = ids[index]
            before, stratum = last.get(key, NEVER), strata[index]
            last[key] = place
            place += 1
            if before == NEVER:
                self._first_in(stratum)
                known = 0
            else:
                known += 1
            if run and before == run_from + run and stratum == run_in:
                run += 1
                continue
            if run:
                self._runs.extend((start, run_from, run, self._prompts, run_in))
            run_from, run, run_in = before, before != NEVER, stratum
        if run:
            self._runs.extend((start, run_from, run, self._prompts, run_in))
        self._place = place
        self._prompts += 1
        return known

    def _first_in(self, stratum: int) -> None:
        while stratum >= len(self._firsts):
            self._firsts.append(0)
        self._firsts[stratum] += 1

    def distances(self) -> Distances:
        """Return the distances of all touches so far."""
        runs = np.array(self._runs, dtype=np.int64).reshape(-1, 5)
        starts, before, lengths, owners, strata = runs.T
        # What was touched since, less what of that was touched again since, which is one block.
        nearest = starts - before - lengths - greater_before(before, lengths)
        return Distances(nearest, lengths, owners, strata, np.array(self._firsts))


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
