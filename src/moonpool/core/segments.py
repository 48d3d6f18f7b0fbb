"""The mounted segments, and which of them a put should go to."""

from __future__ import annotations

from heapq import heapify, heappop, heappush

import msgspec

from moonpool.core.allocator import SlabAllocator
from moonpool.core.index import Object
from moonpool.core.messages import SegmentInfo, Slot
from moonpool.core.slots import SlotTable


class Put(msgspec.Struct, eq=False):
    """A put that is not ended, or whose slots a late writer may still touch.

    ``slots`` become the object's replicas; ``held`` are only kept from others until the writer
    has ended; ``absent`` counts slots on segments that are away. A ``discarded`` put can no
    longer be ended; an ``orphaned`` one's client is gone.
    """

    generation: int
    key: bytes
    size: int
    parent: bytes
    client: str
    capacity: int
    started: float
    pinned: bool
    slots: list[Slot]
    held: list[Slot] = []
    absent: int = 0
    discarded: bool = False
    orphaned: bool = False
    resolved: bool = False
    soft_pin_s: float = 0.0
    group: bytes = b""


class Segment:
    """A mounted segment: its space with what lies at each offset, and its table."""

    __slots__ = (
        "before",
        "copies",
        "draining",
        "handle",
        "info",
        "peer",
        "ready",
        "space",
        "table",
    )

    def __init__(self, info: SegmentInfo, peer: str) -> None:
        self.info = info
        self.handle = info.handle
        self.peer = peer
        self.space = SlabAllocator(info.data_bytes)
        self.table = SlotTable(info.slots)
        self.ready = False
        self.copies = False
        """Whether its node can fetch from others."""
        self.draining = False
        self.before = ""
        """The session from which it was taken, if another had it."""

    @property
    def host(self) -> str:
        """What it shares its fate with; a node that cannot tell stands for itself."""
        return self.info.host or self.info.node

    @property
    def name(self) -> tuple[str, str]:
        """Its node's name and its own: what it is called when it comes back."""
        return self.info.node, self.info.name

    def free_ratio(self) -> float:
        """Return the share of space or of table entries that is free, whichever is less."""
        space, table = self.space, self.table
        return min(1 - space.filled_bytes / space.total_bytes, 1 - table.used / table.count)

    def take(self, size: int) -> Slot | None:
        """Take space and a table entry; the caller names the owner."""
        index = self.table.take()
        if index is None:
            return None
        offset = self.space.allocate(size)
        if offset is None:
            self.table.give(index)
            return None
        return Slot(self.handle, index, offset)

    def reserve(self, index: int, offset: int, capacity: int) -> Slot | None:
        """Take this very place."""
        if not self.table.reserve(index):
            return None
        if not self.space.reserve(offset, capacity):
            self.table.give(index)
            return None
        return Slot(self.handle, index, offset)

    def release(self, slot: Slot) -> int:
        """Give a place back; return its bytes."""
        self.table.give(slot.index)
        return self.space.free(slot.offset)

    def own(self, offset: int, owner: Object | Put) -> None:
        """Say whose a place is."""
        self.space.own(offset, owner)

    def owner(self, offset: int) -> Object | Put | None:
        """Return whose a place is; None if it is free."""
        found: Object | Put | None = self.space.owner(offset)
        return found

    def found_at(self, offset: int) -> Object | Put | None:
        """Return whose a place is; None also for an offset at which nothing can begin."""
        try:
            return self.owner(offset) if offset >= 0 else None
        except (ValueError, IndexError):
            return None

    def owners(self) -> list[tuple[int, Object | Put]]:
        """Return (offset, owner) of everything in it, by offset."""
        return [(offset, owner) for offset, _, owner in self.space.allocated()]

    def is_called(self, name: str) -> bool:
        """Tell whether a put that prefers ``name`` means this segment."""
        return name in (self.info.node, self.info.host, self.info.name)


class Segments:
    """All mounted segments. A handle is never used twice."""

    def __init__(self) -> None:
        self.by_handle: dict[int, Segment] = {}
        self.by_name: dict[tuple[str, str], Segment] = {}
        self._handles = 0

    def mount(self, info: SegmentInfo, peer: str) -> Segment:
        """Add a segment whose name is free."""
        self._handles += 1
        segment = Segment(msgspec.structs.replace(info, handle=self._handles), peer)
        self.by_handle[segment.handle] = segment
        self.by_name[segment.name] = segment
        return segment

    def unmount(self, segment: Segment) -> None:
        """Forget a segment."""
        del self.by_handle[segment.handle]
        del self.by_name[segment.name]

    def of_peer(self, peer: str) -> list[Segment]:
        """Return the segments that a node's process has mounted."""
        return [each for each in self.by_handle.values() if each.peer == peer]

    def of_node(self, node: str) -> list[Segment]:
        """Return the segments of the node of this name."""
        return [each for each in self.by_handle.values() if each.info.node == node]

    def ready(self) -> list[Segment]:
        """Return the segments that have announced all they hold."""
        return [each for each in self.by_handle.values() if each.ready]

    def open(self) -> list[Segment]:
        """Return the segments that take puts."""
        return [each for each in self.by_handle.values() if each.ready and not each.draining]

    def total_bytes(self) -> int:
        """Return the space of the ready segments together."""
        return sum(each.space.total_bytes for each in self.ready())

    def fill_ratio(self, less_bytes: int = 0) -> float:
        """Return how full the open segments are together, by space (``less_bytes`` of it do not
        count) or by table entries."""
        used = total = entries_used = entries = 0
        for each in self.open():
            used += each.space.filled_bytes
            total += each.space.total_bytes
            entries_used += each.table.used
            entries += each.table.count
        return max((used - less_bytes) / total, entries_used / entries) if total else 0.0


class Placement:
    """Chooses segments for the puts of one request: preferred ones first, then the emptiest."""

    def __init__(self, segments: list[Segment], preferred: str) -> None:
        self.segments = segments
        self._preferred = preferred
        self._single = segments[0] if len(segments) == 1 else None
        self._heap = [self._entry(each) for each in segments]
        heapify(self._heap)

    def _entry(self, segment: Segment) -> tuple[bool, float, int, Segment]:
        shunned = bool(self._preferred) and not segment.is_called(self._preferred)
        return shunned, -segment.free_ratio(), segment.handle, segment

    def take(self, size: int, replicas: int) -> tuple[int, list[Slot]]:
        """Take up to ``replicas`` places on as many hosts; return (capacity, places)."""
        if self._single is not None:
            slot = self._single.take(size)
            return self._single.space.capacity_of(size), [] if slot is None else [slot]
        capacity = 0
        slots: list[Slot] = []
        tried: list[Segment] = []
        hosts: set[str] = set()
        while self._heap and len(slots) < replicas:
            segment = heappop(self._heap)[3]
            tried.append(segment)
            if segment.host in hosts:
                continue
            # All replicas are described by one capacity; very small segments cut it otherwise.
            if not slots or segment.space.capacity_of(size) == capacity:
                slot = segment.take(size)
                if slot is not None:
                    capacity = segment.space.capacity_of(size)
                    slots.append(slot)
                    hosts.add(segment.host)
        for segment in tried:
            heappush(self._heap, self._entry(segment))
        return capacity, slots

    def fits(self, size: int) -> bool:
        """Tell whether any segment could hold ``size`` bytes if it were empty."""
        return any(each.space.fits(size) for each in self.segments)
