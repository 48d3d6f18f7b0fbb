"""The objects that can be read: by key, by age, and as chains of parents and children."""

from __future__ import annotations

import struct
from bisect import bisect_right
from collections.abc import Callable, Collection, Container, Iterator, Mapping
from operator import attrgetter

import msgspec
import numpy as np
import numpy.typing as npt

from moonpool.core.marks import Marks
from moonpool.core.messages import Located, Slot

_COMPACT_MIN = 1024
_PLACE = struct.Struct("<QQQ")
_SLOT = struct.Struct("<QII")
_OWN_SLOT = struct.Struct("<QIIQ")
_WITH_SLOT = struct.Struct("<QQQQII")
_PLACES = np.dtype(
    [
        ("generation", "<u8"),
        ("checksum", "<u8"),
        ("size", "<u8"),
        ("offset", "<u8"),
        ("index", "<u4"),
        ("segment", "<u4"),
    ]
)
PLACE_BYTES = _WITH_SLOT.size


class Object(msgspec.Struct, order=True, gc=False):
    """A committed object. Only Index changes its links, and cuts them when the object goes.

    There may be many millions: a field costs 8 bytes, a number of its own 32. ``serial`` and
    ``used`` are stamps of State: they order objects by age and by last use, and tell the time.
    ``rank`` belongs to the eviction policy: 0 or more while the object is queued for eviction,
    such as ``used`` as it was then. Objects are ordered by rank, then serial, which no two share.
    """

    rank: int
    serial: int
    used: int
    key: bytes
    parent_key: bytes
    place: bytes
    pinned: bool = False
    leases: int = 0
    parent: Object | None = None
    first_child: Object | None = None
    next: Object | None = None
    previous: Object | None = None

    __hash__ = object.__hash__

    @property
    def alive(self) -> bool:
        """Whether it is in the index; one that is not has no place."""
        return bool(self.place)

    @property
    def queued(self) -> bool:
        """Whether it is queued for eviction."""
        return self.rank >= 0

    @property
    def size(self) -> int:
        """Bytes of its payload."""
        return int.from_bytes(self.place[16:24], "little")

    @property
    def where(self) -> Located:
        """Its location, as Get answers it."""
        place = self.place
        if len(place) == _WITH_SLOT.size:
            generation, checksum, size, offset, index, segment = _WITH_SLOT.unpack(place)
            return Located(size, checksum, generation, [Slot(segment, index, offset)])
        generation, checksum, size = _PLACE.unpack_from(place)
        return Located(size, checksum, generation, self.slots)

    @property
    def slots(self) -> list[Slot]:
        """The places of its replicas."""
        place = memoryview(self.place)
        if len(place) & 1:  # a byte more: the slots have generations of their own
            owned = _OWN_SLOT.iter_unpack(place[_PLACE.size : -1])
            return [Slot(segment, index, offset, own) for offset, index, segment, own in owned]
        found = _SLOT.iter_unpack(place[_PLACE.size :])
        return [Slot(segment, index, offset) for offset, index, segment in found]

    @property
    def generation(self) -> int:
        """The generation of its put."""
        return int.from_bytes(self.place[:8], "little")

    def generation_at(self, slot: Slot) -> int:
        """Return the generation of one of its replicas."""
        return slot.generation or self.generation

    def move(self, slots: list[Slot]) -> None:
        """Set the places of its replicas. Where none of its put is left, its generation becomes
        that of the first."""
        base = self.generation
        own = [slot.generation or base for slot in slots]
        head = self.place[: _PLACE.size]
        if own and base not in own:
            base = own[0]
            head = base.to_bytes(8, "little") + head[8:]
        if own.count(base) == len(own):
            self.place = head + _packed(slots)
            return
        each = zip(slots, own, strict=True)
        self.place = b"".join(
            [
                head,
                *(_OWN_SLOT.pack(s.offset, s.index, s.segment, g * (g != base)) for s, g in each),
                b"\1",
            ]
        )


