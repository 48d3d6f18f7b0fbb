"""A trace, counted for a plan: what each prompt asks for, and how far back it was asked before."""

from __future__ import annotations

from array import array
from collections import Counter
from collections.abc import Iterable
from dataclasses import dataclass

import numpy as np
import xxhash
from numpy.typing import NDArray

from moonpool.errors import ConfigError
from moonpool.workload.request import Group
from moonpool.workload.reuse import Counts, Distances, Touches
from moonpool.workload.stats import by_time

MIX = np.uint64(0x9E3779B97F4A7C15)
MASK = (1 << 64) - 1
STRATA = 32


@dataclass(frozen=True, slots=True, eq=False)
class Demand:
    """Requests in order of time. pool: distances in one pool for all; own: in each engine's own
    cache, prompts numbered as in all, had requests gone to the engines in turn. rate: the share of
    the blocks that was followed, by prompt as many as ``followed``; distances are in those.
    depths: how many touches there were, by stratum of depth: places 0, 1 and 2, 3 to 6, and so on.
    """

    times_s: NDArray[np.float64]
    input_tokens: Counts
    output_tokens: Counts
    block_tokens: int
    pool: Distances
    own: Distances
    depths: Counts
    distinct: int
    rate: float
    followed: Counts

    @property
    def duration_s(self) -> float:
        """From the first request to the last."""
        return float(self.times_s[-1] - self.times_s[0])

    def hits(self, distances: Distances, tokens: float) -> Counts:
        """Return the tokens of each prompt that hit in a cache of so many tokens.

        In a sample a prompt hits as its followed blocks do, one that has none as the others on
        average; all together as ``hit_rate`` says.
        """
        blocks = int(tokens * self.rate / self.block_tokens)
        hits = distances.hits_each(blocks, len(self.input_tokens))
        most = self.input_tokens - 1  # at least one token is always computed
        if self.rate == 1.0:
            found: Counts = np.minimum(hits * self.block_tokens, most)
            return found
        share = np.full(len(hits), hits.sum() / max(1, int(self.followed.sum())))
        np.divide(hits, self.followed, out=share, where=self.followed > 0)
        estimate = share * self.input_tokens
        wanted = self.hit_rate(distances, tokens) * float(self.input_tokens.sum())
        scale = wanted / max(1.0, float(estimate.sum()))
        sampled: Counts = np.minimum((estimate * scale).astype(np.int64), most)
        return sampled

    def hit_rate(self, distances: Distances, tokens: float) -> float:
        """Return the hits in a cache of so many tokens as a share of the input.

        A sample is weighed by how deep in their prompts its blocks are: what many prompts begin
        with is a few blocks that are touched often, of which a sample has too many or too few.
        """
        blocks = int(tokens * self.rate / self.block_tokens)
        sampled = distances.touches_by_stratum()
        hits = distances.hits_by_stratum(blocks)
        known = np.flatnonzero(sampled)
        if not len(known):
            return 0.0
        shares = np.interp(np.arange(len(self.depths)), known, hits[known] / sampled[known])
        hit_blocks = float(shares @ self.depths)
        return hit_blocks * self.block_tokens / float(self.input_tokens.sum())


def demand_of(groups: Iterable[Group], engines: int, rate: float = 1.0) -> Demand:
    """Count a trace for so many engines. ``rate`` below 1 follows that share of the blocks, chosen
    by a hash of their names (SHARDS). Raises ConfigError for a trace that says nothing of blocks.
    """
    pool, own = Touches(), [Touches() for _ in range(engines)]
    owners: list[array[int]] = [array("q") for _ in range(engines)]
    times, inputs, outputs, followed = array("d"), array("q"), array("q"), array("q")
    block_tokens = 0
    lengths: Counter[int] = Counter()
    bound = np.uint64(min(MASK, int(rate * MASK)))
    for group, request in by_time(groups):
        if not request.known:
            continue
        block_tokens = max(block_tokens, group.block_tokens)
        blocks = request.blocks[: request.input_tokens // group.block_tokens]
        lengths[len(blocks)] += 1
        strata: list[int] = []
        if rate < 1.0:
            salt = np.uint64(xxhash.xxh3_64_intdigest(group.scope.encode()))
            mixed = (blocks.astype(np.uint64) ^ salt) * MIX
            places = np.flatnonzero((mixed ^ (mixed >> np.uint64(32))) * MIX <= bound)
            blocks, strata = blocks[places], _stratum(places).tolist()
        ids = blocks.tolist()
        engine = len(inputs) % engines
        pool.add(group.scope, ids, strata)
        own[engine].add(group.scope, ids, strata)
        owners[engine].append(len(inputs))
        followed.append(len(ids))
        times.append(request.time_s)
        inputs.append(request.input_tokens)
        outputs.append(request.output_tokens)
    if not inputs:
        raise ConfigError("trace: it does not say what its prompts hold; allowed: one with blocks")
    return Demand(
        np.asarray(times),
        np.asarray(inputs),
        np.asarray(outputs),
        block_tokens,
        pool.distances(),
        _joined([each.distances() for each in own], owners),
        _depths(lengths, 1 if rate == 1.0 else STRATA),
        round(pool.distinct / rate),
        rate,
        np.asarray(followed),
    )


def _stratum(places: Counts) -> Counts:
    return np.log2(places + 1).astype(np.int64)


def _depths(lengths: Counter[int], strata: int) -> Counts:
    """Return how many touches each stratum has in prompts of so many blocks."""
    if strata == 1:
        return np.array([sum(length * count for length, count in lengths.items())])
    edges = (1 << np.arange(strata + 1)) - 1
    sizes = np.fromiter(lengths.keys(), np.int64, len(lengths))
    counts = np.fromiter(lengths.values(), np.int64, len(lengths))
    found: Counts = np.diff(np.minimum(sizes[:, None], edges)).T @ counts
    return found


def _joined(parts: list[Distances], owners: list[array[int]]) -> Distances:
    numbers = [np.asarray(names, dtype=np.int64) for names in owners]
    return Distances(
        np.concatenate([each.nearest for each in parts]),
        np.concatenate([each.lengths for each in parts]),
        np.concatenate([names[each.owners] for names, each in zip(numbers, parts, strict=True)]),
        np.concatenate([each.strata for each in parts]),
        _summed([each.firsts for each in parts]),
    )


def _summed(parts: list[Counts]) -> Counts:
    found = np.zeros(max(map(len, parts)), dtype=np.int64)
    for each in parts:
        found[: len(each)] += each
    return found
