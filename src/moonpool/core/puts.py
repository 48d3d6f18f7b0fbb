"""Two-phase put: space is granted, the client writes, the object becomes readable.

Who may still write where: a put's places are given to others only when its client has said that
it is done (PutEnd or PutRevoke), or when the client is gone and the node of each place has
answered WriterGone. Time alone only gives the key back.

A PutStart whose answer was lost is not to be sent again on another connection: the client cannot
know the generation, and granting a second put of the key to the same peer would be wrong where
two threads of it put the same key. The connection's loss ends the session (PeerGone), which gives
the key back at once; until then the key answers -705, as for any other put in progress.
"""

from __future__ import annotations

import math
from bisect import bisect_left

from moonpool.core import admission, codes, copying, offload, pins
from moonpool.core.checks import SIZE_MAX, U64_MAX, is_packed, space_needed
from moonpool.core.copies import is_tagged
from moonpool.core.groups import GROUP_BYTES_MAX
from moonpool.core.index import Object
from moonpool.core.messages import (
    BATCH_ITEMS_MAX,
    Codes,
    Failed,
    FenceWriter,
    Grant,
    Located,
    PutAbandon,
    PutEnd,
    PutItem,
    PutRevoke,
    PutStart,
    PutStarted,
    Slot,
)
from moonpool.core.pending import add_put, give_up
from moonpool.core.retiring import note
from moonpool.core.room import make_room
from moonpool.core.segments import Placement, Put, Segment
from moonpool.core.state import VALUE_SIZES, State

_INVALID = Grant(codes.INVALID)
_EXISTS = Grant(codes.EXISTS)
_PIN_QUOTA = Grant(codes.PIN_QUOTA)


def put_start(state: State, request: PutStart, peer: str) -> PutStarted | Failed:
    """Grant space for objects, item by item."""
    if len(request.items) > BATCH_ITEMS_MAX:
        return Failed(codes.INVALID, f"{len(request.items)} items; {BATCH_ITEMS_MAX} are allowed")
    if not peer:
        return Failed(codes.ILLEGAL_CLIENT, "a put needs a named session")
    if not 1 <= request.replicas <= state.config.replicas_max:
        allowed = state.config.replicas_max
        return Failed(codes.INVALID, f"{request.replicas} replicas; 1 to {allowed} are allowed")
    if not math.isfinite(request.soft_pin_s) or request.soft_pin_s > state.config.soft_pin_s_max:
        text = f"soft_pin_s {request.soft_pin_s}: at most {state.config.soft_pin_s_max} are allowed"
        return Failed(codes.INVALID, text)
    if request.groups and len(request.groups) != len(request.items):
        text = f"{len(request.items)} items, but {len(request.groups)} groups"
        return Failed(codes.INVALID, text)
    if any(len(each) > GROUP_BYTES_MAX for each in request.groups):
        return Failed(codes.INVALID, f"a group's name of over {GROUP_BYTES_MAX} bytes")
    state.expire_leases()
    state.expire_puts()
    starter = _Starter(state, request, peer)
    if not request.groups:
        return PutStarted([starter.start(item) for item in request.items])
    each = zip(request.items, request.groups, strict=True)
    return PutStarted([starter.start(item, group) for item, group in each])


