"""Making room: eviction down to the watermark, and on demand for one put.

Nodes are not told of evictions. The entry of an evicted object stays in its segment's table, but
the page owners of its place name the next writer as soon as there is one; and should a crash
bring it back before that, it is the right bytes for its key, and any later put of the key has a
higher generation and wins.
"""

from __future__ import annotations

from moonpool.core import offload
from moonpool.core.catching import all_made
from moonpool.core.eviction import family, is_evictable_leaf
from moonpool.core.index import Object
from moonpool.core.messages import Slot
from moonpool.core.retiring import drop_spare
from moonpool.core.segments import Segment
from moonpool.core.state import State

_BUDGET_FACTOR = 4
_REGIONS_MAX = 16
_SPARED_MAX = 256
_FAMILY_MAX = 8192


def evict(state: State, evicted: Object) -> int:
    """Remove an object, and all of its group, to make room; return the bytes they took."""
    if not state.groups.of:
        return _evict(state, evicted)
    return sum(_evict(state, each) for each in state.groups.together(evicted))


def _evict(state: State, evicted: Object) -> int:
    if state.disks.by_handle:
        _leave_for_disk(state, evicted)
    if state.eviction.counts:
        state.eviction.evicted(evicted)
    if evicted.first_child is not None:
        state.counters["evicted_inner"] += 1
    freed = state.remove_object(evicted)
    state.counters["evicted_objects"] += 1
    state.counters["evicted_bytes"] += freed
    return freed


def _leave_for_disk(state: State, evicted: Object) -> None:
    disks = state.disks
    shelved = disks.objects.get(evicted.key)
    if shelved is not None:
        state.errands.touch(disks.by_handle[shelved.disk], evicted.key)
    else:
        state.counters["evicted_unsaved"] += 1
        if disks.selective:
            disks.remember(evicted.key)


def evict_to_watermark(state: State) -> None:
    """Above the high watermark, evict down to the low one (a bounded number of objects)."""
    disks = state.disks
    if state.segments.fill_ratio() <= state.config.watermark_high and not disks.draining:
        return
    if not all_made(state):
        return
    disks.draining = bool(disks.by_handle)
    _spares_to_watermark(state)
    for _ in range(state.config.evictions_per_tick_max):
        if state.segments.fill_ratio(disks.leaving_bytes) <= state.config.watermark_low:
            disks.draining = bool(disks.leaving)
            return
        coldest = _coldest(state)
        if coldest is None:
            return
        when = _before_eviction(state, coldest) if disks.by_handle else offload.NOW
        if when == offload.NOW:
            evict(state, coldest)
        elif when == offload.BUSY:
            state.offer([coldest])
            return


def _spares_to_watermark(state: State) -> None:
    """Before anything is evicted, give up copies beyond those wanted."""
    for _ in range(state.config.evictions_per_tick_max if state.copies.spares else 0):
        full = state.segments.fill_ratio() > state.config.watermark_low
        if not full or drop_spare(state) is None:
            return


def make_room(
    state: State, segments: list[Segment], size: int, *, spare: bool = False
) -> tuple[Segment, Slot] | None:
    """Evict until ``size`` bytes fit in one of the segments; return the place.

    What has to be written to disk first is spared as long as something else will do; with
    ``spare`` also if nothing else will.
    """
    usable = [each for each in segments if each.space.fits(size)]
    if state.copies.spares and not spare:
        place = _drop_spares(state, usable, size)
        if place is not None:
            return place
    if not all_made(state):
        return None  # soon: nothing goes before it is known what is used least
    if state.disks.by_handle:
        place = _evict_saved(state, usable, size) or _empty_region(state, usable, size, spare=True)
        if spare or place is not None:
            return place
    return _evict_leaves(state, usable, size) or _empty_region(state, usable, size)


def _drop_spares(state: State, usable: list[Segment], size: int) -> tuple[Segment, Slot] | None:
    """Give up copies beyond those wanted until there is room."""
    handles = {each.handle for each in usable}
    while (freed := drop_spare(state, handles)) is not None:
        place = _take(usable, [freed], size)
        if place is not None:
            return place
    return None


def _evict_saved(state: State, usable: list[Segment], size: int) -> tuple[Segment, Slot] | None:
    """Evict leaves that are on disk or need not be; have those written that are met meanwhile."""
    budget, met, found = _BUDGET_FACTOR * size, 0, None
    kept: list[Object] = []
    while budget > 0 and met < _SPARED_MAX and found is None:
        coldest = _coldest(state)
        if coldest is None:
            break
        when = _before_eviction(state, coldest)
        if when == offload.NOW:
            handles = _handles(state, coldest)
            budget -= evict(state, coldest)
            found = _take(usable, handles, size)
        else:
            # Where no more may be written, a few more are looked at, in case one is on disk.
            met += _SPARED_MAX // 16 if when == offload.BUSY else 1
            kept += [coldest] if when == offload.BUSY else []
    state.offer(kept)
    return found


