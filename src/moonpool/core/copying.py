"""Copies from node to node: which are begun, and what becomes of them.

The target's space is granted, owned and taken back like that of a put by the target's node, as in
a read from disk. The source is read as by any reader, so that whatever happens to it meanwhile is
noticed; what arrives counts only if the object is still the one that it was copied from.
"""

from __future__ import annotations

from moonpool.core import codes, offload
from moonpool.core.checks import space_needed
from moonpool.core.copies import ASKED, DRAIN, REPAIR, Copy, is_spare, wanted_of
from moonpool.core.draining_disks import is_backed, moved
from moonpool.core.index import Object
from moonpool.core.messages import CopyItem, Slot
from moonpool.core.pending import add_put, give_up
from moonpool.core.retiring import LOOKED_AT_MAX, healthy_hosts, note, retire_drained
from moonpool.core.room import make_room
from moonpool.core.segments import Put, Segment
from moonpool.core.state import State

STARTED, BUSY, NO_ROOM, NO_HOST = range(4)
"""What came of a wish for a copy: it is on its way; as much is under way as may be; there is no
room; there is no other host."""


def note_newcomers(state: State) -> None:
    """Take note of the objects that a master found when it started."""
    newcomers, state.copies.newcomers = state.copies.newcomers, []
    for each in newcomers:
        if each.alive:
            note(state, each, state.config.repair_after_s)


def begin(state: State, each: Object, why: str, *, spare: bool = False) -> int:
    """Have a copy made on another host, if that can be done now."""
    copies = state.copies
    if each in copies.busy or not _may_begin(state):
        return BUSY
    hosts = healthy_hosts(state, each)
    targets = [s for s in state.segments.open() if s.copies and s.host not in hosts]
    return _begin(state, each, targets, why, spare=spare)


def begin_at(state: State, each: Object, node: str, why: str, *, spare: bool) -> int:
    """Have a copy made on a node, be it of a host that has one."""
    open_ones = state.segments.open()
    targets = [s for s in open_ones if s.copies and s.info.node == node]
    if targets and (each in state.copies.busy or not _may_begin(state)):
        return BUSY
    return _begin(state, each, targets, why, spare=spare)


def _begin(state: State, each: Object, targets: list[Segment], why: str, *, spare: bool) -> int:
    if not targets:
        return NO_HOST
    source = _source(state, each)
    free = [s for s in targets if not _is_full(state, s.peer)]
    if source is None or not free:
        return BUSY
    place = _place(state, each, free, spare=spare and why != ASKED)
    if not each.alive:  # it was what went, to make room
        if place is not None:
            place[0].release(place[1])
        return NO_ROOM
    if place is None:
        return NO_ROOM if len(free) == len(targets) else BUSY
    _start(state, each, source, place, why, spare=spare)
    return STARTED


def _may_begin(state: State) -> bool:
    """Tell whether the bandwidth that copies may take leaves some for one more."""
    copies, rate = state.copies, state.config.copy_rate
    if not rate:
        return True
    passed = state.now - copies.credited_at
    copies.credited_at = state.now
    copies.credit = min(copies.credit + passed * rate, rate * state.config.copy_burst_s)
    return copies.credit > 0


def _is_full(state: State, peer: str) -> bool:
    """Tell whether as many bytes are on their way to or from a node as may be."""
    return state.copies.bytes_of[peer] >= state.config.copy_bytes_max


def _source(state: State, each: Object) -> tuple[Segment, Slot] | None:
    """Return the place to copy from: on the node that has least to do with copies."""
    by_handle, busy = state.segments.by_handle, state.copies.bytes_of
    places = [(by_handle[slot.segment], slot) for slot in each.slots]
    places = [(s, slot) for s, slot in places if s.ready and not _is_full(state, s.peer)]
    return min(places, key=lambda place: busy[place[0].peer], default=None)


def _place(
    state: State, each: Object, targets: list[Segment], *, spare: bool
) -> tuple[Segment, Slot] | None:
    """Take space for a copy where most is free. Nothing that is nowhere else goes for it."""
    needed = space_needed(each.key, each.where.size)
    config = state.config
    left = 1 - (config.watermark_low if spare else config.watermark_high)
    for segment in sorted(targets, key=lambda s: (-s.free_ratio(), s.handle)):
        if segment.free_ratio() - needed / segment.space.total_bytes < left:
            continue
        slot = segment.take(needed)
        if slot is not None:
            return segment, slot
    if spare or not is_backed(state):
        return None
    return make_room(state, targets, needed, spare=True)


