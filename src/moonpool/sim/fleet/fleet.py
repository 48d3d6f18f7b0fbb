"""A fleet under a virtual clock: what happens to a request, from its arrival to its last token."""

from __future__ import annotations

from collections import Counter, deque
from collections.abc import Callable
from typing import Protocol

from moonpool.sim.events import Clock
from moonpool.sim.fleet.caches import BlockCache, RunCache
from moonpool.sim.fleet.engine import Engine, Sequence
from moonpool.sim.fleet.host import Host
from moonpool.sim.fleet.links import all_of
from moonpool.sim.fleet.master import MasterModel
from moonpool.sim.fleet.pool import FleetPool, Held
from moonpool.sim.fleet.records import Records
from moonpool.sim.fleet.request import NOTHING, Request
from moonpool.sim.fleet.router import FleetRouter
from moonpool.sim.fleet.shape import FleetShape, Group

TICK_S = 1.0
DRAIN_S = 1e7


class Traffic(Protocol):
    """Sends requests."""

    def start(self, clock: Clock, submit: Callable[[Request], None], until_s: float) -> None:
        """Send requests from now on, none after ``until_s``."""


class Fleet:
    """All of it, ready to run once."""

    def __init__(self, shape: FleetShape) -> None:
        self.shape, self.clock, self.records = shape, Clock(), Records()
        self.master = MasterModel(shape.prices, shape.shards, queues=shape.master_queues)
        self.hosts: list[Host] = []
        self.engines: list[Engine] = []
        self.handed_bytes = 0
        self._short_of_room: dict[int, deque[Callable[[], bool]]] = {}
        trays = [tray for group in shape.groups for tray in _trays(group)]
        block_bytes = shape.block_tokens * shape.groups[0].hardware.kv_bytes
        self.pool = FleetPool(shape.pool, trays, block_bytes) if shape.pool else None
        self._block_bytes = block_bytes
        serving = shape.both or shape.prefill
        assert serving is not None, "a shape has one of them"
        self._front = self._routed(serving, shape.policy, decodes=shape.both is not None)
        self._decoders = (
            self._routed(shape.decode, _decode_policy(shape.policy), decodes=True)
            if shape.decode is not None and shape.both is None
            else None
        )

    def run(self, traffic: Traffic, until_s: float = DRAIN_S, drain_s: float = DRAIN_S) -> Records:
        """Run traffic to its end, or up to ``until_s`` and ``drain_s`` more."""
        traffic.start(self.clock, self.submit, until_s)
        if self.pool is not None:
            self._tick()
        self.clock.run(until_s + drain_s)
        return self.records

    def _tick(self) -> None:
        assert self.pool is not None, "only with a pool"
        self.pool.tick()
        if self.clock.waiting:
            self.clock.after(TICK_S, self._tick)

    def _routed(self, group: Group, policy: str, *, decodes: bool) -> FleetRouter:
        shape, clock = self.shape, self.clock
        router = FleetRouter(clock, policy, shape.block_tokens, self.pool)
        first = len(self.hosts)
        for tray in _trays(group):
            self.hosts.append(Host(clock, shape.nic_gb_s * tray, shape.ssd_gb_s * tray))
        prefills = decodes == (self.shape.both is not None)
        for number in range(group.engines):
            host = first + int(number * min(1.0, group.hosts_each))

            def make(changed: Callable[[bool, list[int]], None], host: int = host) -> Engine:
                blocks = group.hardware.hbm_tokens // shape.block_tokens
                runs = shape.runs and not router.needs_blocks
                told = changed if router.needs_blocks else _untold
                return Engine(
                    clock,
                    group.hardware,
                    RunCache(blocks) if runs else BlockCache(blocks, told),
                    shape.block_tokens,
                    len(self.engines),
                    host,
                    lookup=self._lookup if self.pool is not None and prefills else None,
                    load=self._load if self.pool is not None and prefills else None,
                    prefilled=self._prefilled,
                    decodes=decodes,
                    crowd=self.hosts[host].crowd,
                )

            self.engines.append(router.add(make, host))
            self.hosts[host].add_way(self.engines[-1].place, group.hardware.local_gb_s)
        return router

    def submit(self, request: Request) -> None:
        """Take a request."""
        request.arrived_s = self.clock.now_s
        engine, ticket, first = self._front.choose(request, request.engine)
        request.first = first
        after = request.then

        def then() -> None:
            ticket.end()
            self.records.add(request)
            request.keys = []
            request.first = request.then = NOTHING  # nothing is left that refers to itself
            after()

        request.then = then
        engine.submit(request)

    def _objects(self, blocks: int) -> int:
        return -(-blocks * self.shape.block_tokens // self.shape.counted_tokens)

    def _lookup(self, request: Request) -> float:
        return self.master.ask(self.clock.now_s, "match", self._objects(len(request.keys)))

    def _load(self, engine: Engine, sequence: Sequence, back: Callable[[int], None]) -> bool:
        pool = self.pool
        assert pool is not None, "loads come from a pool"
        keys = sequence.request.keys
        found = pool.match(keys)
        if found <= sequence.found:
            return False
        held = pool.hold(keys, sequence.found, found)
        now, objects = self.clock.now_s, self._objects(found - sequence.found)
        calls = -(-sum(held.hosts.values()) // self.shape.call_bytes)
        answered = self.master.ask(self.master.ask(now, "hold", objects), "get", objects, calls)

        def over() -> None:
            pool.release(held)
            # The plan's lease, and one of each call.
            self.master.ask(self.clock.now_s, "release", objects, 1 + calls)
            back(found)

        self.clock.at(answered, lambda: self._fetch(engine, held, over))
        return True

    def _fetch(self, engine: Engine, held: Held, over: Callable[[], None]) -> None:
        """Move what a load needs: from disks, over the network, into the engine's memory."""
        hosts, clock, copies = self.hosts, self.clock, self.shape.load_copies
        total = sum(held.hosts.values())
        own = hosts[engine.host]
        far = {host: size for host, size in held.hosts.items() if host != engine.host}
        flows = [(own.ways_in[engine.place], total)]
        if far:
            flows.append((own.nic_in, sum(far.values()) * copies))
        flows += [(hosts[host].disk, size) for host, size in held.disks.items()]
        late_s = clock.now_s
        for host, size in far.items():
            if size * Host.SMALL_PARTS > total:
                flows.append((hosts[host].nic_out, size * copies))
            else:
                late_s = max(late_s, hosts[host].nic_out_small.send(clock.now_s, size * copies))
        latency = engine.hardware.load_latency_s

        def there() -> None:
            clock.after(latency, over)

        done = all_of(len(flows) + 1, there)
        clock.at(late_s, done)
        for link, size in flows:
            link.send(size, done)

    def _prefilled(self, engine: Engine, sequence: Sequence) -> None:
        if self.pool is not None:
            self._save(engine, sequence.request)
        if self._decoders is not None:
            self._hand_over(engine, sequence)

    def _save(self, engine: Engine, request: Request) -> None:
        pool = self.pool
        assert pool is not None, "saves go to a pool"
        keys = request.keys
        nbytes = pool.missing(keys)
        if not nbytes:
            return
        objects = self._objects(nbytes // self._block_bytes)
        granted = self.master.ask(self.clock.now_s, "put_start", objects)

        def over() -> None:
            self.master.ask(self.clock.now_s, "put_end", objects)
            pool.put(keys, engine.host)

        way = self.hosts[engine.host].ways_out[engine.place]
        self.clock.at(granted, lambda: way.send(nbytes, over))

    def _hand_over(self, engine: Engine, sequence: Sequence) -> None:
        """Give a computed prompt to an engine that decodes, as soon as that has room."""
        assert self._decoders is not None, "there are such engines"
        request = sequence.request
        decoder, ticket, first = self._decoders.choose(request)
        request.decoder = decoder.place
        waiting = self._short_of_room.setdefault(decoder.place, deque())

        def try_now() -> bool:
            placed = decoder.room(request, computed=True)
            if placed is None:
                return False
            self._move(engine, decoder, sequence, placed)
            return True

        told, after = request.first, request.then

        def seen() -> None:
            told()
            first()

        def then() -> None:
            ticket.end()
            while waiting and waiting[0]():
                waiting.popleft()
            after()

        request.first, request.then = seen, then
        if waiting or not try_now():
            waiting.append(try_now)

    def _move(self, engine: Engine, decoder: Engine, sequence: Sequence, placed: Sequence) -> None:
        request = sequence.request
        nbytes = (request.prompt_tokens - placed.done) * decoder.hardware.kv_bytes
        self.handed_bytes += nbytes

        def over() -> None:
            engine.give(sequence)
            decoder.join(placed)

        if engine.host == decoder.host:
            self.hosts[decoder.host].ways_in[decoder.place].send(nbytes, over)
            return
        latency = decoder.hardware.load_latency_s

        def there() -> None:
            self.clock.after(latency, over)

        done = all_of(2, there)
        self.hosts[engine.host].nic_out.send(nbytes, done)
        self.hosts[decoder.host].nic_in.send(nbytes, done)

    def traffic_of_hosts(self) -> Counter[str]:
        """Return the bytes that went through all hosts' ways."""
        found: Counter[str] = Counter()
        for host in self.hosts:
            found += host.total_bytes()
        return found


def _untold(came: bool, keys: list[int]) -> None:
    """Tell nobody of blocks."""


def _trays(group: Group) -> list[float]:
    """Return how many hosts each host of a group stands for: an engine may fill several."""
    if group.hosts_each >= 1:
        return [group.hosts_each] * group.engines
    return [1.0] * -(-int(group.engines * group.hosts_each * 1_000_000) // 1_000_000)


def _decode_policy(policy: str) -> str:
    """Return how decoding engines are chosen: what is warm counts where prompts are computed."""
    return policy if policy in ("round_robin", "session") else "least_loaded"
