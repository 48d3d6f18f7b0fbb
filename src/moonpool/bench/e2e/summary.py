"""Arithmetic of a run: percentiles, rates, failures by kind, and what a miss costs."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass
from itertools import pairwise

import numpy as np

from moonpool.bench.e2e.record import UNFINISHED, Record
from moonpool.demo.compare import percentile

PERCENTILES = {"p50": 0.5, "p90": 0.9, "p95": 0.95, "p99": 0.99}
BANDS = (0.0, 0.25, 0.5, 0.75, 0.9, 1.0)
FIT_MIN = 8


@dataclass(frozen=True, slots=True)
class Spread:
    """Of one time, seconds; percentiles by nearest rank. None where there was nothing."""

    count: int
    mean: float | None
    p50: float | None
    p90: float | None
    p95: float | None
    p99: float | None
    max: float | None


def spread(values: Sequence[float]) -> Spread:
    """Return the figures of some values."""
    if not values:
        return Spread(0, None, None, None, None, None, None)
    ranks = {name: percentile(values, share) for name, share in PERCENTILES.items()}
    return Spread(count=len(values), mean=math.fsum(values) / len(values), max=max(values), **ranks)


@dataclass(frozen=True, slots=True)
class Band:
    """Requests of which at least ``low`` and less than ``high`` of the prompt was cached."""

    low: float
    high: float
    requests: int
    ttft_p50_s: float | None


@dataclass(frozen=True, slots=True)
class MissCost:
    """What tokens cost in time to the first token: base + computed x n + cached x m, fitted by
    least squares over the answers. fitted: the share of the variance that it explains."""

    base_s: float
    computed_s: float
    cached_s: float
    fitted: float
    lost_s: float

    @property
    def miss_s(self) -> float:
        """What a token costs that is computed and not taken from a cache."""
        return self.computed_s - self.cached_s


@dataclass(frozen=True, slots=True)
class Summary:
    """A run in figures. wall_s: from the first request's intended time to the last answer's end.
    failures: by kind. late_s: how much later than intended requests were sent."""

    requests: int
    answered: int
    unfinished: int
    failures: dict[str, int]
    wall_s: float
    prompt_tokens: int
    output_tokens: int
    requests_per_s: float
    prompt_tokens_per_s: float
    output_tokens_per_s: float
    ttft_s: Spread
    itl_s: Spread
    tpot_s: Spread
    e2e_s: Spread
    late_s: Spread
    bands: tuple[Band, ...]
    miss: MissCost | None


def summarise(records: Sequence[Record]) -> Summary:
    """Return the figures of a run's requests."""
    good = [each for each in records if each.answered]
    kinds = Counter(each.error for each in records if each.error)
    unfinished = kinds.pop(UNFINISHED, 0)
    begin_s = min((each.intended_s for each in records), default=0.0)
    wall_s = max((each.ended_s for each in records), default=0.0) - begin_s
    prompt = sum(each.prompt_tokens for each in good)
    output = sum(each.output_tokens for each in good)

    def per_s(amount: float) -> float:
        return amount / wall_s if wall_s > 0 else 0.0

    return Summary(
        requests=len(records),
        answered=len(good),
        unfinished=unfinished,
        failures=dict(kinds.most_common()),
        wall_s=wall_s,
        prompt_tokens=prompt,
        output_tokens=output,
        requests_per_s=per_s(len(good)),
        prompt_tokens_per_s=per_s(prompt),
        output_tokens_per_s=per_s(output),
        ttft_s=spread([each.ttft_s for each in good]),
        itl_s=spread([gap for each in good for gap in each.gaps_s]),
        tpot_s=spread([tpot for each in good if (tpot := each.tpot_s) is not None]),
        e2e_s=spread([each.e2e_s for each in good]),
        late_s=spread([each.late_s for each in records]),
        bands=bands(good),
        miss=miss_cost(good),
    )


def bands(records: Sequence[Record]) -> tuple[Band, ...]:
    """Return the time to the first token by how much of the prompt was cached."""
    told = [each for each in records if each.cached_tokens is not None]
    found = []
    for low, high in pairwise(BANDS):
        last = high == BANDS[-1]
        times = [
            each.ttft_s
            for each in told
            if low <= (share := _share(each)) and (share < high or last)
        ]
        found.append(Band(low, high, len(times), percentile(times, 0.5) if times else None))
    return tuple(found) if told else ()


def _share(record: Record) -> float:
    return (record.cached_tokens or 0) / record.prompt_tokens


def miss_cost(records: Sequence[Record]) -> MissCost | None:
    """Return what a miss costs; None where that cannot be told from these answers.

    ``lost_s``: what all tokens cost together that were computed though they could have been hit.
    """
    told = [each for each in records if each.cached_tokens is not None]
    if len(told) < FIT_MIN:
        return None
    cached = np.array([each.cached_tokens for each in told], dtype=float)
    computed = np.array([each.prompt_tokens for each in told], dtype=float) - cached
    times = np.array([each.ttft_s for each in told])
    table = np.column_stack([np.ones(len(told)), computed, cached])
    found, _, rank, _ = np.linalg.lstsq(table, times, rcond=None)
    if rank < table.shape[1]:
        return None
    left = float(((times - table @ found) ** 2).sum())
    spread_of_all = float(((times - times.mean()) ** 2).sum())
    fitted = 1 - left / spread_of_all if spread_of_all else 1.0
    missed = sum(max(0, each.ideal_tokens - (each.cached_tokens or 0)) for each in told)
    base, per_computed, per_cached = map(float, found)
    lost = missed * (per_computed - per_cached)
    return MissCost(base, per_computed, per_cached, fitted, lost)