def _take(usable: list[Segment], handles: list[int], size: int) -> tuple[Segment, Slot] | None:
    """Take space in one of these segments, if it has some now."""
    for segment in usable:
        if segment.handle in handles:
            slot = segment.take(size)
            if slot is not None:
                return segment, slot
    return None


def _coldest(state: State) -> Object | None:
    """Return the object to be evicted next; one of which only draining nodes have copies waits."""
    coldest = _next(state)
    while coldest is not None and state.copies.drains and _frees_nothing(state, coldest):
        state.copies.parked[coldest] = None
        coldest = _next(state)
    return coldest


def _frees_nothing(state: State, each: Object) -> bool:
    return all(state.segments.by_handle[slot.segment].draining for slot in each.slots)


def _handles(state: State, going: Object) -> list[int]:
    """Return in which segments the eviction of an object frees something."""
    all_of_it = state.groups.together(going) if state.groups.of else (going,)
    return [slot.segment for each in all_of_it for slot in each.slots]


def _before_eviction(state: State, coldest: Object) -> int:
    """Have an object written that is to be evicted; one with a group waits until all of it is."""
    if coldest not in state.groups.of:
        return offload.before_eviction(state, coldest)
    unsaved = offload.have_written(state, state.groups.together(coldest))
    return offload.BUSY if unsaved else offload.NOW


def _next(state: State) -> Object | None:
    """Return the coldest object of which no other of its group must stay."""
    groups = state.groups
    coldest = _of_all(state)
    while coldest is not None and groups.of and not groups.may_go(coldest):
        groups.parked[coldest] = None
        coldest = _of_all(state)
    return coldest


def _of_all(state: State) -> Object | None:
    coldest = state.eviction.pop()
    if coldest is None:
        state.offer(state.index.cut_cycles())
        coldest = state.eviction.pop()
    if coldest is None and state.soft and state.config.evict_soft_pinned:
        given_up = state.soft.give_up()
        state.counters["soft_pins_given_up"] += len(given_up)
        state.offer(given_up)
        coldest = state.eviction.pop()
    return coldest


def _coldest_at_once(state: State) -> Object | None:
    """Return the coldest that may go now, be it before it is on disk."""
    return _coldest(state) or _leaving(state)


def _leaving(state: State) -> Object | None:
    """Return what is still being written to disk, if nothing else is left to evict."""
    for generation in list(state.disks.leaving):
        found = state.disks.stay(generation)
        if found is not None and is_evictable_leaf(found.object):
            return found.object
    return None


def _evict_leaves(state: State, usable: list[Segment], size: int) -> tuple[Segment, Slot] | None:
    budget = _BUDGET_FACTOR * size
    while budget > 0:
        coldest = _coldest_at_once(state)
        if coldest is None:
            return None
        handles = _handles(state, coldest)
        budget -= evict(state, coldest)
        place = _take(usable, handles, size)
        if place is not None:
            return place
    return None


def _empty_region(
    state: State, usable: list[Segment], size: int, *, spare: bool = False
) -> tuple[Segment, Slot] | None:
    """Free a whole span around one of the coldest leaves, with all that hangs on what lies there.

    Where sizes are mixed, the least recently used objects lie scattered: each frees a slot of its
    own class, but never a span.
    """
    coldest: list[Object] = []
    next_one = _coldest if spare else _coldest_at_once
    while len(coldest) < _REGIONS_MAX and (leaf := next_one(state)) is not None:
        coldest.append(leaf)
    state.offer(coldest)
    by_handle = {each.handle: each for each in usable}
    for leaf in coldest:
        for slot in leaf.slots if leaf.alive else ():
            segment = by_handle.get(slot.segment)
            if segment is not None and _empty_around(state, segment, slot.offset, size, spare):
                taken = segment.take(size)
                if taken is not None:
                    return segment, taken
    return None


def _empty_around(state: State, segment: Segment, offset: int, size: int, spare: bool) -> bool:
    offsets = segment.space.blockers(size, offset)
    if offsets is None:
        return False
    owners = [segment.owner(each) for each in offsets]
    objects = [each for each in owners if isinstance(each, Object)]
    if len(objects) < len(owners):
        return False
    doomed = family(objects, _FAMILY_MAX)
    if doomed and state.groups.of:
        doomed = family(state.groups.widened(doomed), _FAMILY_MAX)
    if doomed is None or (spare and offload.have_written(state, doomed)):
        return False
    for each in doomed:
        if each.alive:
            evict(state, each)
    return True
