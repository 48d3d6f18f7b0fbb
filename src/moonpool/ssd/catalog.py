"""What is where on the disk, and which extent goes when room is short: no I/O, no clock.

Extents are written from front to back and never changed; room comes back by whole extents. The
one whose bytes were used least recently goes, with all that is in it.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, field

from moonpool.ssd.records import Record, padded

EXTENTS_MIN = 4


@dataclass(slots=True, eq=False)
class Extent:
    """A file's worth of objects. ``filled`` is where the next payload goes; ``heat`` sums the
    stamps of the live objects, weighted by their bytes."""

    number: int
    size: int
    filled: int = 0
    live_bytes: int = 0
    heat: int = 0
    live: dict[bytes, Record] = field(default_factory=dict)

    @property
    def mean_used(self) -> float:
        """Return the mean stamp of the last use of a live byte; 0 if none is left."""
        return self.heat / self.live_bytes if self.live_bytes else 0.0


class Catalog:
    """The objects of extents of ``extent_bytes`` each, ``capacity_bytes`` together."""

    def __init__(self, capacity_bytes: int, extent_bytes: int) -> None:
        self.capacity_bytes = max(capacity_bytes, EXTENTS_MIN * extent_bytes)
        self.extent_bytes = extent_bytes
        self.total_bytes = 0
        self.extents: dict[int, Extent] = {}
        self.open: Extent | None = None
        self.live_bytes = 0
        self._records: dict[bytes, Record] = {}
        self._by_generation: dict[int, Record] = {}
        self._stamp = 0
        self._next = 1

    def __len__(self) -> int:
        return len(self._records)

    def find(self, key: bytes) -> Record | None:
        """Return where an object is."""
        return self._records.get(key)

    def of_generation(self, generation: int) -> Record | None:
        """Return the object that was written from a slot of this generation."""
        return self._by_generation.get(generation)

    def records(self) -> list[Record]:
        """Return all objects."""
        return list(self._records.values())

    @property
    def room(self) -> int:
        """Bytes left in the open extent."""
        return 0 if self.open is None else self.open.size - self.open.filled

    def fits(self, size: int) -> bool:
        """Tell whether an empty extent could hold a payload."""
        return padded(size) <= self.extent_bytes

    # --- extents --------------------------------------------------------------------------------

    def is_full(self) -> bool:
        """Tell whether an extent has to go before another can be opened."""
        return self.total_bytes + self.extent_bytes > self.capacity_bytes

    def take_number(self) -> int:
        """Return a number for a new extent; none is given twice."""
        self._next += 1
        return self._next - 1

    def open_extent(self, number: int) -> Extent:
        """Begin a new extent; the open one takes nothing any more."""
        self.open = self._add(number, self.extent_bytes)
        return self.open

    def adopt(self, number: int, size: int, records: Iterable[Record]) -> list[Record]:
        """Take in an extent of an earlier life, full; return its objects that do not count since
        a newer one of their key is known."""
        extent = self._add(number, size)
        extent.filled = size
        stale: list[Record] = []
        for record in records:
            known = self._records.get(record.key)
            if known is not None and known.generation >= record.generation:
                stale.append(record)
                continue
            if known is not None:
                stale.append(known)
                self._take_out(known)
            self._put_in(extent, record)
        return stale

    def seal(self, *, shrink: bool = False) -> None:
        """Let the open extent take nothing any more. ``shrink``: what is left of it is free."""
        if shrink and self.open is not None:
            self.total_bytes -= self.open.size - self.open.filled
            self.open.size = self.open.filled
        self.open = None

    def victim(self) -> Extent | None:
        """Return the extent that should go first; never the open one."""
        closed = [each for each in self.extents.values() if each is not self.open]
        return min(closed, key=lambda each: (each.mean_used, each.number), default=None)

    def forget(self, extent: Extent) -> list[Record]:
        """Take an extent out; return the objects that went with it."""
        lost = list(extent.live.values())
        for record in lost:
            self._take_out(record)
        del self.extents[extent.number]
        self.total_bytes -= extent.size
        if extent is self.open:
            self.open = None
        return lost

    def _add(self, number: int, size: int) -> Extent:
        self._next = max(self._next, number + 1)
        extent = self.extents[number] = Extent(number, size)
        self.total_bytes += size
        return extent

    # --- objects --------------------------------------------------------------------------------

    def place(self, size: int) -> tuple[int, int] | None:
        """Take room in the open extent: (extent, offset), or None if it has not so much."""
        extent = self.open
        if extent is None or extent.filled + padded(size) > extent.size:
            return None
        offset = extent.filled
        extent.filled += padded(size)
        return extent.number, offset

    def commit(self, record: Record) -> Record | None:
        """Let an object count; return the one of its key that does not any more."""
        extent = self.extents[record.extent]
        before = self._records.get(record.key)
        if before is not None:
            self._take_out(before)
        self._put_in(extent, record)
        return before

    def drop(self, key: bytes, generation: int) -> Record | None:
        """Take an object out if it has this generation; return it."""
        record = self._records.get(key)
        if record is None or record.generation != generation:
            return None
        self._take_out(record)
        return record

    def touch(self, key: bytes) -> None:
        """Take note that an object was used."""
        record = self._records.get(key)
        if record is not None:
            self._stamp += 1
            self.extents[record.extent].heat += record.size * (self._stamp - record.used)
            record.used = self._stamp

    def _put_in(self, extent: Extent, record: Record) -> None:
        self._stamp += 1
        record.used = self._stamp
        self._records[record.key] = record
        self._by_generation[record.generation] = record
        extent.live[record.key] = record
        extent.live_bytes += record.size
        extent.heat += record.size * record.used
        self.live_bytes += record.size

    def _take_out(self, record: Record) -> None:
        extent = self.extents[record.extent]
        del self._records[record.key]
        if self._by_generation.get(record.generation) is record:
            del self._by_generation[record.generation]
        del extent.live[record.key]
        extent.live_bytes -= record.size
        extent.heat -= record.size * record.used
        self.live_bytes -= record.size

    def validate(self) -> None:
        """Raise AssertionError if the parts contradict each other."""
        live = 0
        for number, extent in self.extents.items():
            assert extent.number == number < self._next
            places = sorted((each.offset, padded(each.size)) for each in extent.live.values())
            end = 0
            for offset, size in places:
                assert end <= offset
                end = offset + size
            assert end <= extent.filled <= extent.size
            assert extent.live_bytes == sum(each.size for each in extent.live.values())
            assert extent.heat == sum(each.size * each.used for each in extent.live.values())
            assert all(self._records[key] is each for key, each in extent.live.items())
            live += extent.live_bytes
        assert live == self.live_bytes
        assert self.total_bytes == sum(each.size for each in self.extents.values())
        assert all(self._records[e.key] is e for e in self._by_generation.values())
        assert len(self._records) == sum(len(each.live) for each in self.extents.values())
