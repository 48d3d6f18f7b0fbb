"""What a pool would bring: hits, times, GPU hours, memory, network, money."""

from __future__ import annotations

from dataclasses import dataclass, field

import numpy as np

from moonpool.planner.costs import Engine
from moonpool.planner.demand import Demand
from moonpool.planner.machines import LINKS, NVME_GB_S
from moonpool.workload.reuse import Counts

SIZES = 48
KNEE_POINTS = 0.01
"""The knee is where the pool could be doubled for less than this share of the input."""
ALL = 0.995
WINDOW_S = 60.0
MONTH_S = 30.44 * 86_400
HOUR_S = 3600.0


@dataclass(frozen=True, slots=True)
class Site:
    """What is there, or planned. dram_gb: what each host can lend; ssd_gb_s: what its disks read.
    prices, each may be 0: an hour of a GPU, a month of 10^9 bytes of DRAM and of SSD."""

    engine: Engine
    engines: int
    hosts: int
    dram_gb: float = 0.0
    ssd_gb_s: float = NVME_GB_S
    gpu_hour: float = 0.0
    dram_gb_month: float = 0.0
    ssd_gb_month: float = 0.0
    currency: str = ""


@dataclass(frozen=True, slots=True)
class Variant:
    """One way to run the trace. hit_rate: of all input tokens; ttft: of one request at a time,
    without waiting for others; gpu_hours: prefill of the trace, all GPUs of an engine counted.
    cost_month: of that and of the pool's memory, 0 without prices."""

    name: str
    hit_rate: float
    ttft_p50_s: float
    ttft_p90_s: float
    gpu_hours: float
    cost_month: float = 0.0


@dataclass(frozen=True, slots=True)
class Plan:
    """The answer. Sizes in 10^9 bytes, over all hosts. curve: (size, hit rate). network_gbit_s:
    each host's, in the busiest of 99 minutes of 100. crossover: by way to the pool, the tokens
    from which on loading is faster than computing; None: never."""

    requests: int
    input_tokens: int
    hours: float
    sampled: float
    kv_bytes: int
    curve: list[tuple[float, float]]
    most: float
    knee_gb: float
    whole_gb: float
    pool_gb: float
    dram_gb: float
    ssd_gb: float
    network_gbit_s: float
    crossover: dict[str, int | None]
    variants: list[Variant] = field(default_factory=list)


def plan(demand: Demand, site: Site, pool_gb: float = 0.0) -> Plan:
    """Plan a pool for a trace; ``pool_gb`` 0 takes the size at the knee."""
    engine = site.engine
    gb = engine.kv_bytes / 1e9
    curve = _curve(demand, gb)
    most = curve[-1][1]
    knee = _knee(curve)
    chosen = pool_gb or knee
    dram = min(chosen, _dram_gb(demand, site, chosen, gb))
    return Plan(
        requests=len(demand.input_tokens),
        input_tokens=int(demand.input_tokens.sum()),
        hours=demand.duration_s / HOUR_S,
        sampled=demand.rate,
        kv_bytes=engine.kv_bytes,
        curve=curve,
        most=most,
        knee_gb=knee,
        whole_gb=next(size for size, rate in curve if rate >= ALL * most),
        pool_gb=chosen,
        dram_gb=dram,
        ssd_gb=chosen - dram,
        network_gbit_s=_network(demand, site, chosen / gb),
        crossover=_crossovers(engine),
        variants=_variants(demand, site, chosen, dram),
    )


def _curve(demand: Demand, gb: float) -> list[tuple[float, float]]:
    tokens = demand.distinct * demand.block_tokens
    sizes = [tokens * 10 ** (3 * n / SIZES - 3) for n in range(SIZES + 1)]
    return [(size * gb, demand.hit_rate(demand.pool, size + 1)) for size in sizes]


