"""The simulation with nodes that fetch from one another, and are drained and used again."""

from __future__ import annotations

from collections.abc import Generator
from dataclasses import dataclass, field, replace

from moonpool.core import messages as m
from tests.sim.fakes import PAGE, Entry
from tests.sim.simulator import CONFIG, Corruption, Node, Process, Shape, Simulation, Task

Session = tuple[int, int, str]
"""The master's epoch, the node's session and its process."""


@dataclass
class Work:
    """What a node's process fetches, and the puts that it has not ended."""

    peer: str = ""
    writes: list[Generator[None, None, bool]] = field(default_factory=list)
    unended: list[int] = field(default_factory=list)


class CopySimulation(Simulation):
    """One seeded run with copies. ``drain`` is the chance that a node's drain begins or ends."""

    config = replace(CONFIG, hot_reads_per_s=0.1, copy_rate=1e6, repair_after_s=0.5)
    copies = True
    drain = 0.004
    failing = 0.1

    def __init__(self, seed: int, shape: Shape) -> None:
        self.work: dict[str, Work] = {}
        super().__init__(seed, shape)
        self.spawn(self._drains(), None)

    def _mount(self, node: Node, process: Process) -> int:
        # As a node does: what it still fetches into its segments ends before they are looked
        # through. A process that was killed does not.
        work = self.work.setdefault(node.name, Work())
        if work.peer == process.peer:
            for write in work.writes:
                for _ in write:
                    pass
            if work.unended:
                self.handle(m.PutRevoke(list(work.unended)), process.peer)
        self.work[node.name] = Work(process.peer)
        return super()._mount(node, process)

    def _answer(self, node: Node, fences: list[m.FenceWriter], earlier: list[Process]) -> None:
        pushes = list(node.inbox)
        super()._answer(node, fences, earlier)
        session = (self.master.state.epoch, node.session, node.process.peer)
        for push in pushes:
            if isinstance(push, m.SetDraining):
                node.draining = push.on
            elif isinstance(push, m.Copy):
                for item in push.items:
                    self.work[node.name].unended.append(item.generation)
                    task = self._copy(node, item, session)
                    self.spawn(task, node.process, self._pause())

    def _is_over(self, node: Node, session: Session) -> bool:
        return (self.master.state.epoch, node.session, node.process.peer) != session

    def _copy(self, node: Node, item: m.CopyItem, session: Session) -> Task:
        work = self.work[node.name]
        source = next(each for each in self.nodes if each.name == item.address)
        pages = -(-item.size // PAGE)
        read = source.file.read(item.source_offset, pages, item.source_generation)
        chunks = yield from self._stalling(read)
        lives = source.process.alive and self.rng.random() >= self.failing
        sealed = False
        if chunks is not None and lives and not self._is_over(node, session):
            self.truth[item.generation] = self.truth[item.source_generation]
            if self.truth[item.generation] != (item.key, chunks):
                raise Corruption(f"{item.key!r} as {item}: fetched {chunks}")
            entry = Entry(
                item.key,
                item.parent,
                item.size,
                item.capacity,
                item.generation,
                item.offset,
                checksum=item.checksum,
            )
            write = self.files[session[0], item.segment].write(item.index, entry, chunks)
            work.writes.append(write)
            sealed = yield from self._stalling(write)
        if self._is_over(node, session):
            return
        work.unended.remove(item.generation)
        request: m.Request = m.PutRevoke([item.generation])
        if sealed:
            request = m.PutEnd([item.generation], [item.checksum])
        reply = self.handle(request, node.process.peer)
        self.count[f"copy {type(request).__name__} {reply.codes[0]}"] += 1

    def _drains(self) -> Task:
        while True:
            yield 0.05
            for node in self.nodes:
                if self.rng.random() < self.drain:
                    on = node.name not in self.master.state.copies.drains
                    self.handle(m.Drain(node.name, on), "operator")

    def wind_down(self) -> None:
        """As without copies; and then nothing is being copied or drained any more."""
        self.drain = 0.0
        self.failing = 0.0
        for node in self.nodes:
            self.handle(m.Drain(node.name, False), "operator")
            node.draining = False
        self.master.state.copies.said.update({node.name: False for node in self.nodes})
        super().wind_down()
        copies = self.master.state.copies
        assert not copies.under_way
        assert not copies.thin
        assert not copies.drains
        assert not copies.retiring
