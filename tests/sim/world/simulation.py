"""One seeded run: a pool is started, used, harmed, healed, and looked through."""

from __future__ import annotations

import gc
import hashlib
import sys
from collections import Counter
from dataclasses import dataclass, replace
from typing import Any

from moonpool.core.catching import settle
from moonpool.core.keys import key_of, pack
from tests.sim.world import hub as hubs
from tests.sim.world import sockets, system
from tests.sim.world.cluster import Cluster, Shape, backend_for
from tests.sim.world.election import look_in
from tests.sim.world.faults import Faults
from tests.sim.world.history import History, Removal, Violation
from tests.sim.world.hub import Hub, Process
from tests.sim.world.network import Network
from tests.sim.world.watch import Watching, check
from tests.sim.world.workload import Bounded, Client

KEYS = 12
ACTIVE_S = 3.0
CALM_S = 2.5
"""How long after the last trouble, with all segments there, nothing may fail any more."""
SETTLE_S = 40.0
"""How long a pool may take to be whole after the last trouble."""
COLLECT_EVERY = 50


@dataclass(frozen=True)
class Result:
    """What a run came to."""

    seed: int
    shape: Shape
    error: str
    digest: int
    trace: list[str]
    count: Counter[str]
    virtual_s: float
    events: int


class Simulation:
    """A run. See ``simulate``."""

    def __init__(self, seed: int, shape: Shape | None = None, *, trace: bool = False) -> None:
        self.seed = seed
        self.hub = Hub(seed, trace=trace)
        self.shape = shape or drawn(self.hub)
        self.hub.drift = self.shape.drift
        hubs.use(self.hub)
        self.net = Network(self.hub, self.shape.delay_s)
        sockets.use(self.net)
        self.history = History(self._may_be_undone)
        self.count: Counter[str] = Counter()
        self.clients: list[Client] = []
        self.under_way: dict[Bounded, None] = {}
        self.forced: dict[str, float] = {}
        self.dark: set[str] = set()
        """Sessions of nodes that lost their memory in them."""
        self.keys = KEYS
        self.think_s = self.shape.think_s
        self.hub.pause = self.shape.pause
        made = _digest if self.shape.digests else key_of
        self.packed = {f"k{i}": bytes(made(f"k{i}")) for i in range(KEYS)}
        self.names = {packed: name for name, packed in self.packed.items()}
        self.watching = Watching(self._evicted)
        self.cluster = Cluster(self.hub, self.net, self.shape)
        self.faults = Faults(self)
        self._calm_from = float("inf")
        self._until = 0.0

    # --- what is noted ------------------------------------------------------------------------

    def _evicted(self, key: bytes) -> None:
        name = self.names.get(key)
        if name is not None:
            self.history.lost(name, self.hub.now)
            self.count["evicted"] += 1

    def note_removal(self, key: str, invoked: float) -> None:
        """A removal was acknowledged."""
        self.count["removed"] += 1
        until = max(self.hub.now, self.faults.trouble_until) + 1.0
        self.history.removed(key, invoked, self.hub.now, until)

    def _may_be_undone(self, removal: Removal, later: bool) -> bool:
        """Tell whether a removal is one that the pool does not promise to keep."""
        begun = any(when > removal.invoked for when in self.watching.begun)
        moments = self.faults.spells
        at_once = any(a <= removal.until and removal.invoked <= b for a, b in moments)
        return begun and (later or at_once)

    def note_power_loss(self, node: str) -> None:
        """A node's memory is gone with all that it held alone."""
        state = self.cluster.state()
        for packed, name in self.names.items():
            found = None if state is None else state.state.index.find(packed)
            elsewhere = state is not None and packed in state.state.disks.objects
            if found is not None and state is not None:
                segments = [state.state.segments.by_handle[s.segment] for s in found.slots]
                # The leader may not have noticed yet what happened to another host.
                self.dark |= {each.peer for each in segments if each.info.node == node}
                elsewhere |= any(each.peer not in self.dark for each in segments)
            if not elsewhere:
                self.history.lost(name, self.hub.now)

    def disturbed(self) -> None:
        """Something was amiss until now."""
        self._calm_from = float("inf")

    def is_calm(self) -> bool:
        """Tell whether nothing has been amiss for a while."""
        return self.faults.active == 0 and self.hub.now >= self._calm_from

    # --- the run ------------------------------------------------------------------------------

    def run(self) -> None:
        """Run; raise Violation."""
        rng, hub = self.hub.rng, self.hub
        for machine in (*self.cluster.masters, *self.cluster.nodes):
            self.cluster.start(machine)
        hub.at(0.25, None, self._look)
        self._pass_until(self.cluster.is_whole, SETTLE_S, "the pool never came up")
        begin = self._calm_from = hub.now
        self._until = begin + ACTIVE_S
        for _ in range(self.shape.clients):
            self.start_client()
        drawn_harm = rng.choice((0, 1, 1, 2, 3, 5))
        harm = drawn_harm if self.shape.harm < 0 else self.shape.harm
        self.faults.plan(begin + 0.3, self._until, harm)
        self._pass(self._until)
        self._pass_until(lambda: self.faults.active == 0, SETTLE_S, "the faults never ended")
        self._pass_until(self._all_done, SETTLE_S, "a client never ended")
        self._pass_until(self.is_calm, SETTLE_S, "the pool never was whole again")
        self._last_look()
        self._no_leaks()

    def _pass(self, until: float) -> None:
        self.hub.run(until)
        check(self.watching.findings)
        if self.hub.crashes:
            raise Violation(self.hub.crashes[0])

    def _pass_until(self, ready: Any, seconds: float, why: str) -> None:
        deadline = self.hub.now + seconds
        while not ready():
            if self.hub.now >= deadline:
                raise Violation(why)
            self._pass(self.hub.now + 0.1)

    def _look(self) -> None:
        """Look four times a second whether all is well."""
        now = self.hub.now
        for call in self.under_way:
            if call.late(now):
                raise Violation(f"{call.client.process.name} {call.what}: no end in sight")
        if self.faults.active or not self.cluster.is_whole():
            self._calm_from = float("inf")
        elif self._calm_from == float("inf"):
            self._calm_from = now + CALM_S
        self.hub.at(now + 0.25, None, self._look)

    def start_client(self) -> Client | None:
        """Start a client; on a node's host or on one of its own."""
        if self.hub.now >= self._until:
            return None
        return self._client(self._until)

    def _client(self, until: float) -> Client:
        rng = self.hub.rng
        machines = (*self.cluster.nodes, *self.cluster.nodes, *self.cluster.masters)
        host = rng.choice([*(each.name for each in machines), "far"])
        process = Process(self.hub, f"c{len(self.clients)}", host)
        client = Client(self, process, ("shm", "tcp"))
        self.clients.append(client)
        self.hub.spawn(process, lambda: client.work(until), "client")
        return client

    def _all_done(self) -> bool:
        return all(each.done or not each.process.alive for each in self.clients)

    def _last_look(self) -> None:
        """Everything committed must be there for a new client."""
        now = self.hub.now
        host = self.hub.rng.choice(("n0", "far"))
        client = Client(self, Process(self.hub, f"c{len(self.clients)}", host), ("shm", "tcp"))
        self.clients.append(client)
        self.hub.spawn(client.process, lambda: self._look_through(client), "look")
        self._pass_until(self._all_done, SETTLE_S, "the last reads never ended")
        self.count["due"] = sum(
            self.history.due(key, now) is not None for key in self.names.values()
        )

    def _look_through(self, client: Client) -> None:
        client.begin()
        if self.shape.disks:  # memory may not have room for all at once
            for key in self.packed:
                client.get_key(key)
        else:
            client.get_keys(list(self.packed))
        client.store.close()
        client.done = True

    def _no_leaks(self) -> None:
        """With no client left, only objects take space."""
        self._pass_until(lambda: not self._pending(), SETTLE_S, "puts are never given up")
        state = self.cluster.state()
        if state is None:
            raise Violation("nobody leads")
        settle(state.state)
        state.validate_state()
        inner = state.state
        for segment in inner.segments.by_handle.values():
            used = sum(segment.space.capacity_at(offset) or 0 for offset, _ in segment.owners())
            if segment.space.used_bytes != used:
                raise Violation(f"{segment.name}: {segment.space.used_bytes} used, {used} known")
        if inner.absent or inner.pending_bytes or inner.in_progress:
            raise Violation(f"left behind: {inner.absent} {inner.pending_bytes}")

    def _pending(self) -> int:
        state = self.cluster.state()
        return 1 if state is None else len(state.state.puts)


