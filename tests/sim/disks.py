"""The simulation with a disk in every node: offloads and promotions stall, fail and are cut off."""

from __future__ import annotations

from collections.abc import Generator
from dataclasses import dataclass, field

from moonpool.core import messages as m
from tests.sim.fakes import PAGE, Entry
from tests.sim.simulator import Corruption, Node, Process, Shape, Simulation, Task

Session = tuple[int, int, str]
"""The master's epoch, the node's session and its process."""


@dataclass
class DiskOf:
    """What a node's disk holds, which outlives its processes, and its session's work."""

    policy: str
    objects: dict[bytes, tuple[m.Shelved, list[bytes]]] = field(default_factory=dict)
    session: Session = (0, 0, "")
    handle: int = 0
    writes: list[Generator[None, None, bool]] = field(default_factory=list)
    unended: list[int] = field(default_factory=list)


class DiskSimulation(Simulation):
    """One seeded run with disks."""

    def __init__(self, seed: int, shape: Shape) -> None:
        self.disks: dict[str, DiskOf] = {}
        super().__init__(seed, shape)

    def _disk(self, node: Node) -> DiskOf:
        if node.name not in self.disks:
            self.disks[node.name] = DiskOf(m.DISK_POLICIES[len(self.disks) % 3])
        return self.disks[node.name]

    # --- nodes ------------------------------------------------------------------------------------

    def _mount(self, node: Node, process: Process) -> int:
        # As a node does: what it still reads from disk into its segments ends before they are
        # looked through. A process that was killed does not.
        disk = self._disk(node)
        for write in disk.writes:
            if disk.session[2] == process.peer:
                for _ in write:
                    pass
        if disk.session[2] != process.peer:
            disk.unended.clear()
        disk.writes.clear()
        disk.session = (0, 0, process.peer)
        return super()._mount(node, process)

    def _answer(self, node: Node, fences: list[m.FenceWriter], earlier: list[Process]) -> None:
        disk, process = self._disk(node), node.process
        session = (self.master.state.epoch, node.session, process.peer)
        pushes = list(node.inbox)
        super()._answer(node, fences, earlier)
        if disk.session != session:
            self._mount_disk(node, disk)
            disk.session = session
        for push in pushes:
            if isinstance(push, m.Offload):
                self.spawn(self._offload(node, disk, push, session), process, self._pause())
            elif isinstance(push, m.Promote):
                for item in push.items:
                    disk.unended.append(item.generation)
                    task = self._promote(node, disk, item, session)
                    self.spawn(task, process, self._pause())
            elif isinstance(push, m.DropShelved):
                for key, generation in zip(push.keys, push.generations, strict=True):
                    if key in disk.objects and disk.objects[key][0].generation == generation:
                        del disk.objects[key]
        if disk.objects and self.rng.random() < 0.05:
            self._lose(node, disk, self.rng.choice(sorted(disk.objects)))

    def _mount_disk(self, node: Node, disk: DiskOf) -> None:
        info = m.DiskInfo(node.name, 1 << 30, disk.policy, 6 * PAGE, 12 * PAGE)
        newest = max((each.generation for each, _ in disk.objects.values()), default=0)
        reply = self.handle(m.MountDisk(info, newest), node.process.peer)
        disk.handle = reply.handle
        held = [each for each, _ in disk.objects.values()]
        self._shelve(node, disk, held, announced=True)
        if disk.unended:
            self.handle(m.PutRevoke(list(disk.unended)), node.process.peer)
            disk.unended.clear()

    def _shelve(
        self, node: Node, disk: DiskOf, shelved: list[m.Shelved], *, announced: bool = False
    ) -> None:
        reply = self.handle(m.Shelve(disk.handle, shelved), node.process.peer)
        for i in reply.rejected:
            self.count["shelve rejected"] += 1
            del disk.objects[shelved[i].key]
        self.count["announced to disk" if announced else "shelved"] += len(shelved)

    def _lose(self, node: Node, disk: DiskOf, key: bytes) -> None:
        shelved, _ = disk.objects.pop(key)
        self.handle(m.Unshelve(disk.handle, [key], [shelved.generation]), node.process.peer)

    def _is_over(self, node: Node, session: Session) -> bool:
        return (self.master.state.epoch, node.session, node.process.peer) != session

    def _offload(self, node: Node, disk: DiskOf, push: m.Offload, session: Session) -> Task:
        file = self.files[session[0], push.handle]
        for index, generation in zip(push.indexes, push.generations, strict=True):
            entry = file.entries.get(index)
            chunks = None
            if entry is not None and entry.committed and entry.generation == generation:
                pages = -(-entry.size // PAGE)
                chunks = yield from self._stalling(file.read(entry.offset, pages, generation))
            if self._is_over(node, session):
                # Written, but the master has not heard of it: found at the next mount, which waits
                # for what is being written.
                if chunks is not None and entry is not None and disk.session == session:
                    where = entry.size, entry.checksum, generation
                    held = m.Shelved(entry.key, entry.parent, *where)
                    disk.objects[entry.key] = held, chunks
                return
            if chunks is None or entry is None or self.rng.random() < 0.1:
                self.handle(m.Unshelve(disk.handle, [b""], [generation]), node.process.peer)
                continue
            shelved = m.Shelved(entry.key, entry.parent, entry.size, entry.checksum, generation)
            disk.objects[entry.key] = shelved, chunks
            self._shelve(node, disk, [shelved])

    def _promote(self, node: Node, disk: DiskOf, item: m.Promotion, session: Session) -> Task:
        wanted = item.object
        file = self.files[session[0], item.segment]
        shelved, chunks = disk.objects.get(wanted.key, (None, []))
        sealed = False
        if shelved == wanted and self.rng.random() < 0.9 and not self._is_over(node, session):
            self.truth[item.generation] = self.truth[wanted.checksum]
            if self.truth[item.generation] != (wanted.key, chunks):
                raise Corruption(f"{wanted.key!r} on disk is {chunks}")
            entry = Entry(
                wanted.key,
                wanted.parent,
                wanted.size,
                item.capacity,
                item.generation,
                item.offset,
                checksum=wanted.checksum,
            )
            write = file.write(item.index, entry, chunks)
            disk.writes.append(write)
            sealed = yield from self._stalling(write)
        if self._is_over(node, session):
            return
        disk.unended.remove(item.generation)
        request: m.Request = m.PutRevoke([item.generation])
        if sealed:
            request = m.PutEnd([item.generation], [wanted.checksum])
            self.count["promoted"] += 1
        self.handle(request, node.process.peer)

    # --- clients ----------------------------------------------------------------------------------

    def _get(self, client: Process) -> Task:
        first = self.rng.randrange(self.shape.keys)
        keys = [self._key_of(number) for number in range(first, first + self.rng.randint(1, 4))]
        self._leases += 1
        lease = self._leases
        for _ in range(5):
            reply = yield from self._call(client, m.Get(keys, lease, self.rng.random() * 5))
            if reply is None:
                return
            epoch = self.master.state.epoch
            coming = []
            for key, located in zip(keys, reply.objects, strict=True):
                if located.generation:
                    yield from self._read(epoch, key, located)
                elif located.retry_after_s:
                    coming.append(key)
            keys = coming
            if not keys:
                break
        yield from self._call(client, m.Release([lease]))

    def wind_down(self) -> None:
        """As without disks; and then none has anything any more."""
        super().wind_down()
        assert not self.master.state.disks.objects
        until = self.now + 5.0
        while self.now < until:
            self.run(50)
        assert not self.master.state.disks.leaving
        assert not any(each.asked for each in self.master.state.disks.by_handle.values())
        assert not any(each.objects for each in self.disks.values())
