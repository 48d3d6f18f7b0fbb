"""What only the disk of a drained node has: read into that node's memory, from where it is copied.

It is read as far as other nodes have room, or disks onto which what is used least there can go.
"""

from __future__ import annotations

from moonpool.core import promotion
from moonpool.core.copies import Drain
from moonpool.core.disks import Disk
from moonpool.core.index import Object
from moonpool.core.state import State

READ_IN_A_TURN = 64
TRIES = 5
"""So often in a row without any progress."""
FULL = 0.9
"""A disk on which so much is taken counts as full."""


def disk_of(state: State, node: str) -> Disk | None:
    """Return the disk of a node, if it has one."""
    return next((d for d in state.disks.by_handle.values() if d.info.node == node), None)


def bring(state: State, each: Drain) -> bool:
    """Begin to read some of what only the disk has; tell whether any."""
    disk = disk_of(state, each.node)
    if disk is None or not disk.ready:
        each.disk_done = True
        return False
    if not each.shelved and not disk.promoting_bytes and each.tries < TRIES:
        held = state.disks.objects.values()
        found_before = each.found
        each.shelved = [e.key for e in held if e.disk == disk.handle and _is_wanted(state, e.key)]
        each.found = len(each.shelved)
        # What went back to the disk, or could not be read, is tried again.
        each.tries = each.tries + 1 if each.found == found_before else 0
    started = 0
    while each.shelved and started < READ_IN_A_TURN and _is_room(state):
        found = state.disks.objects.get(each.shelved[-1])
        only = found is not None and found.disk == disk.handle
        if found is not None and only and _is_wanted(state, found.key):
            if promotion.start(state, found, make=False) != promotion.STARTED:
                break
            started += 1
        each.shelved.pop()
    left = each.shelved or (each.found and each.tries < TRIES)
    each.disk_done = not disk.promoting_bytes and not (left and _is_room(state))
    return bool(started)


def _is_wanted(state: State, key: bytes) -> bool:
    return state.index.find(key) is None and key not in state.in_progress


def _is_room(state: State) -> bool:
    if state.segments.fill_ratio() < state.config.watermark_low and state.segments.open():
        return True
    return is_backed(state)


def is_backed(state: State) -> bool:
    """Tell whether what leaves the memory of any node in use goes to its disk, which has room."""
    disks = {
        segment.peer: state.disks.by_peer.get(segment.peer) for segment in state.segments.open()
    }
    return (
        bool(disks)
        and not state.disks.selective
        and all(d and d.used_bytes < FULL * d.info.capacity_bytes for d in disks.values())
    )


def moved(state: State, each: Object) -> None:
    """An object is elsewhere, too: a drained node's disk does not keep it, nor get it any more."""
    for slot in each.slots:
        segment = state.segments.by_handle[slot.segment]
        disk = state.disks.by_peer.get(segment.peer)
        if segment.draining and disk is not None:
            generation = each.generation_at(slot)
            disk.answered(generation)
            if state.disks.stay(generation) is not None:
                state.offer([each])
    shelved = state.disks.objects.get(each.key)
    if shelved is not None:
        node = state.disks.by_handle[shelved.disk].info.node
        if node in state.copies.drains:
            state.drop_shelved(shelved)