def drawn(hub: Hub) -> Shape:
    """Draw what the pool is made of."""
    rng = hub.rng
    shape = Shape(
        nodes=rng.choice((1, 2, 2, 3)),
        clients=rng.choice((1, 2, 2, 3)),
        boards=rng.random() < 0.5,
        digests=rng.random() < 0.5,
        disks=rng.random() < 0.15,
        policy=rng.choice(("on-evict", "write-through", "selective")),
        drift=rng.choice((0.0, 0.02, 0.05)),
        delay_s=rng.choice((0.0005, 0.004, 0.03)),
        sizes=rng.choice((Shape.sizes, (60, 9000, 30_000), (70_000, 150_000, 260_000))),
        pause=rng.choice((0.0, 0.02, 0.1)),
        think_s=rng.choice((0.08, 0.2, 0.4)),
    )
    if rng.random() < 0.3:
        store = rng.choice(("", "etcd://etcd:2379"))
        shape = replace(shape, masters=rng.choice((2, 3)), store=store)
    return shape


def _digest(name: str) -> bytes:
    return pack(hashlib.blake2b(name.encode(), digest_size=16).digest(), b"fingerprint")


_runs = 0


def simulate(seed: int, shape: Shape | None = None, *, trace: bool = False) -> Result:
    """Run a seed; the result has the first thing that was wrong, or an empty ``error``."""
    global _runs
    before = gc.isenabled()
    gc.disable()  # what is collected late must not have an effect on another run
    hook, sys.unraisablehook = sys.unraisablehook, lambda _what: None
    try:
        with system.exchanged():
            sim = Simulation(seed, shape, trace=trace)
            error = ""
            system.bind(
                lambda: backend_for(sim.cluster),
                lambda limit_s: look_in(sim.cluster.register, limit_s),
                sim.cluster.home,
            )
            with sim.watching.hooked():
                try:
                    sim.run()
                except Violation as violation:
                    error = str(violation)
                except AssertionError as violation:
                    error = f"assertion: {violation!r}"
                finally:
                    sim.hub.end()
                    sim.cluster.close()
        result = Result(
            seed,
            sim.shape,
            error,
            sim.hub.noted,
            sim.hub.trace,
            sim.count,
            sim.hub.now,
            sim.hub.events,
        )
        _runs += 1
        if _runs % COLLECT_EVERY == 0:
            gc.collect()
        return result
    finally:
        sys.unraisablehook = hook
        if before:
            gc.enable()
