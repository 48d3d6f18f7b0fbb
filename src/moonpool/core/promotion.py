"""Bringing objects from disk into memory: a put by the node that has the disk.

The space is granted, owned and taken back like that of any other put, whatever happens to the
node meanwhile. Who wants such an object is told to ask again.
"""

from __future__ import annotations

from collections.abc import Iterable

from moonpool.core import codes
from moonpool.core.checks import space_needed
from moonpool.core.copies import wanted_of
from moonpool.core.disks import Disk, OnDisk
from moonpool.core.messages import Located, Promotion, Slot
from moonpool.core.pending import add_put
from moonpool.core.room import make_room
from moonpool.core.segments import Placement, Put
from moonpool.core.state import State

PROMOTED_RETRY_S = 0.002
BUSY_RETRY_S = 0.01
WANT_S = 1.0
HINT_S = 10.0
"""How long a read waits for room since somebody last asked for it, or hinted at it."""
HINTS_MAX = 65_536
BUSY, NO_ROOM, STARTED = range(3)


def bring(state: State, key: bytes) -> Located | None:
    """Begin to read an object from disk; return what to tell who wants it. None if it is not on
    a disk."""
    put = state.in_progress.get(key)
    if put is not None:
        if put.generation not in state.disks.promotions:
            return None
        return Located(put.size, code=codes.NOT_READY, retry_after_s=PROMOTED_RETRY_S)
    found = state.disks.objects.get(key)
    if found is None:
        return None
    disk = state.disks.by_handle[found.disk]
    if disk.wants:
        # Others wait already. They are served in turn when there is room, not at each question.
        _want(state, disk, key)
        return _located(state, found, BUSY_RETRY_S)
    begun = start(state, found)
    if begun == STARTED:
        return _located(state, found, PROMOTED_RETRY_S)
    state.counters["promotions_waited"] += 1
    if begun == NO_ROOM and not _may_wait(state):
        state.counters["promotions_refused"] += 1
        return _located(state, found, 0.0)
    _want(state, disk, key)
    return _located(state, found, BUSY_RETRY_S)


def _want(state: State, disk: Disk, key: bytes) -> None:
    if key in disk.wants or len(disk.wants) < HINTS_MAX:
        disk.wants[key] = state.now + WANT_S


def _may_wait(state: State) -> bool:
    """Tell whether room may come: a lease or a put ends, or what has to leave is written."""
    writing = any(each.asked for each in state.disks.by_handle.values())
    return bool(state.leases.count or state.puts or writing or state.backlog)


def _located(state: State, found: OnDisk, seconds: float) -> Located:
    """Tell who wants an object when to ask again (0: not at all), and where it can be read while
    memory has no room for it."""
    disk = state.disks.by_handle[found.disk]
    code = codes.NOT_READY if seconds else codes.NO_SPACE
    if not disk.crowded or not disk.info.address:
        return Located(found.size, code=code, retry_after_s=seconds)
    state.counters["disk_direct"] += 1
    return Located(
        found.size,
        found.checksum,
        code=code,
        retry_after_s=seconds,
        disk=disk.info.address,
        disk_generation=found.generation,
    )


def start(state: State, found: OnDisk, *, make: bool = True) -> int:
    """Have the node read an object that is only on its disk; ``make`` room for it if need be."""
    disk = state.disks.by_handle[found.disk]
    if disk.promoting_bytes and disk.promoting_bytes + found.size > disk.info.promote_bytes:
        return BUSY
    place = _room(state, disk.peer, space_needed(found.key, found.size), make=make)
    if make:
        disk.crowded = place is None
    if place is None:
        return NO_ROOM
    capacity, slot = place
    put = Put(
        state.next_generation(wanted_of(found.generation)),
        found.key,
        found.size,
        found.parent,
        disk.peer,
        capacity,
        state.now,
        False,
        [slot],
    )
    state.segments.by_handle[slot.segment].own(slot.offset, put)
    add_put(state, put)
    state.in_progress[put.key] = put
    state.put_queue.append(put)
    state.disks.promotions[put.generation] = disk, found.size
    disk.promoting_bytes += found.size
    state.counters["promotions"] += 1
    where = slot.segment, slot.index, slot.offset
    state.errands.promote(disk, Promotion(found.shelved, *where, capacity, put.generation))
    return STARTED


def hint(state: State, keys: Iterable[bytes]) -> int:
    """Read objects ahead of use, now or as soon as there is room; return how many are read now."""
    until = state.now + HINT_S
    for key in keys:
        found = state.disks.objects.get(key)
        if found is not None:
            disk = state.disks.by_handle[found.disk]
            if len(disk.hints) < HINTS_MAX:
                disk.hints[key] = until
    return go_on(state)


def go_on(state: State) -> int:
    """Begin to read what is wanted, then what was hinted at, as far as there is room; return how
    many objects."""
    started = 0
    for disk in state.disks.by_handle.values():
        for queue in (disk.wants, disk.hints):
            count, blocked = _serve(state, queue)
            started += count
            if blocked:
                break
    return started


def _serve(state: State, queue: dict[bytes, float]) -> tuple[int, bool]:
    """Begin to read what a queue names; return how many objects, and whether it is held up."""
    started = 0
    while queue:
        key = next(iter(queue))
        found = state.disks.objects.get(key)
        waits = state.index.find(key) is None and key not in state.in_progress
        if found is not None and waits and queue[key] > state.now:
            begun = start(state, found)
            if begun == BUSY or (begun == NO_ROOM and _may_wait(state)):
                return started, True
            started += begun == STARTED
        del queue[key]
    return started, False


def _room(state: State, peer: str, needed: int, *, make: bool) -> tuple[int, Slot] | None:
    segments = [each for each in state.segments.of_peer(peer) if each.ready]
    placement = Placement(segments, "")
    capacity, slots = placement.take(needed, 1)
    if slots:
        return capacity, slots[0]
    # To read one object is no reason to lose another.
    fits = make and placement.fits(needed)
    made = make_room(state, segments, needed, spare=True) if fits else None
    return None if made is None else (made[0].space.capacity_of(needed), made[1])