class _Starter:
    """Grants the items of one PutStart."""

    def __init__(self, state: State, request: PutStart, peer: str) -> None:
        self.state = state
        self.request = request
        self.peer = peer
        self.placement = Placement(state.segments.open(), request.preferred)
        # Where no room could be made for one item, none is looked for again for a larger one.
        self.hopeless = U64_MAX
        asked = request.soft_pin_s
        self.soft_pin_s = state.config.soft_pin_s if asked < 0 else asked
        self.group = b""

    def start(self, item: PutItem, group: bytes = b"") -> Grant:
        state = self.state
        self.group = group
        key, size, parent = item.key, item.size, item.parent
        if not is_packed(key) or not 0 < size <= SIZE_MAX:
            return _INVALID
        if parent and (parent == key or not is_packed(parent)):
            return _INVALID
        found = state.index.find(key)
        if key in state.in_progress or found is not None or key in state.disks.objects:
            state.counters["put_exists"] += 1
            if found is not None:
                self.put_again(found)
            return _EXISTS
        if state.tenants.on and (refused := admission.admit(state, key, size)):
            return Grant(refused)
        if self.request.pinned and not pins.fits(state, size):
            state.counters["pins_refused"] += 1
            return _PIN_QUOTA
        above = state.index.find(parent) if parent else None
        if above is not None:
            above.used = state.stamp()
            if state.eviction.counts:
                state.eviction.continued(above)
        return self.grant(item, space_needed(key, size))

    def put_again(self, found: Object) -> None:
        """What is there was computed once more: it was out of reach, or was not asked for."""
        state = self.state
        if state.disks.selective:
            offload.were_used(state, [found])
        if state.eviction.inner:
            state.touch([found])
            state.eviction.used([found])

    def grant(self, item: PutItem, needed: int) -> Grant:
        state = self.state
        if state.pending_bytes.get(self.peer, 0) + needed > state.config.pending_bytes_max:
            return self.refuse(wait=True)
        capacity, slots = self.placement.take(needed, self.request.replicas)
        if not slots:
            if not self.placement.fits(needed):
                return self.refuse_size()
            made = None
            if needed < self.hopeless:
                made = self.make_room(item, needed)
            if made is None:
                self.hopeless = min(self.hopeless, needed)
                return self.refuse(wait=self.can_wait())
            capacity, slots = made[0].space.capacity_of(needed), [made[1]]
        return self.begin(item, capacity, slots)

    def make_room(self, item: PutItem, needed: int) -> tuple[Segment, Slot] | None:
        state = self.state
        if state.eviction.counts:
            state.eviction.coming(item.key, state.index.find(item.parent))
        made = make_room(state, self.placement.segments, needed)
        if state.eviction.counts:
            state.eviction.coming(b"")
        return made

    def begin(self, item: PutItem, capacity: int, slots: list[Slot]) -> Grant:
        state = self.state
        replicas = self.request.replicas
        generation = state.next_generation(replicas)
        if len(slots) < replicas:
            state.counters["put_thin"] += 1
        put = Put(
            generation,
            item.key,
            item.size,
            item.parent,
            self.peer,
            capacity,
            state.now,
            self.request.pinned,
            slots,
            soft_pin_s=self.soft_pin_s,
            group=self.group,
        )
        for slot in slots:
            state.segments.by_handle[slot.segment].own(slot.offset, put)
        add_put(state, put)
        if put.pinned:
            state.pins.begin(generation, put.size)
        if state.tenants.on:
            state.tenants.begin(generation, put.key, put.size)
        state.in_progress[put.key] = put
        state.put_queue.append(put)
        return Grant(codes.OK, generation, capacity, slots)

    def refuse_size(self) -> Grant:
        if not self.placement.segments:
            return self.refuse(wait=self.can_wait())
        self.state.counters["put_refused"] += 1
        return _INVALID

    def refuse(self, *, wait: bool) -> Grant:
        state = self.state
        state.counters["put_retry" if wait else "put_refused"] += 1
        return Grant(codes.NO_SPACE, retry_after_s=state.config.retry_after_s if wait else 0.0)

    def can_wait(self) -> bool:
        """Tell whether space may become free without anybody removing objects."""
        state = self.state
        return bool(
            state.leases.count
            or state.puts
            or state.backlog
            or not all(each.ready for each in state.segments.by_handle.values())
        )


def put_end(state: State, request: PutEnd, peer: str) -> Codes | Failed:
    """Make objects readable."""
    generations, checksums = request.generations, request.checksums
    if len(generations) != len(checksums):
        text = f"{len(generations)} generations, but {len(checksums)} checksums"
        return Failed(codes.INVALID, text)
    if len(generations) > BATCH_ITEMS_MAX:
        return Failed(codes.INVALID, f"{len(generations)} items; {BATCH_ITEMS_MAX} are allowed")
    ended = [
        _end(state, generation, checksum, peer)
        for generation, checksum in zip(generations, checksums, strict=True)
    ]
    return Codes(ended)


