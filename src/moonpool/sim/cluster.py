"""A whole simulated cluster: traffic, router, engines on hosts, and a pool or none."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field

from moonpool.sim.engine import Engine
from moonpool.sim.events import Clock
from moonpool.sim.hardware import H200_8B, Hardware
from moonpool.sim.job import Job
from moonpool.sim.pool import PoolModel
from moonpool.sim.routing import SimRouter
from moonpool.sim.traffic import Traffic

DRAIN_S = 1e6


@dataclass(frozen=True, slots=True)
class Cluster:
    """What is simulated. ``speeds``: how many times as fast each engine computes, in turn.

    pool_tokens: room of the pool in all, 0 for none. events, learns: whether the router hears of
    engines' blocks, and learns their rates. warm_s: what comes before is not measured.
    """

    policy: str = "prefix"
    engines: int = 8
    hosts: int = 2
    pool_tokens: int = 0
    hardware: Hardware = H200_8B
    speeds: tuple[float, ...] = (1.0,)
    events: bool = True
    learns: bool = True
    warm_s: float = 600.0
    length_s: float = 1800.0


@dataclass(slots=True)
class Outcome:
    """What became of the jobs that arrived while it was measured, and of the engines.

    every: all jobs in the order of arrival, also those before. busy: mean share of the time in
    which an engine computed.
    """

    jobs: list[Job]
    every: list[Job] = field(repr=False)
    busy: float = 0.0
    balance: float = 1.0
    loaded_tokens: int = 0
    remote_tokens: int = 0


def simulate(cluster: Cluster, traffic: Traffic) -> Outcome:
    """Run it to the end of the last job."""
    clock, block = Clock(), traffic.block_tokens
    pool = None
    if cluster.pool_tokens:
        blocks = cluster.pool_tokens // block // cluster.hosts
        pool = PoolModel(cluster.hosts, blocks, cluster.hardware)
    router = SimRouter(
        clock, cluster.policy, block, pool, events=cluster.events, learns=cluster.learns
    )
    engines: list[Engine] = []
    for place in range(cluster.engines):
        host = place * cluster.hosts // cluster.engines
        make = _maker(cluster, clock, block, (place, host), pool, engines)
        router.join(make, cluster.hardware.hbm_tokens // block, host)
    recorder = _Recorder(router.submit, block)
    traffic.start(clock, recorder.submit, cluster.warm_s + cluster.length_s)
    clock.run(cluster.warm_s)
    before = [engine.busy_s for engine in engines]
    clock.run(cluster.warm_s + cluster.length_s)
    busy = [engine.busy_s - was for engine, was in zip(engines, before, strict=True)]
    clock.run(DRAIN_S)
    mean = sum(busy) / len(busy)
    return Outcome(
        [job for job in recorder.jobs if job.arrived_s >= cluster.warm_s],
        recorder.jobs,
        busy=mean / cluster.length_s,
        balance=max(busy) / mean if mean else 1.0,
        loaded_tokens=pool.loaded_blocks * block if pool else 0,
        remote_tokens=pool.remote_blocks * block if pool else 0,
    )


def _maker(
    cluster: Cluster,
    clock: Clock,
    block: int,
    at: tuple[int, int],
    pool: PoolModel | None,
    engines: list[Engine],
) -> Callable[[Callable[[bool, list[int]], None]], Engine]:
    def make(changed: Callable[[bool, list[int]], None]) -> Engine:
        place, host = at
        hardware = cluster.hardware.faster(cluster.speeds[place % len(cluster.speeds)])
        engines.append(Engine(clock, hardware, block, place, host, pool, changed))
        return engines[-1]

    return make


class _Recorder:
    """Notes every job, and what a cache that forgets nothing would have had of it."""

    def __init__(self, submit: Callable[[Job], None], block: int) -> None:
        self._block = block
        self.jobs: list[Job] = []
        self._seen: set[int] = set()
        self._submit = submit

    def submit(self, job: Job) -> None:
        hits = 0
        for key in job.keys:
            if key not in self._seen:
                break
            hits += 1
        self._seen.update(job.keys[hits:])
        job.could_hit_tokens = min(hits * self._block, job.prompt_tokens - 1)
        self.jobs.append(job)
        self._submit(job)
