"""The scaling workload on a thousand and ten thousand GPUs: what the pool's own parts must do."""

from __future__ import annotations

import gc
from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass, replace
from time import process_time
from typing import Any

import numpy as np

from moonpool.sim.fleet.fleet import Fleet
from moonpool.sim.fleet.master import Prices
from moonpool.sim.fleet.pool import PoolShape
from moonpool.sim.fleet.records import Summary
from moonpool.sim.fleet.seed import GROUP_GPUS, POOL_GB_A_GPU, SESSIONS, shape_of
from moonpool.sim.fleet.traffic import Conversations, Plan
from moonpool.workload.workloads import scaling

BLOCK_TOKENS = 256
ENGINE_BLOCK_TOKENS = 64
"""What events name: each 256 tokens here are four blocks of an engine."""
BEGIN_S = 60.0
WARM_S = 170.0
"""Conversations are then about half way, where prompts are as long as they are on average."""


@dataclass(frozen=True, slots=True)
class Size:
    """A fleet. dram_gb: of each GPU; object_blocks: of 256 tokens. Larger objects than the pool's
    usual ones save memory here; the master's messages count usual ones."""

    gpus: int
    length_s: float = 30.0
    dram_gb: float = 30.0
    object_blocks: int = 4
    queues: bool = False
    seed: int = 1


@dataclass(frozen=True, slots=True)
class Load:
    """What one fleet asks of the pool's parts, in the measured window.

    messages_s: of the master's clients, by kind; items_s: objects in them; master_busy: cores that
    these take. objects, index_bytes: in the master's index, and what they take; full_index_bytes:
    with a full pool of 100 GB a GPU. events_s: blocks that came or went in engines' caches, a
    second; router_busy: cores that these take in a router's index. nic_out_gbit_s: mean and most of
    a prefill host. seconds: of the processor, for the run.
    """

    gpus: int
    summary: Summary
    messages_s: dict[str, float]
    items_s: dict[str, float]
    master_busy: float
    objects: int
    index_bytes: float
    full_index_bytes: float
    events_s: float
    router_busy: float
    nic_out_gbit_s: float
    nic_out_most_gbit_s: float
    nic_in_gbit_s: float
    requests: int
    simulated_s: float
    seconds: float

    def plain(self) -> dict[str, Any]:
        """Return it as JSON has it."""
        return asdict(self)


def run(size: Size, prices: Prices, event_s: float) -> Load:
    """Simulate a fleet for ``length_s`` after it has warmed up."""
    agents = SESSIONS * size.gpus // GROUP_GPUS
    shape = shape_of(size.gpus, pool=True, block_tokens=BLOCK_TOKENS)
    pool = PoolShape(size.dram_gb * 4, size.object_blocks)
    # What is asked of a master is to be found out, also where it is more than one has time for.
    shape = replace(shape, pool=pool, prices=prices, master_queues=size.queues)
    fleet = Fleet(shape)
    plan = Plan(agents, BEGIN_S, repeat=True, seed=size.seed)
    traffic = Conversations(scaling(agents, size.seed), BLOCK_TOKENS, plan)
    began, ends = process_time(), WARM_S + size.length_s
    before = _Counters(fleet)
    fleet.clock.at(WARM_S, before.take)
    # Millions of objects that stay: looking through them again and again finds nothing.
    gc.collect()
    gc.disable()
    try:
        fleet.run(traffic, ends, 0.0)
    finally:
        gc.enable()
    return _load(size, fleet, before, event_s, process_time() - began)


class _Counters:
    """What had been counted when the window began."""

    def __init__(self, fleet: Fleet) -> None:
        self._fleet = fleet
        self.take()

    def take(self) -> None:
        """Note all counters."""
        fleet = self._fleet
        self.messages = dict(fleet.master.messages)
        self.items = dict(fleet.master.items)
        self.busy_s = fleet.master.busy_s
        self.events = sum(each.cache.stored + each.cache.removed for each in fleet.engines)
        self.out = [_out(host) for host in fleet.hosts]
        self.into = [host.nic_in.total_bytes for host in fleet.hosts]


def _out(host: Any) -> int:
    return int(host.nic_out.total_bytes + host.nic_out_small.total_bytes)


def _load(size: Size, fleet: Fleet, before: _Counters, event_s: float, seconds: float) -> Load:
    now, length_s = _Counters(fleet), size.length_s
    assert fleet.pool is not None, "these fleets have one"
    prefill = size.gpus // GROUP_GPUS
    out = (np.array(now.out[:prefill]) - before.out[:prefill]) * 8e-9 / length_s
    into = (np.array(now.into[:prefill]) - before.into[:prefill]) * 8e-9 / length_s
    busy = (now.busy_s - before.busy_s) / length_s
    blocks = BLOCK_TOKENS // ENGINE_BLOCK_TOKENS
    events_s = (now.events - before.events) * blocks / length_s
    object_bytes = fleet.shape.prices.object_bytes
    usual = fleet.shape.counted_tokens * fleet.shape.groups[0].hardware.kv_bytes

    def rates(after: dict[str, int], first: dict[str, int]) -> dict[str, float]:
        return {kind: (n - first.get(kind, 0)) / length_s for kind, n in after.items()}

    return Load(
        gpus=size.gpus,
        summary=fleet.records.summary(WARM_S, WARM_S + length_s, ended_only=True),
        messages_s=rates(now.messages, before.messages),
        items_s=rates(now.items, before.items),
        master_busy=busy,
        objects=fleet.pool.used // usual,
        index_bytes=fleet.pool.used / usual * object_bytes,
        full_index_bytes=POOL_GB_A_GPU * 1e9 * size.gpus / usual * object_bytes,
        events_s=events_s,
        router_busy=events_s * event_s,
        nic_out_gbit_s=float(out.mean()),
        nic_out_most_gbit_s=float(out.max()),
        nic_in_gbit_s=float(into.mean()),
        requests=len(fleet.records),
        simulated_s=WARM_S + length_s,
        seconds=seconds,
    )


def sizes(
    gpus: Sequence[int], prices: Prices, event_s: float, told: Callable[[str], None], **more: Any
) -> list[Load]:
    """Simulate fleets of several sizes."""
    found = []
    for count in gpus:
        load = run(Size(count, **more), prices, event_s)
        rate = sum(load.messages_s.values())
        told(f"{count:,} GPUs: {load.requests:,} requests in {load.seconds:.0f} s, {rate:,.0f} m/s")
        found.append(load)
    return found