def _end(state: State, generation: int, checksum: int, peer: str) -> int:
    put = state.puts.get(generation)
    if put is None:
        return codes.OK if state.was_ended(generation, peer) else codes.INVALID_WRITE
    if put.client != peer and put.client:
        return codes.ILLEGAL_CLIENT
    if not 0 <= checksum <= U64_MAX:
        return codes.INVALID
    if generation in state.copies.under_way:
        return copying.ended(state, put, checksum)
    if put.discarded:
        state.counters["put_late"] += 1
        give_up(state, put)
        return codes.INVALID_WRITE
    if state.index.find(put.key) is not None:
        # A node came back with the object meanwhile.
        state.counters["put_exists"] += 1
        state.removed.refuse(put.key, generation)
        give_up(state, put)
        return codes.EXISTS
    slots, put.slots = put.slots, []
    if put.generation in state.disks.promotions:
        state.counters["promotions_ended"] += 1
        state.counters["promotion_bytes"] += put.size
    state.resolve_put(put)
    state.remember_end(put)
    where = Located(put.size, checksum, generation, slots)
    added = state.add_object(put.key, put.parent, where, pinned=put.pinned)
    if put.group:
        state.groups.add(added, put.group)
    if put.soft_pin_s and not put.pinned:
        state.soft.add(added, state.now + put.soft_pin_s)
    if state.disks.by_handle and added.key not in state.disks.objects:
        offload.was_put(state, added)
    if is_tagged(generation):
        note(state, added)
    state.counters["puts"] += 1
    state.counters["put_bytes"] += put.size
    state.value_sizes[bisect_left(VALUE_SIZES, put.size)] += 1
    return codes.OK


def put_revoke(state: State, request: PutRevoke, peer: str) -> Codes | Failed:
    """Give puts up; their clients will not write any more."""
    if len(request.generations) > BATCH_ITEMS_MAX:
        return Failed(codes.INVALID, f"over {BATCH_ITEMS_MAX} items")
    revoked: list[int] = []
    for generation in request.generations:
        put = state.puts.get(generation)
        if put is None:
            code = codes.INVALID_WRITE
        elif put.client != peer and put.client:
            code = codes.ILLEGAL_CLIENT
        else:
            state.counters["put_revoked"] += 1
            copying.failed(state, put)
            code = codes.OK
        revoked.append(code)
    return Codes(revoked)


def put_abandon(state: State, request: PutAbandon, peer: str) -> Codes | Failed:
    """Give the keys of puts back; where they were to be written stays reserved."""
    if len(request.generations) > BATCH_ITEMS_MAX:
        return Failed(codes.INVALID, f"over {BATCH_ITEMS_MAX} items")
    return Codes([_abandon(state, generation, peer) for generation in request.generations])


def _abandon(state: State, generation: int, peer: str) -> int:
    put = state.puts.get(generation)
    # A copy has no key of its own.
    if put is None or generation in state.copies.under_way:
        return codes.INVALID_WRITE
    if put.client != peer:
        return codes.ILLEGAL_CLIENT
    state.discard_put(put)
    return codes.OK


def client_gone(state: State, client: str) -> None:
    """A client's session is over: its puts are orphans until the nodes say it cannot write."""
    nodes: dict[str, None] = {}
    for put in [each for each in state.puts.values() if each.client == client]:
        state.discard_put(put)
        put.orphaned = True
        for slot in put.held:
            nodes[state.segments.by_handle[slot.segment].peer] = None
        if not put.held and not put.absent:
            state.resolve_put(put)
    for node in nodes:
        state.push(node, FenceWriter(client, state.generation))


def writer_gone(state: State, client: str, generation: int, node: str) -> None:
    """A node says that a client cannot write into its segments any more."""
    handles = {each.handle for each in state.segments.of_peer(node)}
    for put in list(state.puts.values()):
        if put.client != client or not put.orphaned or (generation and put.generation > generation):
            continue
        for slot in [each for each in put.held if each.segment in handles]:
            put.held.remove(slot)
            state.segments.by_handle[slot.segment].release(slot)
            state.drop_slot(slot, put.generation)
        if not put.held and not put.absent:
            state.resolve_put(put)
