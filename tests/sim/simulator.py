"""A pool of many nodes and clients in one process, under a virtual clock and a seed.

Clients write and read through the page-owner protocol of tests/sim/fakes.py and stall anywhere;
processes crash, sessions break, messages are lost, nodes and masters restart. Whatever happens,
a read must return the bytes that were put under its key in the generation it was told, or miss.
"""

from __future__ import annotations

import random
from collections import Counter
from collections.abc import Generator
from dataclasses import dataclass, field
from heapq import heappop, heappush
from typing import Any, TypeVar, cast

from moonpool.core import messages as m
from moonpool.core.keys import pack
from moonpool.core.master import MasterConfig, MasterState
from tests.sim.fakes import PAGE, Entry, File

T = TypeVar("T")
Task = Generator[float, None, None]
Call = Generator[float, None, Any]

CONFIG = MasterConfig(put_timeout_s=1.0, lease_s_max=20.0, evictions_per_tick_max=64)


class Corruption(AssertionError):
    """A read returned what was never put under its key."""


@dataclass(frozen=True)
class Shape:
    """How large a simulation is and what goes wrong in it (chances per event, times in s)."""

    nodes: int = 20
    clients: int = 8
    threads: int = 3
    keys: int = 120
    pages: int = 8
    slots: int = 16
    steps: int = 4000
    stall: float = 0.03
    stall_s: float = 5.0
    lost: float = 0.01
    client_crash: float = 0.003
    node_crash: float = 0.002
    node_blink: float = 0.002
    master_crash: float = 0.002


@dataclass(eq=False)
class Process:
    """A client or node process; a restart is another one."""

    peer: str
    alive: bool = True


@dataclass(eq=False)
class Node:
    """A node's name and file, and the process that serves it now."""

    name: str
    file: File
    process: Process
    session: int = 0
    draining: bool = False
    inbox: list[m.Push] = field(default_factory=list)


