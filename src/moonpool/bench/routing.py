"""Routing policies compared in simulation: the same traffic, one policy after the other."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import asdict, dataclass, field, replace
from pathlib import Path
from typing import Any

import numpy as np

from moonpool.router.policy import NAMES
from moonpool.sim import workload as workloads
from moonpool.sim.bound import shared_lru
from moonpool.sim.cluster import Cluster, Outcome, simulate
from moonpool.sim.saturation import Saturation, saturate
from moonpool.sim.workload import SimWorkload

POLICIES = ("round_robin", "least_loaded", "session", "prefix")
assert set(POLICIES) == set(NAMES)
POOL_TOKENS = 16_000_000
Say = Callable[[str], None]


@dataclass(frozen=True, slots=True)
class RoutingOptions:
    """What to compare. loads: shares of what the cluster answers at most with ``prefix``.
    levels: instead of it, the workload's own measure, such as agents, without and with a pool."""

    traces: tuple[Path, ...]
    loads: tuple[float, ...] = (0.7,)
    seeds: int = 3
    policies: tuple[str, ...] = POLICIES
    engines: int = 8
    pool_tokens: int = POOL_TOKENS
    variants: bool = False
    levels: tuple[float, float] | None = None
    cluster: Cluster = field(default_factory=Cluster)


@dataclass(frozen=True, slots=True)
class Run:
    """One simulated run. Times are seconds; hit rates are shares of the prompt tokens.

    possible: of one cache as large as those of all engines and the pool together, which forgets
    what was used the longest ago as they do; unforgetting: of one that forgets nothing. busy: mean
    share of the time in which engines computed.
    """

    requests: int
    ttft_p50_s: float
    ttft_p90_s: float
    ttft_p99_s: float
    e2e_p50_s: float
    hit_rate: float
    local_hit_rate: float
    unforgetting_hit_rate: float
    possible_hit_rate: float
    busy: float
    busiest_to_mean: float


@dataclass(frozen=True, slots=True)
class Row:
    """A policy on a trace at a load; one run for each seed."""

    trace: str
    pool: bool
    load: float
    level: float
    unit: str
    policy: str
    variant: str
    runs: tuple[Run, ...]

    @property
    def where(self) -> str:
        """How much is asked for: a share of what is answered at most, or the workload's measure."""
        level = f"{self.level:g} {self.unit}"
        return f"load {self.load:.0%} ({level})" if self.load else level

    def median(self, name: str) -> float:
        """Return the median of a figure over the seeds."""
        return float(np.median([getattr(run, name) for run in self.runs]))

    def spread(self, name: str) -> tuple[float, float]:
        """Return the extremes of a figure over the seeds."""
        values = [getattr(run, name) for run in self.runs]
        return min(values), max(values)


@dataclass(slots=True)
class RoutingResults:
    """Rows in the order in which they were made, and what the loads are shares of."""

    rows: list[Row] = field(default_factory=list)
    saturation: list[dict[str, Any]] = field(default_factory=list)

    def as_json(self, options: RoutingOptions) -> dict[str, Any]:
        """Return all of it as plain values."""
        return {
            "engines": options.engines,
            "pool_tokens": options.pool_tokens,
            "hardware": asdict(options.cluster.hardware),
            "saturation": self.saturation,
            "rows": [asdict(row) for row in self.rows],
        }


def compare(options: RoutingOptions, say: Say = lambda text: None) -> RoutingResults:
    """Run everything; say: told a line after each row."""
    results = RoutingResults()
    for path in options.traces:
        workload = workloads.read(path, options.cluster.hardware.context_tokens)
        for pool in (False, True):
            tokens = options.pool_tokens if pool else 0
            cluster = replace(options.cluster, engines=options.engines, pool_tokens=tokens)
            for row in _half(options, cluster, workload, results, say):
                results.rows.append(row)
                say(line(row))
    return results


