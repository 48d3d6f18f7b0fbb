"""The pool: the core's index and eviction policy, room on hosts, and what leases hold.

What the master adds around these (messages, table entries, allocation) does not change which object
is there; a test compares the two. It costs ten times as much, and a fleet asks a million times.
"""

from __future__ import annotations

from bisect import bisect_left
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass
from operator import attrgetter

from moonpool.core.eviction import DEFAULT, make_policy
from moonpool.core.index import Index, Object, placed
from moonpool.core.marks import Marks
from moonpool.core.messages import Located, Slot
from moonpool.core.settings import MasterConfig

_PLACE = attrgetter("place")
KEY_BYTES = 8


class _NoMarks(Marks):
    """Nobody looks anything up by its mark here."""

    def add(self, key: bytes) -> None:
        pass

    def remove(self, key: bytes) -> None:
        pass


@dataclass(frozen=True, slots=True)
class PoolShape:
    """What each host lends, and how prompts are cut. object_blocks: blocks of an object; a prompt's
    end is an object of its own. ssd_gb: of each host, 0 for none. A lease keeps an object while it
    is loaded; above ``watermark_high`` eviction goes on down to ``watermark_low``."""

    dram_gb: float
    object_blocks: int = 1
    ssd_gb: float = 0.0
    eviction: str = DEFAULT
    watermark_high: float = MasterConfig().watermark_high
    watermark_low: float = MasterConfig().watermark_low