def placed(where: Located) -> bytes:
    """Return a location as objects keep it."""
    if len(where.slots) == 1:
        (slot,) = where.slots
        place = where.generation, where.checksum, where.size
        return _WITH_SLOT.pack(*place, slot.offset, slot.index, slot.segment)
    return _PLACE.pack(where.generation, where.checksum, where.size) + _packed(where.slots)


def pack_places(segment: int, numbers: Mapping[str, npt.NDArray[np.uint64]]) -> bytes:
    """Return the places of objects with one replica, PLACE_BYTES each; columns by name."""
    rows = np.zeros(len(numbers["size"]), _PLACES)
    for name in ("generation", "checksum", "size", "offset", "index"):
        rows[name] = numbers[name]
    rows["segment"] = segment
    return rows.tobytes()


def _packed(slots: list[Slot]) -> bytes:
    return b"".join(_SLOT.pack(slot.offset, slot.index, slot.segment) for slot in slots)


def children_of(parent: Object) -> Iterator[Object]:
    """Yield the children of an object, which must not change meanwhile."""
    child = parent.first_child
    while child is not None:
        yield child
        child = child.next


class Index:
    """All complete objects in memory; ``marks`` follows which there are.

    Keys in ``elsewhere`` keep their marks when their objects go: they are to be had from a disk.

    Children whose parent is not there wait in a chain under its key and are linked when it comes.

    ``waiting`` objects more are there and not made yet: ``late`` makes one that is asked for.
    Whoever walks over all objects has them made before.
    """

    def __init__(self, marks: Marks, elsewhere: Collection[bytes] = ()) -> None:
        self.marks = marks
        self.elsewhere = elsewhere
        self.by_key: dict[bytes, Object] = {}
        self.orphans: dict[bytes, Object] = {}
        self.waiting = 0
        self.late: Callable[[bytes], Object | None] | None = None
        self._log: list[Object] = []
        self._dead = 0
        self._cycles_possible = False

    @property
    def count(self) -> int:
        """How many there are."""
        return len(self.by_key) + self.waiting

    def find(self, key: bytes) -> Object | None:
        """Return the object of a packed key; None also for bytes that are no packed key."""
        found = self.by_key.get(key)
        return found if found is not None or self.late is None else self.late(key)

    def known(self) -> Container[bytes]:
        """Return what tells whether a key is there."""
        return self.by_key if self.late is None else self

    def __contains__(self, key: object) -> bool:
        return isinstance(key, bytes) and self.find(key) is not None

    def add(self, added: Object) -> None:
        """Add an object whose key is not there; its serial must be the highest so far."""
        key = added.key
        self.by_key[key] = added
        self.marks.add(key)
        self._log.append(added)
        waiting = self.orphans.pop(key, None) if self.orphans else None
        if waiting is not None:
            self._adopt(added, waiting)
        if added.parent_key:
            parent = self.by_key.get(added.parent_key)
            if parent is not None:
                self._cycles_possible |= waiting is not None
                added.parent_key = parent.key
            self._insert(added, parent)

    def add_many(self, added: list[Object]) -> None:
        """Add objects whose keys are not there and whose marks are, in order of their serials,
        which are the highest."""
        by_key, orphans = self.by_key, self.orphans
        keys = [each.key for each in added]
        by_key.update(zip(keys, added, strict=True))
        self._log += added
        for key in orphans.keys() & set(keys) if orphans else ():
            self._adopt(by_key[key], orphans.pop(key))
            self._cycles_possible = True
        find = by_key.get
        for each in added:  # as _insert does
            if each.parent_key:
                each.parent = parent = find(each.parent_key)
                if parent is None:
                    head = orphans.get(each.parent_key)
                    orphans[each.parent_key] = each
                else:
                    if parent.serial >= each.serial:
                        self._cycles_possible = True
                    each.parent_key = parent.key
                    head, parent.first_child = parent.first_child, each
                if head is not None:
                    each.next = head
                    head.previous = each

    def remove(self, removed: Object) -> Object | None:
        """Remove an object and its place; return its parent. Its children wait for it."""
        key = removed.key
        del self.by_key[key]
        if key not in self.elsewhere:
            self.marks.remove(key)
        removed.place = b""
        parent = removed.parent
        if removed.parent_key:
            self._cut(removed)
        if removed.first_child is not None:
            for child in children_of(removed):
                child.parent = None
            self.orphans[key] = removed.first_child
            removed.first_child = None
        self._dead += 1
        if self._dead > _COMPACT_MIN and self._dead > self.count:
            self._log = [each for each in self._log if each.alive]
            self._dead = 0
        return parent

    def page(self, after: int, scan: int) -> tuple[list[Object], bool]:
        """Return up to ``scan`` entries by age behind a serial, and whether more follow.

        Entries may be objects that are gone (not ``alive``).
        """
        start = bisect_right(self._log, after, key=attrgetter("serial"))
        return self._log[start : start + scan], start + scan < len(self._log)

    def __iter__(self) -> Iterator[Object]:
        return (each for each in self._log if each.alive)

    def cut_cycles(self) -> list[Object]:
        """Cut cycles of parents (no honest client makes one); return those that lost a child.

        Costs a walk over all objects, but only if a cycle may have been closed since the last.
        """
        if not self._cycles_possible:
            return []
        self._cycles_possible = False
        bereft: list[Object] = []
        seen: dict[Object, Object] = {}
        for start in self:
            each: Object | None = start
            while each is not None and each not in seen:
                seen[each] = start
                each = each.parent
            if each is not None and seen[each] is start and each.parent is not None:
                bereft.append(each.parent)
                self._cut(each)
                each.parent_key = b""
        return bereft

    def _adopt(self, parent: Object, first: Object) -> None:
        parent.first_child = first
        for child in children_of(parent):
            child.parent = parent
            child.parent_key = parent.key

    def _insert(self, child: Object, parent: Object | None) -> None:
        """Put a child at the head of its chain: its parent's, or that of the waiting."""
        child.parent = parent
        if parent is not None:
            head, parent.first_child = parent.first_child, child
        else:
            head = self.orphans.get(child.parent_key)
            self.orphans[child.parent_key] = child
        child.next = head
        if head is not None:
            head.previous = child

    def _cut(self, child: Object) -> None:
        """Take a child out of its chain."""
        after, before, parent = child.next, child.previous, child.parent
        if after is not None:
            after.previous = before
        if before is not None:
            before.next = after
        elif parent is not None:
            parent.first_child = after
        elif after is not None:
            self.orphans[child.parent_key] = after
        else:
            del self.orphans[child.parent_key]
        child.parent = child.next = child.previous = None

    def validate(self) -> None:
        """Raise AssertionError if the parts contradict each other."""
        objects = list(self)
        assert self.count == len(objects)
        self.marks.validate(list({*self.by_key, *self.elsewhere}))
        assert self._dead == len(self._log) - len(objects)
        serials = [each.serial for each in self._log]
        assert serials == sorted(set(serials))
        linked = 0
        for each in objects:
            assert self.find(each.key) is each
            if each.parent is not None:
                assert each.parent.alive
                assert each.parent.key == each.parent_key
            linked += self._validate_chain(each.first_child, each, each.key)
        for key, first in self.orphans.items():
            assert self.find(key) is None
            linked += self._validate_chain(first, None, key)
        assert linked == sum(bool(each.parent_key) for each in objects)

    @staticmethod
    def _validate_chain(first: Object | None, parent: Object | None, key: bytes) -> int:
        before: Object | None = None
        length = 0
        while first is not None:
            assert first.alive
            assert first.parent is parent
            assert first.parent_key == key
            assert first.previous is before
            before, first = first, first.next
            length += 1
        return length