def _start(
    state: State,
    each: Object,
    source: tuple[Segment, Slot],
    target: tuple[Segment, Slot],
    why: str,
    *,
    spare: bool,
) -> None:
    (from_segment, from_slot), (segment, slot) = source, target
    where = each.where
    generation = state.next_generation(wanted_of(where.generation), spare=spare)
    capacity = segment.space.capacity_at(slot.offset)
    put = Put(
        generation,
        each.key,
        where.size,
        each.parent_key,
        segment.peer,
        capacity,
        state.now,
        False,
        [],
        held=[slot],
        discarded=True,
    )
    segment.own(slot.offset, put)
    add_put(state, put)
    peers = from_segment.peer, segment.peer
    state.copies.begin(Copy(generation, each, *peers, where.size, state.now, why))
    state.counters["copies"] += 1
    item = CopyItem(
        each.key,
        each.parent_key,
        where.size,
        where.checksum,
        from_segment.info.address,
        from_segment.info.name,
        from_slot.index,
        from_slot.offset,
        each.generation_at(from_slot),
        slot.segment,
        slot.index,
        slot.offset,
        capacity,
        generation,
    )
    state.errands.copy(segment.peer, item)


# --- what becomes of them -------------------------------------------------------------------------


def ended(state: State, put: Put, checksum: int) -> int:
    """A node has made a copy: let it be read, unless the object is not there any more."""
    copy = state.copies.end(put.generation)
    if copy is None or put.orphaned or len(put.held) != 1:
        give_up(state, put)
        return codes.INVALID_WRITE
    each, slot = copy.object, put.held[0]
    segment = state.segments.by_handle[slot.segment]
    if (
        not each.alive
        or each.where.checksum != checksum
        or segment.draining
        or (copy.why != ASKED and not _is_missing(state, each, segment, put.generation))
    ):
        state.counters["copies_stale"] += 1
        give_up(state, put)
        return codes.INVALID_WRITE
    put.held = []
    state.resolve_put(put)
    state.remember_end(put)
    added = Slot(slot.segment, slot.index, slot.offset, put.generation)
    each.move([*each.slots, added])
    segment.own(slot.offset, each)
    if each in state.copies.parked:
        del state.copies.parked[each]
        state.offer([each])
    state.counters[f"{copy.why}_copies"] += 1
    state.counters[f"{copy.why}_copy_bytes"] += copy.nbytes
    note(state, each)
    if copy.why == DRAIN:
        moved(state, each)
        retire_drained(state, each)
    if state.disks.by_handle and each.key not in state.disks.objects:
        offload.was_put(state, each)
    return codes.OK


def _is_missing(state: State, each: Object, segment: Segment, generation: int) -> bool:
    hosts = healthy_hosts(state, each)
    thin = len(hosts) < wanted_of(each.generation)
    return segment.host not in hosts and (thin or is_spare(generation))


def failed(state: State, put: Put) -> None:
    """A node could not make a copy, and does not write any more."""
    _lost(state, put.generation)
    give_up(state, put)


def _lost(state: State, generation: int) -> None:
    copy = state.copies.end(generation)
    if copy is None:
        return
    state.counters["copies_failed"] += 1
    if copy.object.alive and copy.why == REPAIR:
        state.copies.thin.pop(copy.object, None)
        note(state, copy.object, state.config.copy_retry_s)


def node_gone(state: State, peer: str) -> None:
    """A node is gone, and with it what it was fetching."""
    for copy in list(state.copies.under_way.values()):
        if copy.target == peer:
            _lost(state, copy.generation)


def expire(state: State) -> None:
    """Give up hope for copies of which nothing is heard; their space waits for the node's word."""
    oldest = state.now - state.config.copy_timeout_s
    for copy in list(state.copies.under_way.values()):
        if copy.started > oldest:
            return  # they are in the order of their beginning
        _lost(state, copy.generation)


# --- too few, too many ----------------------------------------------------------------------------


def repair(state: State) -> None:
    """Begin to copy objects that are on fewer hosts than they want."""
    thin = state.copies.thin
    for _ in range(min(len(thin), LOOKED_AT_MAX)):
        each = next(iter(thin), None)
        if each is None:
            return  # the rest of them went to make room for copies
        due = thin.pop(each)
        begun = STARTED
        if due <= state.now and each not in state.copies.busy:
            if len(healthy_hosts(state, each)) >= wanted_of(each.generation):
                continue  # a drain was ended
            begun = begin(state, each, REPAIR)
            if begun in (NO_HOST, NO_ROOM):
                due = state.now + state.config.copy_retry_s
        # The first of those to be looked at again if there is no way for more now, else the last.
        if each.alive:
            thin[each] = due
        if begun == BUSY:
            return
