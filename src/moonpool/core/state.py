"""The master's state, and the few steps that all verbs share."""

from __future__ import annotations

import math
from collections import Counter, deque
from typing import Final

import numpy as np
import numpy.typing as npt

from moonpool.core.backlog import Backlog, Batch
from moonpool.core.copies import Copies, next_generation
from moonpool.core.disks import Disks, OnDisk
from moonpool.core.errands import Errands
from moonpool.core.eviction import make_policy
from moonpool.core.feed import DISK, GONE, Feed
from moonpool.core.groups import Groups
from moonpool.core.handoffs import Handoffs
from moonpool.core.index import Index, Object, placed
from moonpool.core.lease import LeaseBook
from moonpool.core.marks import Marks
from moonpool.core.messages import DropSlots, Located, Push, Slot
from moonpool.core.pinned import HardPins
from moonpool.core.removed import Removed
from moonpool.core.segments import Put, Segments
from moonpool.core.sessions import Sessions
from moonpool.core.settings import MasterConfig
from moonpool.core.soft import SoftPins
from moonpool.core.tenants import Tenants

VALUE_SIZES: Final = (4096, 65_536, 262_144, 1 << 20, 4 << 20, 16 << 20, 64 << 20)
STAMPS_PER_S: Final = 1_000_000
_STAMP_MAX: Final = 1 << 60
EPOCH_MAX: Final = (1 << 31) - 1
EPOCH_SHIFT: Final = 32
"""Generations of an epoch begin at the epoch, shifted by so many bits."""
GENERATION_MAX: Final = (1 << 63) - 1
"""The highest generation that a segment may bring along."""