def _knee(curve: list[tuple[float, float]]) -> float:
    sizes, rates = (np.array(each) for each in zip(*curve, strict=True))
    doubled = np.interp(2 * sizes, sizes, rates)
    enough = (doubled - rates < KNEE_POINTS) & (rates > rates[-1] / 2)
    return float(sizes[int(np.argmax(enough))]) if enough.any() else float(sizes[-1])


def _dram_gb(demand: Demand, site: Site, pool_gb: float, gb: float) -> float:
    """Return the least DRAM with which the disks can read what it does not hold in time."""
    most = site.dram_gb * site.hosts or pool_gb
    tokens_s = _busy(demand, demand.input_tokens)
    readable = site.ssd_gb_s * site.hosts / gb
    total = demand.hit_rate(demand.pool, pool_gb / gb)
    for step in range(1, SIZES + 1):
        size = pool_gb * step / SIZES
        from_disk = (total - demand.hit_rate(demand.pool, size / gb)) * tokens_s
        if from_disk <= readable:
            return min(size, most)
    return min(pool_gb, most)


def _network(demand: Demand, site: Site, pool_tokens: float) -> float:
    """Return each host's traffic: what its engines load of what other hosts hold."""
    own = demand.hits(demand.own, site.engine.hbm_tokens)
    loaded = np.maximum(demand.hits(demand.pool, pool_tokens) - own, 0)
    away = (site.hosts - 1) / site.hosts
    bytes_s = _busy(demand, loaded) * site.engine.kv_bytes * away
    return bytes_s / site.hosts * 8 / 1e9


def _busy(demand: Demand, tokens: Counts) -> float:
    """Return tokens a second in the busiest of 99 minutes of 100."""
    minutes = ((demand.times_s - demand.times_s[0]) // WINDOW_S).astype(int)
    return float(np.percentile(np.bincount(minutes, tokens), 99)) / WINDOW_S


def _crossovers(engine: Engine) -> dict[str, int | None]:
    ways = {"own host": engine.host_gb_s()}
    ways |= {name: link.gb_s * link.share for name, link in LINKS.items()}
    return {name: engine.crossover(gb_s) for name, gb_s in ways.items()}


def _variants(demand: Demand, site: Site, pool_gb: float, dram_gb: float) -> list[Variant]:
    engine = site.engine
    none = np.zeros_like(demand.input_tokens)
    own = demand.hits(demand.own, engine.hbm_tokens)
    pooled = np.maximum(own, demand.hits(demand.pool, pool_gb * 1e9 / engine.kv_bytes))
    month = MONTH_S / max(1.0, demand.duration_s)
    memory = dram_gb * site.dram_gb_month + (pool_gb - dram_gb) * site.ssd_gb_month
    found = []
    for name, local, total, fixed in (
        ("nothing cached", none, none, 0.0),
        ("engines' own caches, round robin", own, own, 0.0),
        ("with the pool, round robin", own, pooled, memory),
    ):
        prefill, ttft = _times(demand, site, local, total)
        hours = float(prefill.sum()) * engine.gpus / HOUR_S
        p50, p90 = np.percentile(ttft, (50, 90))
        rate = float(total.sum() / demand.input_tokens.sum())
        cost = hours * month * site.gpu_hour + fixed
        found.append(Variant(name, rate, float(p50), float(p90), hours, cost))
    return found


def _times(
    demand: Demand, site: Site, local: Counts, total: Counts
) -> tuple[np.ndarray, np.ndarray]:
    """Return each request's seconds of prefill, and until its first token.

    Where loading takes longer than computing, it is computed.
    """
    engine = site.engine
    prefill = engine.prefill_each(total, demand.input_tokens)
    away = (site.hosts - 1) / site.hosts
    gb_s = 1 / ((1 - away) / engine.host_gb_s() + away / (engine.link.gb_s * engine.link.share))
    load = engine.load_each(total - local, gb_s)
    computed = engine.prefill_each(local, demand.input_tokens)
    slower = prefill + load > computed
    prefill, load = np.where(slower, computed, prefill), np.where(slower, 0.0, load)
    return prefill, prefill + load
