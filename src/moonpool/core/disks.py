"""The nodes' disks: which objects are on them, and what is on its way to one and from one.

An object is on one disk at most. It may be in memory too, or only there; the index knows the
former alone, and eviction, leases and reads are not concerned with disks.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Final, NamedTuple

import msgspec

from moonpool.core.index import Object
from moonpool.core.messages import DiskInfo, Shelved
from moonpool.core.segments import Put

GHOSTS_MAX: Final = 131_072


class OnDisk(msgspec.Struct, eq=False, gc=False):
    """An object on a disk, by the number of its disk."""

    key: bytes
    parent: bytes
    size: int
    checksum: int
    generation: int
    disk: int

    @property
    def shelved(self) -> Shelved:
        """Return it as nodes are told of it."""
        return Shelved(self.key, self.parent, self.size, self.checksum, self.generation)


class Disk:
    """A mounted disk. ``asked``: the sizes of objects that the node was told to write, by their
    generation; what it writes unasked is not taken, once it is ``ready``. ``wants`` and ``hints``:
    keys to read as soon as there is room, and until when that is of use. ``crowded``: when a read
    was last to begin, memory had no room for it."""

    __slots__ = (
        "asked",
        "asked_bytes",
        "crowded",
        "handle",
        "hints",
        "info",
        "objects",
        "peer",
        "promoting_bytes",
        "ready",
        "used_bytes",
        "wants",
    )

    def __init__(self, handle: int, info: DiskInfo, peer: str) -> None:
        self.handle = handle
        self.info = info
        self.peer = peer
        self.ready = False
        self.objects = 0
        self.used_bytes = 0
        self.asked: dict[int, int] = {}
        self.asked_bytes = 0
        self.promoting_bytes = 0
        self.crowded = False
        self.wants: dict[bytes, float] = {}
        self.hints: dict[bytes, float] = {}

    def ask(self, generation: int, size: int) -> None:
        """Take note that the node is told to write an object."""
        self.asked[generation] = size
        self.asked_bytes += size

    def answered(self, generation: int) -> bool:
        """Take note of the answer; tell whether there was a question."""
        size = self.asked.pop(generation, None)
        self.asked_bytes -= size or 0
        return size is not None


class Leaving(NamedTuple):
    """An object to be evicted, when it was used last, what it takes in memory, and the generation
    of the copy that is being written."""

    object: Object
    used: int
    nbytes: int
    generation: int


class Disks:
    """All disks and what is on them."""

    def __init__(self) -> None:
        self.by_handle: dict[int, Disk] = {}
        self.by_peer: dict[str, Disk] = {}
        self.objects: dict[bytes, OnDisk] = {}
        self.only = 0
        """Objects that are on a disk and not in memory."""
        self.promotions: dict[int, tuple[Disk, int]] = {}
        """Reads under way, by the generation of their put: to whose disk, and bytes."""
        self.leaving: dict[int, Leaving] = {}
        """Objects to be evicted as soon as they are on disk, by generation."""
        self.leaving_bytes = 0
        self.draining = False
        """Whether memory is being emptied down to the low watermark, a few objects at a time."""
        self.selective = False
        """Whether any disk wants to know what is used twice."""
        self._ghosts: dict[bytes, None] = {}
        self._ghosts_before: dict[bytes, None] = {}
        self._handles = 0

    def mount(self, info: DiskInfo, peer: str) -> Disk:
        """Add a disk whose peer has none."""
        self._handles += 1
        disk = Disk(self._handles, info, peer)
        self.by_handle[disk.handle] = disk
        self.by_peer[peer] = disk
        self._note_policies()
        return disk

    def unmount(self, disk: Disk) -> list[OnDisk]:
        """Forget a disk; return what was on it, which the caller takes out."""
        del self.by_handle[disk.handle], self.by_peer[disk.peer]
        self._note_policies()
        return [each for each in self.objects.values() if each.disk == disk.handle]

    def put(self, added: OnDisk) -> None:
        """Add an object whose key is on no disk."""
        self.objects[added.key] = added
        disk = self.by_handle[added.disk]
        disk.objects += 1
        disk.used_bytes += added.size

    def take(self, removed: OnDisk) -> None:
        """Take an object out."""
        del self.objects[removed.key]
        disk = self.by_handle.get(removed.disk)
        if disk is not None:
            disk.objects -= 1
            disk.used_bytes -= removed.size

    def put_ended(self, put: Put) -> None:
        """Take note that a put has ended, which may have been a read from disk."""
        disk, size = self.promotions.pop(put.generation, (None, 0))
        if disk is not None:
            disk.promoting_bytes -= size

    def leave(self, leaving: Leaving) -> None:
        """Take note of an object that is to be evicted once it is on disk."""
        self.stay(leaving.generation)
        self.leaving[leaving.generation] = leaving
        self.leaving_bytes += leaving.nbytes

    def stay(self, generation: int) -> Leaving | None:
        """Forget that an object was to be evicted; return it."""
        found = self.leaving.pop(generation, None)
        if found is not None:
            self.leaving_bytes -= found.nbytes
        return found

    def remember(self, key: bytes) -> None:
        """Remember what was evicted and is nowhere any more, in case that it is put again."""
        if len(self._ghosts) >= GHOSTS_MAX:
            self._ghosts_before, self._ghosts = self._ghosts, {}
        self._ghosts[key] = None

    def is_ghost(self, key: bytes) -> bool:
        """Tell whether this was evicted not long ago."""
        return key in self._ghosts or key in self._ghosts_before

    def _note_policies(self) -> None:
        self.selective = any(each.info.policy == "selective" for each in self.by_handle.values())

    def validate(self, in_memory: Iterable[bytes], puts: dict[int, Put]) -> None:
        """Raise AssertionError if the parts contradict each other."""
        known = set(in_memory)
        assert self.only == sum(key not in known for key in self.objects)
        assert {each.peer: each for each in self.by_handle.values()} == self.by_peer
        for handle, disk in self.by_handle.items():
            mine = [each for each in self.objects.values() if each.disk == handle]
            assert (disk.objects, disk.used_bytes) == (len(mine), sum(each.size for each in mine))
            assert disk.asked_bytes == sum(disk.asked.values())
            reads = [size for of, size in self.promotions.values() if of is disk]
            assert disk.promoting_bytes == sum(reads)
        assert all(each.disk in self.by_handle for each in self.objects.values())
        assert self.leaving_bytes == sum(each.nbytes for each in self.leaving.values())
        assert all(generation in puts for generation in self.promotions)