class Simulation:
    """One seeded run."""

    config = CONFIG
    copies = False
    """Whether nodes can fetch from one another."""

    def __init__(self, seed: int, shape: Shape) -> None:
        self.rng = random.Random(seed)
        self.shape = shape
        self.now = 0.0
        self.count: Counter[str] = Counter()
        self.truth: dict[int, tuple[bytes, list[bytes]]] = {}
        self._heap: list[tuple[float, int, Process | None, Task]] = []
        self._pushed = 0
        self._names = 0
        self._leases = 0
        self.master = MasterState(self.config, 1)
        self.files: dict[tuple[int, int], File] = {}
        self.nodes = [
            Node(f"n{i}", File(shape.pages, shape.slots), self._process("n"))
            for i in range(shape.nodes)
        ]
        self.clients = [self._process("c") for _ in range(shape.clients)]
        for node in self.nodes:
            self.spawn(self._serve(node, node.process), node.process)
        for client in self.clients:
            self._start_threads(client)
        self.spawn(self._tick(), None)
        self.spawn(self._fate(), None)

    # --- scheduling -------------------------------------------------------------------------------

    def spawn(self, task: Task, process: Process | None, delay: float = 0.0) -> None:
        self._pushed += 1
        heappush(self._heap, (self.now + delay, self._pushed, process, task))

    def run(self, steps: int) -> None:
        for step in range(steps):
            if not self._heap:
                return
            self.now, _, process, task = heappop(self._heap)
            if process is not None and not process.alive:
                task.close()
                continue
            try:
                delay = next(task)
            except StopIteration:
                continue
            self.spawn(task, process, delay)
            if step % 100 == 0:
                self.master.validate_state()

    def handle(self, request: Any, peer: str) -> Any:
        outcome = self.master.handle(request, peer, self.now)
        for target, push in outcome.pushes:
            for node in self.nodes:
                if node.process.peer == target:
                    node.inbox.append(push)
        return outcome.reply

    def _process(self, kind: str) -> Process:
        self._names += 1
        return Process(f"{kind}{self._names}")

    def _pause(self) -> float:
        if self.rng.random() < self.shape.stall:
            return self.rng.random() * self.shape.stall_s
        return self.rng.random() * 0.1

    # --- nodes ------------------------------------------------------------------------------------

    def _serve(self, node: Node, process: Process) -> Task:
        """A node's process: mount, announce, answer pushes; start over when the session breaks."""
        while True:
            epoch, session = self.master.state.epoch, node.session
            node.inbox.clear()
            handle = self._mount(node, process)
            # With one that is dead: even if nobody else was there, it is to be said once.
            earlier = [Process("", alive=False), *self.clients]
            found = node.file.scan()
            while True:
                yield self.rng.random() * 0.05
                if (self.master.state.epoch, node.session) != (epoch, session):
                    break
                piece, found = found[:4], found[4:]
                reply = self.handle(m.Announce(handle, piece, not found), process.peer)
                for index in reply.rejected:
                    node.file.drop(index)
                if not found:
                    break
            fences: list[m.FenceWriter] = []
            while (self.master.state.epoch, node.session) == (epoch, session):
                self._answer(node, fences, earlier)
                yield self.rng.random() * 0.5

    def _mount(self, node: Node, process: Process) -> int:
        file = node.file
        name, size = node.name, file.page_count * PAGE
        info = m.SegmentInfo("s", name, name, name, f"/{name}", size, file.slots)
        known = self.copies, node.draining
        reply = self.handle(m.Mount(info, file.generation_max(), *known), process.peer)
        file.epoch = reply.epoch
        self.files[reply.epoch, reply.handle] = file
        return int(reply.handle)

    def _answer(self, node: Node, fences: list[m.FenceWriter], earlier: list[Process]) -> None:
        for push in node.inbox:
            if isinstance(push, m.FenceWriter):
                fences.append(push)
            elif isinstance(push, m.DropSlots):
                for index, generation in zip(push.indexes, push.generations, strict=True):
                    node.file.drop(index, generation)
        node.inbox.clear()
        alive = {each.peer for each in self.clients if each.alive}
        for fence in list(fences):
            if fence.client not in alive:
                fences.remove(fence)
                self.handle(m.WriterGone(fence.client, fence.generation), node.process.peer)
        # An empty list means that it has been said.
        if earlier and not any(each.alive for each in earlier):
            earlier.clear()
            self.handle(m.WriterGone(""), node.process.peer)

    def _crash_node(self, node: Node, *, process: bool) -> None:
        self.count["node_crashes"] += 1
        node.session += 1
        self.handle(m.PeerGone(node.process.peer, "node"), "")
        if process:
            node.process.alive = False
            node.process = self._process("n")
            self.spawn(self._serve(node, node.process), node.process, self.rng.random() * 3)

    # --- clients ----------------------------------------------------------------------------------

    def _start_threads(self, client: Process) -> None:
        for _ in range(self.shape.threads):
            self.spawn(self._thread(client), client, self.rng.random())

    def _thread(self, client: Process) -> Task:
        while True:
            yield self._pause()
            chance = self.rng.random()
            if chance < 0.5:
                yield from self._put(client)
            elif chance < 0.95:
                yield from self._get(client)
            else:
                request = m.Remove([self._key()], self.rng.random() < 0.5)
                yield from self._call(client, request)

    def _key(self) -> bytes:
        return self._key_of(self.rng.randrange(self.shape.keys))

    @staticmethod
    def _key_of(number: int) -> bytes:
        return pack(b"k%d" % number)

    def _call(self, client: Process, request: Any) -> Call:
        """Ask the master; None if the session broke, before or after it was asked."""
        epoch = self.master.state.epoch
        yield self._pause()
        if self.master.state.epoch != epoch or self._is_lost(client):
            return None
        reply = self.handle(request, client.peer)
        yield self._pause()
        if self.master.state.epoch != epoch or self._is_lost(client):
            return None
        return reply

    def _is_lost(self, client: Process) -> bool:
        if self.rng.random() >= self.shape.lost:
            return False
        self.count["lost"] += 1
        self.handle(m.PeerGone(client.peer, "client"), "")
        return True

    def _put(self, client: Process) -> Task:
        first = self.rng.randrange(self.shape.keys)
        items = []
        for number in range(first, min(first + self.rng.randint(1, 4), self.shape.keys)):
            parent = self._key_of(number - 1) if number % 8 else b""
            items.append(m.PutItem(self._key_of(number), self.rng.randint(1, 3 * PAGE), parent))
        replicas = self.rng.choice((1, 1, 2))
        reply = yield from self._call(client, m.PutStart(items, replicas))
        if reply is None:
            return
        epoch = self.master.state.epoch
        ended: list[int] = []
        revoked: list[int] = []
        for item, grant in zip(items, reply.grants, strict=True):
            self.count[f"grant {grant.code}"] += 1
            if grant.code == 0:
                written = yield from self._write(epoch, item, grant)
                (ended if written and self.rng.random() < 0.95 else revoked).append(
                    grant.generation
                )
        # What a put writes differs from what any other does, so its generation is its checksum.
        for request in (m.PutEnd(ended, ended), m.PutRevoke(revoked)):
            reply = None
            while request.generations and reply is None:
                reply = yield from self._call(client, request)
            for code in reply.codes if reply else ():
                self.count[f"{type(request).__name__} {code}"] += 1

    def _write(self, epoch: int, item: m.PutItem, grant: m.Grant) -> Call:
        generation = grant.generation
        pages = -(-item.size // PAGE)
        chunks = [b"%s %d %d" % (item.key, generation, page) for page in range(pages)]
        self.truth[generation] = (item.key, chunks)
        written = True
        for slot in grant.slots:
            file = self.files[epoch, slot.segment]
            entry = Entry(
                item.key,
                item.parent,
                item.size,
                grant.capacity,
                generation,
                slot.offset,
                checksum=generation,
            )
            written &= yield from self._stalling(file.write(slot.index, entry, chunks))
        return written

    def _stalling(self, steps: Generator[None, None, T]) -> Generator[float, None, T]:
        """Take memory accesses one by one, with a pause between any two."""
        while True:
            try:
                next(steps)
            except StopIteration as stop:
                return cast("T", stop.value)
            yield self._pause()

    def _get(self, client: Process) -> Task:
        first = self.rng.randrange(self.shape.keys)
        keys = [self._key_of(number) for number in range(first, first + self.rng.randint(1, 4))]
        self._leases += 1
        lease = self._leases
        reply = yield from self._call(client, m.Get(keys, lease, self.rng.random() * 5))
        if reply is None:
            return
        epoch = self.master.state.epoch
        for key, located in zip(keys, reply.objects, strict=True):
            if located.generation:
                yield from self._read(epoch, key, located)
        yield from self._call(client, m.Release([lease]))

    def _read(self, epoch: int, key: bytes, located: m.Located) -> Task:
        slot = self.rng.choice(located.slots)
        file = self.files[epoch, slot.segment]
        pages = -(-located.size // PAGE)
        generation = slot.generation or located.generation
        chunks = yield from self._stalling(file.read(slot.offset, pages, generation))
        if chunks is None:
            self.count["read misses"] += 1
        elif self.truth.get(generation) == (key, chunks):
            self.count["reads"] += 1
        else:
            raise Corruption(f"{key!r} as {located}: read {chunks}")

    # --- fate -------------------------------------------------------------------------------------

    def _tick(self) -> Task:
        while True:
            self.handle(m.Tick(), "")
            yield 0.2

    def _fate(self) -> Task:
        while True:
            yield 0.05
            shape = self.shape
            for i, client in enumerate(self.clients):
                if self.rng.random() < shape.client_crash:
                    self.clients[i] = self._process("c")
                    self._crash_client(client)
                    self._start_threads(self.clients[i])
            for node in self.nodes:
                if self.rng.random() < shape.node_crash:
                    self._crash_node(node, process=True)
                elif self.rng.random() < shape.node_blink:
                    self._crash_node(node, process=False)
            if self.rng.random() < shape.master_crash:
                self.count["master_crashes"] += 1
                self.master = MasterState(self.config, self.master.state.epoch + 1)

    def _crash_client(self, client: Process) -> None:
        self.count["client_crashes"] += 1
        client.alive = False
        self.spawn(self._notice(client), None, self.rng.random())

    def _notice(self, client: Process) -> Task:
        self.handle(m.PeerGone(client.peer, "client"), "")
        yield 0.0

    def wind_down(self) -> None:
        """End all clients, let the nodes come back, and check that no space is lost."""
        self.shape = Shape(
            stall=0, lost=0, client_crash=0, node_crash=0, node_blink=0, master_crash=0
        )
        for client in self.clients:
            self._crash_client(client)
        self.clients = []
        until = self.now + 20.0
        while self.now < until:
            self.run(50)
        self.master.validate_state()
        state = self.master.state
        self.count.update(state.counters)
        assert len(state.segments.ready()) == len(self.nodes)
        assert not state.puts, f"{len(state.puts)} puts of clients long gone"
        assert not state.leases.count
        assert not state.absent
        self.handle(m.RemoveAll(force=True), "")
        self.master.validate_state()
        assert state.segments.fill_ratio() == 0
        assert all(each.table.used == 0 for each in state.segments.ready())
