"""Which hosts have an object, which copies are missing, and giving up those that need not be."""

from __future__ import annotations

from itertools import islice

from moonpool.core.copies import is_spare, wanted_of
from moonpool.core.index import Object
from moonpool.core.messages import Slot
from moonpool.core.state import State

LOOKED_AT_MAX = 256
"""Objects looked at in a turn."""


def healthy_hosts(state: State, each: Object) -> set[str]:
    """Return the hosts that have an object and are not being drained."""
    segments = [state.segments.by_handle[slot.segment] for slot in each.slots]
    return {segment.host for segment in segments if not segment.draining}


def note(state: State, each: Object, wait_s: float = 0.0) -> None:
    """Take note of whether an object is on too few hosts; it is seen to after ``wait_s``."""
    thin = state.copies.thin
    if len(healthy_hosts(state, each)) >= wanted_of(each.generation):
        thin.pop(each, None)
    elif each not in thin:
        thin[each] = state.now + wait_s
    spares = state.copies.spares
    if any(is_spare(each.generation_at(slot)) for slot in each.slots):
        spares[each] = None
    else:
        spares.pop(each, None)


def retire_drained(state: State, each: Object) -> None:
    """Give up an object's places on nodes that are being drained, as it is elsewhere."""
    for slot in each.slots:
        if state.segments.by_handle[slot.segment].draining:
            retire(state, each, slot)


def retire(state: State, each: Object, slot: Slot) -> None:
    """Give up a place of an object once none of those who know no other reads there."""
    where = each, slot.segment
    if where not in state.copies.retiring:
        state.copies.retiring[where] = state.leases.horizon
        retire_now(state, each, slot.segment)


def go_on_retiring(state: State) -> None:
    """Give up the places that nobody reads any more."""
    for each, handle in list(islice(state.copies.retiring, LOOKED_AT_MAX)):
        retire_now(state, each, handle)


def retire_now(state: State, each: Object, handle: int) -> None:
    """Give up a place that is to be given up, if that may be now; else forget it or keep it."""
    retiring = state.copies.retiring
    until = retiring.pop((each, handle))
    asked = (each, handle) in state.copies.moving
    state.copies.moving.pop((each, handle), None)
    slots = each.slots if each.alive else []
    here = [slot for slot in slots if slot.segment == handle]
    if not here or not (is_needless(state, each, here[0]) or (asked and len(slots) > 1)):
        return
    if each.leases and state.now < until:
        retiring[each, handle] = until
        if asked:
            state.copies.moving[each, handle] = None
        return
    (slot,) = here
    state.drop_slot(slot, each.generation_at(slot))
    each.move([other for other in slots if other.segment != handle])
    state.segments.by_handle[handle].release(slot)
    state.counters["copies_dropped"] += 1
    note(state, each)
    if state.feed.active:
        state.feed.note(each.key, each.slots[0].segment)


def is_needless(state: State, each: Object, slot: Slot) -> bool:
    """Tell whether an object is on as many hosts as there can be without one of its places."""
    by_handle = state.segments.by_handle
    rest = [by_handle[s.segment] for s in each.slots if s.segment != slot.segment]
    hosts = {s.host for s in rest if not s.draining}
    if not hosts:
        return False
    if by_handle[slot.segment].draining:
        return True
    return len(hosts) >= wanted_of(each.generation) and is_spare(each.generation_at(slot))


def drop_spare(state: State, handles: set[int] | None = None) -> int | None:
    """Give up a copy beyond those wanted that nobody reads, in one of these segments; return in
    which. None if there is none, as far as was looked."""
    for each in list(islice(state.copies.spares, LOOKED_AT_MAX)):
        slots = [] if each.leases else each.slots
        for slot in slots:
            there = handles is None or slot.segment in handles
            if there and is_spare(each.generation_at(slot)) and is_needless(state, each, slot):
                retire(state, each, slot)
                state.counters["spares_dropped"] += 1
                return slot.segment
    return None
