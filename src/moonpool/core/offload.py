"""What goes to disk, and when: as soon as it is put, or before it leaves memory.

Nodes write what they are told to and say what came of it. How much is on its way is bounded; what
there is no room for is lost when its memory is needed, as without a disk: puts never wait for one.
"""

from __future__ import annotations

from collections.abc import Iterable

from moonpool.core.disks import Disk, Leaving
from moonpool.core.eviction import is_evictable_leaf
from moonpool.core.index import Object
from moonpool.core.messages import ON_EVICT, SELECTIVE, WRITE_THROUGH, Slot
from moonpool.core.state import State

ANCESTORS_MAX = 64
"""When an object leaves, its parents will follow: so many are written with it."""
NOW, LATER, BUSY = range(3)


def was_put(state: State, added: Object) -> None:
    """Have an object written as soon as it is there, if its node's policy says so."""
    slot, disk = _place(state, added)
    if slot is None or disk is None:
        return
    policy = disk.info.policy
    again = policy == SELECTIVE and state.disks.is_ghost(added.key)
    if policy == WRITE_THROUGH or again:
        _ask(state, added, slot, disk)


def were_used(state: State, used: Iterable[Object]) -> None:
    """Have objects written that are used for the second time, where the policy says so."""
    for each in used:
        if each.key not in state.disks.objects:
            slot, disk = _place(state, each)
            if slot is not None and disk is not None and disk.info.policy == SELECTIVE:
                _ask(state, each, slot, disk)


def before_eviction(state: State, coldest: Object) -> int:
    """Have an object written that is to be evicted, and its parents, which will be next.

    NOW: evict it, it is on disk or need not be. LATER: it goes by itself when it is written.
    BUSY: as much is being written as may be.
    """
    if coldest.key in state.disks.objects:
        return NOW
    slot, disk = _place(state, coldest)
    if slot is None or disk is None or not _is_worth_it(coldest, disk):
        return NOW
    if not _ask(state, coldest, slot, disk):
        return BUSY
    space = state.segments.by_handle[slot.segment].space
    nbytes = space.capacity_at(slot.offset) or 0
    state.disks.leave(Leaving(coldest, coldest.used, nbytes, coldest.generation_at(slot)))
    _ask_parents(state, coldest)
    return LATER


def have_written(state: State, doomed: Iterable[Object]) -> bool:
    """Have those of the objects written that should be before they go; tell whether any is."""
    unsaved = False
    for each in doomed:
        if each.key not in state.disks.objects:
            slot, disk = _place(state, each)
            if slot is not None and disk is not None and _is_worth_it(each, disk):
                unsaved = True
                _ask(state, each, slot, disk)
    return unsaved


def _ask_parents(state: State, child: Object) -> None:
    for _ in range(ANCESTORS_MAX):
        parent = child.parent
        if parent is None or parent.first_child is not child or child.next is not None:
            return
        slot, disk = _place(state, parent)
        if slot is None or disk is None or not _is_worth_it(parent, disk):
            return
        if parent.key not in state.disks.objects and not _ask(state, parent, slot, disk):
            return
        child = parent


def settled(state: State, generation: int) -> Object | None:
    """A node has answered: return the object if it was to be evicted then and was not used since;
    the caller evicts it."""
    leaving = state.disks.stay(generation)
    if leaving is None:
        return None
    found = leaving.object
    if found.used == leaving.used and is_evictable_leaf(found):
        return found
    state.eviction.offer(found, state.index.count)
    return None


def _place(state: State, each: Object) -> tuple[Slot | None, Disk | None]:
    """Return a place of an object on a node that has a disk, and the disk: not one that is being
    drained, which is to have nothing any more, if there is another."""
    found: tuple[Slot | None, Disk | None] = None, None
    for slot in each.slots:
        segment = state.segments.by_handle[slot.segment]
        disk = state.disks.by_peer.get(segment.peer)
        if disk is not None and disk.ready:
            if not segment.draining:
                return slot, disk
            found = slot, disk
    return found


def _is_worth_it(each: Object, disk: Disk) -> bool:
    policy = disk.info.policy
    return policy in (ON_EVICT, WRITE_THROUGH) or each.used > each.serial


def _ask(state: State, each: Object, slot: Slot, disk: Disk) -> bool:
    """Have the node write an object; False if as much is on its way as may be."""
    size, generation = each.where.size, each.generation_at(slot)
    if generation in disk.asked:
        return True
    if disk.asked and disk.asked_bytes + size > disk.info.offload_bytes:
        state.counters["offload_refused"] += 1
        return False
    disk.ask(generation, size)
    state.counters["offloads"] += 1
    state.errands.offload(disk, slot, generation)
    return True