class State:
    """Everything the master knows. ``now`` never goes back."""

    def __init__(self, config: MasterConfig, epoch: int, marks: Marks | None = None) -> None:
        if not 0 <= epoch <= EPOCH_MAX:
            raise ValueError(f"epoch {epoch}: must be 0 to {EPOCH_MAX}")
        self.config = config
        self.epoch = epoch
        self.now = 0.0
        self._clock: float | None = None
        self._stamp = 0
        self.generation = epoch << EPOCH_SHIFT
        self.anew: list[str] = []
        """Sessions of nodes that do not know that what they had mounted is gone."""
        self.segments = Segments()
        self.disks = Disks()
        self.errands = Errands()
        self.backlog = Backlog()
        self.index = Index(Marks() if marks is None else marks, self.disks.objects)
        self.eviction = make_policy(config.eviction, self.segments.total_bytes)
        self.soft = SoftPins()
        self.pins = HardPins()
        self.groups = Groups()
        self.tenants = Tenants(on=config.tenants)
        self.sessions = Sessions()
        self.copies = Copies()
        self.feed = Feed()
        self.leases = LeaseBook(config.leases_per_peer_max, config.lease_objects_per_peer_max)
        self.handoffs = Handoffs(config)
        self.removed = Removed(config.removed_keys_max)
        self.puts: dict[int, Put] = {}
        self.in_progress: dict[bytes, Put] = {}
        self.put_queue: deque[Put] = deque()
        self.pending_bytes: dict[str, int] = {}
        # Ended puts and their clients, in two halves: the older one is dropped as a whole.
        self.ended: dict[int, str] = {}
        self.ended_before: dict[int, str] = {}
        # By segment name: the places that unfinished puts have on segments that are away.
        self.absent: dict[tuple[str, str], dict[int, Slot]] = {}
        self.absent_shapes: dict[tuple[str, str], tuple[int, int]] = {}
        self.counters: Counter[str] = Counter()
        # How many puts there were up to each of VALUE_SIZES, and above.
        self.value_sizes = [0] * (len(VALUE_SIZES) + 1)
        self._pushes: list[tuple[str, Push]] = []
        self._drops: dict[int, tuple[list[int], list[int]]] = {}

    def advance(self, clock: float) -> None:
        """Take note of the caller's clock. A step back counts as no time at all."""
        if not math.isfinite(clock):
            return
        if self._clock is not None and clock > self._clock:
            self.now += clock - self._clock
        self._clock = clock

    def stamp(self) -> int:
        """Return a number above all before that also tells the time, in microseconds.

        It runs ahead of the clock by one for each that was asked for within a microsecond.
        """
        self._stamp = max(self._stamp + 1, int(min(self.now * STAMPS_PER_S, _STAMP_MAX)))
        return self._stamp

    def stamps(self, count: int) -> int:
        """Return the first of so many stamps in a row."""
        first = max(self._stamp + 1, int(min(self.now * STAMPS_PER_S, _STAMP_MAX)))
        self._stamp = max(self._stamp, first + count - 1)
        return first

    def ago(self, stamp: int) -> float:
        """Return how many seconds ago a stamp was made."""
        return max(0.0, self.now - stamp / STAMPS_PER_S)

    def next_generation(self, wanted: int = 1, *, spare: bool = False) -> int:
        """Return the generation of a new slot of an object of which so many copies are wanted."""
        self.generation = next_generation(self.generation, wanted, spare=spare)
        return self.generation

    def push(self, peer: str, message: Push) -> None:
        """Send something to a node with the present answer."""
        self._pushes.append((peer, message))

    def drop_slot(self, slot: Slot, generation: int) -> None:
        """Have a node forget a table entry, so that no later crash brings its object back."""
        indexes, generations = self._drops.setdefault(slot.segment, ([], []))
        indexes.append(slot.index)
        generations.append(generation)

    def take_pushes(self) -> list[tuple[str, Push]]:
        """Return what is to be sent, once."""
        if not self._pushes and not self._drops and not self.errands.waiting:
            return []
        pushes, self._pushes = self._pushes, []
        if self.errands.waiting:
            pushes += self.errands.take()
        for handle, (indexes, generations) in self._drops.items():
            segment = self.segments.by_handle.get(handle)
            if segment is not None:
                pushes.append((segment.peer, DropSlots(handle, indexes, generations)))
        self._drops.clear()
        return pushes

    # --- objects --------------------------------------------------------------------------------

    def add_object(self, key: bytes, parent: bytes, where: Located, *, pinned: bool) -> Object:
        """Make an object readable."""
        stamp = self.stamp()
        added = Object(-1, stamp, stamp, key, parent, placed(where))
        if pinned:
            self.pins.add(added)
        self.index.add(added)
        if self.tenants.on:
            self.tenants.add(added)
        for slot in where.slots:
            self.segments.by_handle[slot.segment].own(slot.offset, added)
        self.eviction.offer(added, self.index.count)
        self.handoffs.appeared(key)
        if self.feed.active:
            self.feed.note(key, where.slots[0].segment)
        shelved = self.disks.objects.get(key)
        if shelved is not None:
            self.disks.only -= 1
            if (shelved.size, shelved.checksum) != (where.size, where.checksum):
                self.drop_shelved(shelved)
        return added

    def add_later(self, batch: Batch, generation_max: int) -> None:
        """Let objects be found whose places are taken and whose marks are set; nobody waits for
        them, and none is on a disk."""
        self.generation = max(self.generation, generation_max)
        self.backlog.add(batch, self.now)
        self.index.waiting = self.backlog.count
        if self.backlog:
            self.index.late = self._find_later

    def make(self, *some: tuple[Batch, npt.NDArray[np.int64]]) -> None:
        """Make objects of the backlog: rows of batches."""
        for batch, rows in some:
            added = self.backlog.take(batch, rows, self.stamps(len(rows)))
            self.index.waiting = self.backlog.count
            if not self.backlog:
                self.index.late = None
            self.index.add_many(added)
            if self.tenants.on:
                for each in added:
                    self.tenants.add(each)
            if self.copies.tagged:
                self.copies.made(added)
                self.copies.tagged = bool(self.backlog)
            if self.feed.active:
                for each in added:
                    self.feed.note(each.key, each.slots[0].segment)
            self.eviction.offer_newest(added, self.index.count)

    def _find_later(self, key: bytes) -> Object | None:
        if key in self.index.marks:
            self.make(*self.backlog.find([key]))
        return self.index.by_key.get(key)

    def remove_object(self, removed: Object) -> int:
        """Forget an object and free its places; return their bytes. Nodes are not told."""
        slots = removed.slots
        if removed.pinned:
            self.soft.forget(removed)
            self.pins.forget(removed)
        if self.sessions.users:
            self.sessions.gone(removed)
        copies = self.copies
        if copies.thin or copies.spares or copies.parked or copies.hot:
            copies.forget(removed)
        eviction = self.eviction
        if eviction.counts:
            eviction.removed(removed)
        if eviction.released.stamps:
            eviction.released.forget(removed)
        waiting = self.groups.forget(removed) if self.groups.of else None
        if self.tenants.on:
            self.tenants.forget(removed)
        parent = self.index.remove(removed)
        if self.feed.active:
            self.feed.note(removed.key, DISK if removed.key in self.disks.objects else GONE)
        by_handle = self.segments.by_handle
        freed = 0
        for slot in slots:
            freed += by_handle[slot.segment].release(slot)
        if parent is not None and parent.first_child is None:
            self.offer([parent])
        if waiting:
            self.offer(waiting)
        if removed.key in self.disks.objects:
            self.disks.only += 1
        return freed

    def touch(self, used: list[Object]) -> None:
        """Objects were asked for, in this order."""
        eviction = self.eviction
        if not eviction.counts:
            stamp = self.stamp()
            for each in used:
                each.used = stamp
            return
        stamp = self.stamps(len(used))
        for i, each in enumerate(used):
            each.used = stamp + i

    def offer(self, freed: list[Object]) -> None:
        """Let objects that nobody leases any more be evicted."""
        if self.groups.parked:
            freed = self.groups.freed(freed)
        for each in freed:
            self.eviction.offer(each, self.index.count)

    # --- objects on disks -----------------------------------------------------------------------

    def add_shelved(self, added: OnDisk) -> None:
        """Take note of an object on a disk; its key is on none."""
        self.disks.put(added)
        if self.index.find(added.key) is None:
            self.disks.only += 1
            self.index.marks.add(added.key)
            self.handoffs.appeared(added.key)
            if self.feed.active:
                self.feed.note(added.key, DISK)

    def forget_shelved(self, removed: OnDisk) -> None:
        """Forget an object on a disk."""
        self.disks.take(removed)
        if self.index.find(removed.key) is None:
            self.disks.only -= 1
            self.index.marks.remove(removed.key)
            if self.feed.active:
                self.feed.note(removed.key, GONE)

    def drop_shelved(self, removed: OnDisk) -> None:
        """Forget an object on a disk, and have its node do so too."""
        self.errands.drop(self.disks.by_handle[removed.disk], removed)
        self.forget_shelved(removed)

    # --- leases ---------------------------------------------------------------------------------

    def expire_leases(self) -> None:
        """End the leases whose time is over."""
        count, freed = self.leases.expire(self.now)
        if count:
            self.counters["leases_expired"] += count
            self.offer(freed)

    def expire_soft_pins(self) -> None:
        """End the soft pins whose time is over."""
        self.offer(self.soft.expire(self.now))

    # --- puts -----------------------------------------------------------------------------------

    def discard_put(self, put: Put) -> None:
        """Give its key back. Its slots stay reserved: its client may still be writing."""
        if put.discarded:
            return
        put.discarded = True
        put.held = put.held + put.slots
        put.slots = []
        del self.in_progress[put.key]
        self.counters["put_discarded"] += 1

    def resolve_put(self, put: Put) -> None:
        """Forget a put. The places it still has are free: nobody writes there any more."""
        put.resolved = True
        del self.puts[put.generation]
        if put.pinned:
            self.pins.resolve(put.generation)
        if self.tenants.on:
            self.tenants.resolve(put.generation)
        if self.disks.promotions:
            self.disks.put_ended(put)
        if not put.discarded:
            del self.in_progress[put.key]
        rest = self.pending_bytes[put.client] - put.capacity
        if rest:
            self.pending_bytes[put.client] = rest
        else:
            del self.pending_bytes[put.client]
        if put.held or put.slots:
            for slot in put.held + put.slots:
                self.segments.by_handle[slot.segment].release(slot)
            put.held = put.slots = []
        if put.absent:
            self._forget_absent(put)

    def _forget_absent(self, put: Put) -> None:
        for name, places in list(self.absent.items()):
            places.pop(put.generation, None)
            if not places:
                del self.absent[name], self.absent_shapes[name]
        put.absent = 0

    def expire_puts(self) -> None:
        """Discard the puts that took too long."""
        queue = self.put_queue
        oldest = self.now - self.config.put_timeout_s
        while queue and (queue[0].resolved or queue[0].discarded or queue[0].started <= oldest):
            put = queue.popleft()
            if not put.resolved:
                self.discard_put(put)

    def remember_end(self, put: Put) -> None:
        """Remember that a put was ended, for a client that asks again."""
        if len(self.ended) >= self.config.recent_ends_max:
            self.ended_before, self.ended = self.ended, {}
        self.ended[put.generation] = put.client

    def was_ended(self, generation: int, client: str) -> bool:
        """Tell whether this client ended this put not long ago."""
        found = self.ended.get(generation) or self.ended_before.get(generation)
        return found is not None and found == client
