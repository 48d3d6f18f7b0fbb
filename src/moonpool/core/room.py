"""Making room: eviction down to the watermark, and on demand for one put.

Nodes are not told of evictions. The entry of an evicted object stays in its segment's table, but
the page owners of its place name the next writer as soon as there is one; and should a crash
bring it back before that, it is the right bytes for its key, and any later put of the key has a
higher generation and wins.
"""

from __future__ import annotations

from moonpool.core.eviction import family
from moonpool.core.index import Object
from moonpool.core.messages import Slot
from moonpool.core.segments import Segment
from moonpool.core.state import State

_BUDGET_FACTOR = 4
_REGIONS_MAX = 16
_FAMILY_MAX = 8192


def evict(state: State, evicted: Object) -> int:
    """Remove an object to make room; return the bytes it took."""
    freed = state.remove_object(evicted)
    state.counters["evicted_objects"] += 1
    state.counters["evicted_bytes"] += freed
    return freed


def evict_to_watermark(state: State) -> None:
    """Above the high watermark, evict down to the low one (a bounded number of objects)."""
    if state.segments.fill_ratio() <= state.config.watermark_high:
        return
    for _ in range(state.config.evictions_per_tick_max):
        if state.segments.fill_ratio() <= state.config.watermark_low:
            return
        coldest = _coldest(state)
        if coldest is None:
            return
        evict(state, coldest)


def make_room(state: State, segments: list[Segment], size: int) -> tuple[Segment, Slot] | None:
    """Evict until ``size`` bytes fit in one of the segments; return the place."""
    usable = [each for each in segments if each.space.fits(size)]
    return _evict_leaves(state, usable, size) or _empty_region(state, usable, size)


def _coldest(state: State) -> Object | None:
    coldest = state.leaves.pop()
    if coldest is None:
        state.offer(state.index.cut_cycles())
        coldest = state.leaves.pop()
    return coldest


def _evict_leaves(state: State, usable: list[Segment], size: int) -> tuple[Segment, Slot] | None:
    budget = _BUDGET_FACTOR * size
    while budget > 0:
        coldest = _coldest(state)
        if coldest is None:
            return None
        handles = [slot.segment for slot in coldest.slots]
        budget -= evict(state, coldest)
        for segment in usable:
            if segment.handle in handles:
                slot = segment.take(size)
                if slot is not None:
                    return segment, slot
    return None


def _empty_region(state: State, usable: list[Segment], size: int) -> tuple[Segment, Slot] | None:
    """Free a whole span around one of the coldest leaves, with all that hangs on what lies there.

    Where sizes are mixed, the least recently used objects lie scattered: each frees a slot of its
    own class, but never a span.
    """
    coldest: list[Object] = []
    while len(coldest) < _REGIONS_MAX and (leaf := _coldest(state)) is not None:
        coldest.append(leaf)
    state.offer(coldest)
    by_handle = {each.handle: each for each in usable}
    for leaf in coldest:
        for slot in leaf.slots if leaf.alive else ():
            segment = by_handle.get(slot.segment)
            if segment is not None and _empty_around(state, segment, slot.offset, size):
                taken = segment.take(size)
                if taken is not None:
                    return segment, taken
    return None


def _empty_around(state: State, segment: Segment, offset: int, size: int) -> bool:
    offsets = segment.space.blockers(size, offset)
    if offsets is None:
        return False
    owners = [segment.owner(each) for each in offsets]
    objects = [each for each in owners if isinstance(each, Object)]
    if len(objects) < len(owners):
        return False
    doomed = family(objects, _FAMILY_MAX)
    if doomed is None:
        return False
    for each in doomed:
        evict(state, each)
    return True