class FleetPool:
    """Objects by the key of their last block. Sizes are bytes; hosts are small numbers."""

    def __init__(self, shape: PoolShape, hosts: list[float], block_bytes: int) -> None:
        """hosts: how many hosts each stands for. block_bytes: of a block's KV."""
        self.put_objects = self.dropped_objects = self.evicted_objects = self.disk_objects_read = 0
        self._shape, self._block_bytes = shape, block_bytes
        self._stride = shape.object_blocks
        self._free = [int(shape.dram_gb * 1e9 * each) for each in hosts]
        self.capacity = sum(self._free)
        self.used = 0
        self._policy = make_policy(shape.eviction, lambda: self.capacity)
        self._index = Index(_NoMarks())
        self._there: dict[int, Object] = {}
        self._places: dict[tuple[int, int], bytes] = {}
        self._hosts: dict[bytes, tuple[int, int]] = {}
        self._disk: dict[int, tuple[int, int]] = {}
        self._disk_free = [int(shape.ssd_gb * 1e9 * each) for each in hosts]
        self._stamp = 0
        # With these a prefix is there up to a point and not behind it.
        self._closed = not self._policy.inner and not shape.ssd_gb

    def __len__(self) -> int:
        return len(self._there)

    def match(self, keys: Sequence[int]) -> int:
        """Return how many leading blocks are there: whole objects, then the longest end of a
        prompt behind them."""
        stride, there, disk = self._stride, self._there, self._disk
        objects = len(keys) // stride

        def missing(number: int) -> bool:
            key = keys[(number + 1) * stride - 1]
            return key not in there and key not in disk

        if self._closed:
            full = bisect_left(range(objects), 1, key=missing)
        else:
            full = next((n for n in range(objects) if missing(n)), objects)
        full *= stride
        if stride == 1:
            return full
        for place in range(min(full + stride - 1, len(keys)) - 1, full - 1, -1):
            if keys[place] in there or keys[place] in disk:
                return place + 1
        return full

    def ends(self, blocks: int) -> list[int]:
        """Return the places of the last blocks of the objects of so many blocks."""
        found = [*range(self._stride - 1, blocks, self._stride)]
        if blocks % self._stride:
            found.append(blocks - 1)
        return found

    def hold(self, keys: Sequence[int], begin: int, end: int) -> Held:
        """Lease the objects that cover the blocks from ``begin`` to ``end``, all of which are
        there. What is on a disk only comes to memory."""
        ends = self.ends(end)
        wanted = [keys[place] for place in ends[bisect_left(ends, begin) :]]
        known = [each for each in map(self._there.get, wanted) if each is not None]
        stamp = self._next_stamp()
        held = known[-1:] if self._closed else known
        # Of a closed chain the last object keeps all before it; see _evict for their age.
        for each in held:
            each.used = stamp
            each.leases += 1
        if not self._closed:
            self._touch([self._there.get(keys[place]) for place in ends if place < begin], stamp)
        if self._policy.counts:
            self._policy.used(known)
        hosts: dict[int, int] = {}
        for spot, count in Counter(map(_PLACE, known)).items():
            host, size = self._hosts[spot]
            hosts[host] = hosts.get(host, 0) + count * size
        disks: dict[int, int] = {}
        if len(known) < len(wanted):
            for key in wanted:
                if key in self._disk and key not in self._there:
                    host, size = self._disk[key]
                    disks[host] = disks.get(host, 0) + size
                    hosts[host] = hosts.get(host, 0) + size
                    self.disk_objects_read += 1
        return Held(held, len(wanted), hosts, disks)

    @staticmethod
    def _touch(objects: list[Object | None], stamp: int) -> None:
        for each in objects:
            if each is not None:
                each.used = stamp

    def release(self, held: Held) -> None:
        """End a lease."""
        for each in held.objects:
            each.leases -= 1
            if not each.leases:
                self._policy.offer(each, self._index.count)

    def put(self, keys: Sequence[int], host: int) -> int:
        """Keep a prompt's blocks, those that are missing on ``host`` while it has room; return how
        many objects were new. One for which no room can be made ends it."""
        there = self._there
        ends = self.ends(len(keys))
        if self._closed:
            first = bisect_left(ends, 1, key=lambda place: keys[place] not in there)
            ends = ends[max(0, first - 1) :]
        parent: Object | None = None
        before = ends[0] - self._stride if ends and (ends[0] + 1) % self._stride == 0 else -1
        kept: list[Object] = []  # what is being put, or continued, makes no room for itself
        new = 0
        for place in ends:
            found = there.get(keys[place])
            if found is None:
                if parent is not None and not kept:
                    self._keep(parent, kept)
                found = self._add(keys[place], place - before, host, parent)
                if found is None:
                    self.dropped_objects += 1
                    break
                new += 1
                self._keep(found, kept)
            parent, before = found, place
        for each in kept:
            each.leases -= 1
            self._policy.offer(each, self._index.count)
        self.put_objects += new
        return new

    @staticmethod
    def _keep(each: Object, kept: list[Object]) -> None:
        each.leases += 1
        kept.append(each)

    def missing(self, keys: Sequence[int]) -> int:
        """Return how many bytes ``put`` would have to write."""
        there, stride = self._there, self._stride
        ends = self.ends(len(keys))
        if self._closed:
            absent = ends[bisect_left(ends, 1, key=lambda place: keys[place] not in there) :]
        else:
            absent = [place for place in ends if keys[place] not in there]
        blocks = sum(len(keys) % stride if (at + 1) % stride else stride for at in absent)
        return blocks * self._block_bytes

    def tick(self) -> None:
        """Evict down to the low watermark where the high one is passed."""
        if self.used > self._shape.watermark_high * self.capacity:
            while self.used > self._shape.watermark_low * self.capacity and self._evict() >= 0:
                pass

    def _next_stamp(self) -> int:
        self._stamp += 1
        return self._stamp

    def _add(self, key: int, blocks: int, host: int, parent: Object | None) -> Object | None:
        policy, size = self._policy, blocks * self._block_bytes
        name = key.to_bytes(KEY_BYTES, "little")
        if parent is not None:
            parent.used = self._next_stamp()
            policy.continued(parent)
        policy.coming(name, parent)
        host = self._room(size, host)
        policy.coming(b"")
        if host < 0:
            return None
        self._free[host] -= size
        self.used += size
        stamp = self._next_stamp()
        added = Object(
            -1, stamp, stamp, name, parent.key if parent else b"", self._place(host, size)
        )
        self._index.add(added)
        self._there[key] = added
        policy.offer(added, self._index.count)
        if self._disk and key in self._disk:
            self._drop_from_disk(key)
        return added

    def _place(self, host: int, size: int) -> bytes:
        found = self._places.get((host, size))
        if found is None:
            found = placed(Located(size, slots=[Slot(host, 0, 0)]))
            self._places[host, size] = found
            self._hosts[found] = (host, size)
        return found

    def _room(self, size: int, host: int) -> int:
        """Return a host with room: the one that was asked for, else the emptiest, else the one
        where enough has been evicted; -1 if there is none."""
        free = self._free
        if free[host] >= size:
            return host
        emptiest = max(range(len(free)), key=free.__getitem__)
        if free[emptiest] >= size:
            return emptiest
        while (emptied := self._evict()) >= 0:
            if free[emptied] >= size:
                return emptied
        return -1

    def _evict(self) -> int:
        """Evict one object; return the host that has more room now, -1 if nothing may go."""
        policy = self._policy
        victim = policy.pop()
        if victim is None:
            return -1
        host, size = self._hosts[victim.place]
        key = int.from_bytes(victim.key, "little")
        del self._there[key]
        policy.evicted(victim)
        policy.removed(victim)
        parent = self._index.remove(victim)
        if parent is not None and self._closed:
            # Whoever used the end of a chain used all of it: it is noted where that is asked for.
            parent.used = max(parent.used, victim.used)
        if parent is not None and parent.first_child is None:
            policy.offer(parent, self._index.count)
        self._free[host] += size
        self.used -= size
        self.evicted_objects += 1
        if self._shape.ssd_gb:
            self._shelve(key, host, size)
        return host

    def _shelve(self, key: int, host: int, size: int) -> None:
        while self._disk_free[host] < size and self._disk:
            self._drop_from_disk(next(iter(self._disk)))
        if self._disk_free[host] >= size:
            self._disk_free[host] -= size
            self._disk[key] = (host, size)

    def _drop_from_disk(self, key: int) -> None:
        host, size = self._disk.pop(key)
        self._disk_free[host] += size

    def validate(self) -> None:
        """Raise AssertionError if the parts contradict each other."""
        assert {int.from_bytes(each.key, "little") for each in self._index} == set(self._there)
        self._policy.validate(list(self._index))
        assert self.used == sum(self._hosts[each.place][1] for each in self._index)
        assert self.used + sum(self._free) == self.capacity
        assert min(self._free) >= 0


@dataclass(slots=True)
class Held:
    """What a load leases, how many objects it reads, the bytes that each host has of them, and
    those it has on disk only."""

    objects: list[Object]
    count: int
    hosts: dict[int, int]
    disks: dict[int, int]
