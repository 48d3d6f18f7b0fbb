"""Draining a node: nothing new goes there, what it has goes elsewhere, nothing is lost meanwhile.

A pass goes over the node's objects again and again until there are none: puts that were under way
when it began end later, copies fail, room becomes free.
"""

from __future__ import annotations

from moonpool.core import codes
from moonpool.core.copies import DRAIN, Drain, wanted_of
from moonpool.core.copying import BUSY, NO_ROOM, STARTED, begin
from moonpool.core.draining_disks import bring, disk_of
from moonpool.core.index import Object
from moonpool.core.messages import Done, DrainStatus, Failed, SetDraining
from moonpool.core.messages import Drain as DrainRequest
from moonpool.core.retiring import healthy_hosts, retire_drained
from moonpool.core.segments import Segment
from moonpool.core.state import State

MET_IN_A_TURN = 1024
REST_S = 0.5
"""Between two passes."""


def drain(state: State, request: DrainRequest, _peer: str) -> Done | Failed:
    """Begin or end the drain of a node."""
    segments = state.segments.of_node(request.node)
    if not segments:
        return Failed(codes.NOT_FOUND, f"no node {request.node[:80]!r} is here")
    state.copies.said[request.node] = request.on
    _set(state, request.node, segments, on=request.on)
    for peer in {segment.peer: None for segment in segments if segment.copies}:
        state.push(peer, SetDraining(request.on))
    return Done()


def mounted(state: State, segment: Segment, *, draining: bool) -> None:
    """A node brings a segment: what was said here last counts, else what the node knows."""
    node = segment.info.node
    on = state.copies.said.get(node, draining)
    if segment.copies and on != draining:
        state.push(segment.peer, SetDraining(on))
    _set(state, node, [segment], on=on)


def node_left(state: State, node: str) -> None:
    """A node has taken its memory back: when it comes again it is like any other."""
    _set(state, node, [], on=False)
    state.copies.said.pop(node, None)


def _set(state: State, node: str, segments: list[Segment], *, on: bool) -> None:
    for segment in segments:
        segment.draining = on
    drains = state.copies.drains
    if on and node not in drains:
        drains[node] = Drain(node, state.now)
        state.counters["drains"] += 1
    elif not on:
        drains.pop(node, None)
        parked, state.copies.parked = state.copies.parked, {}
        state.offer(list(parked))


def go_on(state: State) -> None:
    """Go on with all drains, once all objects are known."""
    if state.backlog:
        return
    for each in state.copies.drains.values():
        if each.rests_until <= state.now:
            _pass(state, each)


def _pass(state: State, each: Drain) -> None:
    """Go on with a pass as far as copies may be begun now."""
    segments = {s.handle: s for s in state.segments.of_node(each.node) if s.ready}
    left = MET_IN_A_TURN
    for handle in sorted(h for h in segments if h >= each.segment):
        if handle != each.segment:
            each.segment, each.slab = handle, 0
        segment, following = segments[handle], 1
        while left > 0 and following:
            owners, following = segment.space.owners_from(each.slab, min(left, 64))
            left -= len(owners)
            stuck = _move_all(state, segment, owners)
            if stuck is None:
                return
            each.met += stuck
            each.slab = following
        if following:
            return
        each.segment, each.slab = handle + 1, 0
    each.stuck, each.met, each.segment, each.slab = each.met, 0, 0, 0
    each.rests_until = state.now + REST_S
    if not each.stuck and bring(state, each):
        each.rests_until = state.now


def _move_all(state: State, segment: Segment, owners: list[object]) -> int | None:
    """See to objects; return for how many nothing can be done, None if not all could be seen to."""
    stuck = 0
    for owner in owners:
        if isinstance(owner, Object):
            moved = _move(state, segment, owner)
            if moved == BUSY:
                return None
            stuck += moved == NO_ROOM
    return stuck


def _move(state: State, segment: Segment, each: Object) -> int:
    """See to an object on a node that is being drained; NO_ROOM if nothing can be done for it."""
    if not each.alive or each in state.copies.busy:
        return STARTED
    hosts = healthy_hosts(state, each)
    if len(hosts) < wanted_of(each.generation):
        begun = begin(state, each, DRAIN)
        if begun in (STARTED, BUSY):
            return begun
    if not each.place:  # it went, to make room
        return STARTED
    if hosts:
        retire_drained(state, each)
        return STARTED
    if _is_on_disk_elsewhere(state, segment, each):
        if not each.leases:
            for slot in each.slots:
                state.drop_slot(slot, each.generation_at(slot))
            state.remove_object(each)
            state.counters["drained_to_disk"] += 1
        return STARTED
    return NO_ROOM


def _is_on_disk_elsewhere(state: State, segment: Segment, each: Object) -> bool:
    shelved = state.disks.objects.get(each.key)
    if shelved is None:
        return False
    node = state.disks.by_handle[shelved.disk].info.node
    return node != segment.info.node and node not in state.copies.drains


def statuses(state: State) -> list[DrainStatus]:
    """Return how far the drains are."""
    return [_status(state, each) for each in state.copies.drains.values()]


def _status(state: State, each: Drain) -> DrainStatus:
    segments = state.segments.of_node(each.node)
    objects = sum(segment.table.used for segment in segments)
    under_way = state.copies.under_way.values()
    peers = {segment.peer for segment in segments}
    return DrainStatus(
        node=each.node,
        since_s=state.now - each.since,
        objects=objects,
        nbytes=sum(segment.space.used_bytes for segment in segments),
        copying_bytes=sum(copy.nbytes for copy in under_way if copy.source in peers),
        stuck=each.stuck if objects else 0,
        disk_only=_disk_only(state, each.node),
        empty=bool(segments)
        and all(s.ready for s in segments)
        and not objects
        and (each.disk_done or disk_of(state, each.node) is None),
    )


def _disk_only(state: State, node: str) -> int:
    handles = {each.handle for each in state.disks.by_handle.values() if each.info.node == node}
    if not handles:
        return 0
    held = [each for each in state.disks.objects.values() if each.disk in handles]
    return sum(state.index.find(each.key) is None for each in held)