def _half(
    options: RoutingOptions,
    cluster: Cluster,
    workload: SimWorkload,
    results: RoutingResults,
    say: Say,
) -> Iterator[Row]:
    """Yield the rows of one trace, with a pool or without."""
    pool = cluster.pool_tokens > 0
    if options.levels is not None:
        for name in options.policies:
            level = options.levels[pool]
            yield _row(options, replace(cluster, policy=name), workload, (0.0, level), "")
        return
    limit = saturate(cluster, workload)
    results.saturation.append(_saturated(limit, workload, pool))
    say(f"{workload.name}, {_with(pool)}: {limit.rate:.2f} requests a second at most")
    for load in options.loads:
        level = limit.level(load, workload)
        for name in options.policies:
            yield _row(options, replace(cluster, policy=name), workload, (load, level), "")
        if options.variants:
            for variant, changed in variants(cluster).items():
                yield _row(options, changed, workload, (load, level), variant)


def variants(cluster: Cluster) -> dict[str, Cluster]:
    """Return clusters in which ``prefix`` knows less, or wrong things, or engines differ."""
    return {
        "no KV events": replace(cluster, events=False),
        "never learns, takes engines for 5 to 8 times slower": replace(cluster, learns=False),
        "two engines half as fast": replace(cluster, speeds=(1.0, 1.0, 1.0, 0.5)),
    }


def _saturated(limit: Saturation, workload: SimWorkload, pool: bool) -> dict[str, Any]:
    curve = [{"level": level, "answered_per_s": rate} for level, rate in limit.curve]
    unit = workload.unit
    return {
        "trace": workload.name, "pool": pool, "per_s": limit.rate, "unit": unit, "curve": curve
    }  # fmt: skip


def _row(
    options: RoutingOptions,
    cluster: Cluster,
    workload: SimWorkload,
    at: tuple[float, float],
    variant: str,
) -> Row:
    load, level = at
    warm_s, length_s = workload.window(level)
    sized = replace(cluster, warm_s=warm_s, length_s=length_s)
    runs = tuple(
        measured(sized, workload, simulate(sized, workload.traffic(level, seed)))
        for seed in range(1, options.seeds + 1)
    )
    pool = cluster.pool_tokens > 0
    return Row(workload.name, pool, load, level, workload.unit, cluster.policy, variant, runs)


def measured(cluster: Cluster, workload: SimWorkload, outcome: Outcome) -> Run:
    """Return the figures of a run."""
    jobs = outcome.jobs
    tokens = sum(job.prompt_tokens for job in jobs)
    local = sum(job.local_tokens for job in jobs)
    pool = sum(job.pool_tokens for job in jobs)
    could = sum(job.could_hit_tokens for job in jobs) / tokens
    block = workload.block_tokens
    blocks = (cluster.engines * cluster.hardware.hbm_tokens + cluster.pool_tokens) // block
    possible = shared_lru(outcome.every, blocks, block, cluster.warm_s)
    p50, p90, p99 = np.percentile([job.ttft_s for job in jobs], (50, 90, 99)).tolist()
    e2e_s = float(np.median([job.end_s - job.arrived_s for job in jobs]))
    hit = (local + pool) / tokens
    return Run(
        len(jobs), p50, p90, p99, e2e_s, hit, local / tokens, could, possible,
        min(1.0, outcome.busy), outcome.balance,
    )  # fmt: skip


def line(row: Row) -> str:
    """Return a row as one line, for those who wait."""
    p50, p99 = row.median("ttft_p50_s"), row.median("ttft_p99_s")
    return (
        f"{row.trace}, {_with(row.pool)}, {row.where}: "
        f"{row.policy}{f' ({row.variant})' if row.variant else ''}: TTFT p50 {p50:.3f} s, "
        f"p99 {p99:.2f} s, hits {row.median('hit_rate'):.1%} "
        f"of {row.median('possible_hit_rate'):.1%} possible"
    )


def _with(pool: bool) -> str:
    return "with a pool" if pool else "no pool"


def rows_of(rows: Sequence[Row], trace: str, pool: bool, load: float) -> dict[str, Row]:
    """Return the rows of one comparison by policy."""
    return {
        row.policy: row
        for row in rows
        if (row.trace, row.pool, row.load, row.variant) == (trace, pool, load, "")
    }
