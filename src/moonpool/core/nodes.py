"""Segments come, tell what they hold, and go."""

from __future__ import annotations

from moonpool.core import codes, copying, draining
from moonpool.core.catching import settle
from moonpool.core.checks import SIZE_MAX, U64_MAX, is_packed, space_needed
from moonpool.core.copies import is_spare, is_tagged, wanted_of
from moonpool.core.index import Object
from moonpool.core.messages import (
    BATCH_ITEMS_MAX,
    Announce,
    Announced,
    Damaged,
    Done,
    Failed,
    FenceWriter,
    Found,
    GetSegments,
    Located,
    Mount,
    Mounted,
    SegmentInfo,
    Segments,
    Slot,
    Unmount,
    WriterGone,
)
from moonpool.core.pending import add_put
from moonpool.core.puts import client_gone, writer_gone
from moonpool.core.retiring import healthy_hosts, note
from moonpool.core.segments import Put, Segment
from moonpool.core.shelving import drop_disk
from moonpool.core.sizes import PAGE_BYTES
from moonpool.core.state import GENERATION_MAX, State

SEGMENTS_MAX = 4096
TABLE_SLOTS_MAX = 1 << 24
SEGMENT_BYTES_MAX = 1 << 42
_TEXT_MAX = 4096


def mount(state: State, request: Mount, peer: str) -> Mounted | Failed:
    """Take a segment in. A node that comes back replaces what it had mounted before."""
    info = request.segment
    wrong = _what_is_wrong(info) or (
        None if 0 <= request.generation_max <= GENERATION_MAX else "generation_max out of range"
    )
    if wrong:
        return Failed(codes.INVALID, f"segment {info.name[:80]!r}: {wrong}")
    before = state.segments.by_name.get((info.node, info.name))
    if before is not None and before.info.host != info.host:
        return Failed(
            codes.ILLEGAL_CLIENT,
            f"segment {info.name!r} of node {info.node!r} is mounted from {before.info.host!r}",
        )
    if before is None and len(state.segments.by_handle) >= SEGMENTS_MAX:
        return Failed(codes.INVALID, f"{SEGMENTS_MAX} segments are mounted; no more are allowed")
    if before is not None:
        drop_segment(state, before)
    state.generation = max(state.generation, request.generation_max)
    segment = state.segments.mount(info, peer)
    segment.copies = request.copies
    segment.before = before.peer if before is not None and before.peer != peer else ""
    draining.mounted(state, segment, draining=request.draining)
    _take_back_places(state, segment)
    state.counters["mounted"] += 1
    return Mounted(segment.handle, state.epoch)


def _what_is_wrong(info: SegmentInfo) -> str | None:
    texts = (info.name, info.node, info.host, info.address, info.path)
    if not info.name or not info.node:
        return "its name and its node's must not be empty"
    if any(len(each) > _TEXT_MAX for each in texts):
        return f"a text of over {_TEXT_MAX} characters"
    if not PAGE_BYTES <= info.data_bytes <= SEGMENT_BYTES_MAX:
        return f"data_bytes = {info.data_bytes}: {PAGE_BYTES} to {SEGMENT_BYTES_MAX} are allowed"
    if not 1 <= info.slots <= TABLE_SLOTS_MAX:
        return f"slots = {info.slots}: 1 to {TABLE_SLOTS_MAX} are allowed"
    return None


def _take_back_places(state: State, segment: Segment) -> None:
    """Keep the places of unfinished puts in a segment that is back.

    Their writers may still have it mapped. If the shape differs it is a new file, which they
    do not have.
    """
    places = state.absent.pop(segment.name, {})
    shape = state.absent_shapes.pop(segment.name, None)
    same = shape == (segment.info.data_bytes, segment.info.slots)
    clients: dict[str, None] = {}
    for generation, place in places.items():
        put = state.puts[generation]
        put.absent -= 1
        slot = segment.reserve(place.index, place.offset, put.capacity) if same else None
        if slot is not None:
            segment.own(slot.offset, put)
            put.held.append(slot)
            if put.orphaned and put.client:
                clients[put.client] = None
        elif not put.slots and not put.held and not put.absent:
            state.resolve_put(put)
    for client in clients:
        state.push(segment.peer, FenceWriter(client, state.generation))


def announce(state: State, request: Announce, peer: str) -> Announced | Failed:
    """Adopt what a segment holds; the last piece opens it for puts."""
    segment = announcing(state, request.handle, peer)
    if isinstance(segment, Failed):
        return segment
    if len(request.objects) > BATCH_ITEMS_MAX:
        return Failed(codes.INVALID, f"over {BATCH_ITEMS_MAX} objects")
    rejected: list[int] = []
    # Places being written first: such a writer may be about to overwrite an older object. Then by
    # age: parents come before their children, and the order of eviction follows it.
    for found in sorted(request.objects, key=lambda each: (not each.writing, each.generation)):
        adopted = _is_sane(found) and (
            _keep_writing(state, segment, found) if found.writing else adopt(state, segment, found)
        )
        state.counters["announced" if adopted else "announce_rejected"] += 1
        if not adopted:
            rejected.append(found.index)
    segment.ready = segment.ready or request.last
    return Announced(rejected)


def announcing(state: State, handle: int, peer: str) -> Segment | Failed:
    """Return the segment about which a node may speak."""
    segment = state.segments.by_handle.get(handle)
    if segment is None:
        return Failed(codes.NOT_FOUND, f"no segment {handle}")
    if segment.peer != peer:
        return Failed(codes.ILLEGAL_CLIENT, f"segment {handle} is another node's")
    return segment


def _is_sane(found: Found) -> bool:
    return (
        0 < found.generation <= GENERATION_MAX
        and 0 < found.capacity <= SIZE_MAX
        and 0 <= found.checksum <= U64_MAX
        and (
            found.writing
            or (
                found.size > 0
                and is_packed(found.key)
                and space_needed(found.key, found.size) <= found.capacity
                and (not found.parent or is_packed(found.parent))
                and found.parent != found.key
            )
        )
    )


def adopt(state: State, segment: Segment, found: Found) -> bool:
    """Make a found object readable, unless a newer one of its key is known.

    A copy of the one that is known is added, as far as copies are wanted.
    """
    if state.removed.covers(found.key, found.generation):
        return False
    known = state.index.find(found.key)
    if known is not None:
        if _is_wanted_copy(state, segment, found, known):
            return _add_replica(state, segment, found, known)
        if known.generation >= found.generation or _has_copies(known):
            return False
    slot = segment.reserve(found.index, found.offset, found.capacity)
    if slot is None:
        return False
    if known is not None:
        for old in known.slots:
            state.drop_slot(old, known.generation_at(old))
        state.remove_object(known)
        state.counters["announce_replaced"] += 1
    state.generation = max(state.generation, found.generation)
    where = Located(found.size, found.checksum, found.generation, [slot])
    added = state.add_object(found.key, found.parent, where, pinned=False)
    if is_tagged(found.generation):
        note(state, added, state.config.repair_after_s)
    return True


def _is_wanted_copy(state: State, segment: Segment, found: Found, known: Object) -> bool:
    """Tell whether what was found is of the same bytes and one of the copies that there are to
    be."""
    where = known.where
    if (where.size, where.checksum) != (found.size, found.checksum):
        return False
    if found.generation == known.generation and not _has_copies(known):
        return True
    hosts = healthy_hosts(state, known)
    if segment.draining or segment.host in hosts:
        return False
    return len(hosts) < wanted_of(known.generation) or is_spare(found.generation)


def _has_copies(known: Object) -> bool:
    """Tell whether an object has copies that were made after its put."""
    return any(slot.generation for slot in known.slots)


def _add_replica(state: State, segment: Segment, found: Found, known: Object) -> bool:
    slots = known.slots
    for slot in slots:
        if slot.segment == segment.handle:
            return (slot.index, slot.offset) == (found.index, found.offset)
    added = segment.reserve(found.index, found.offset, found.capacity)
    if added is None:
        return False
    state.generation = max(state.generation, found.generation)
    segment.own(added.offset, known)
    known.move([*slots, Slot(added.segment, added.index, added.offset, found.generation)])
    note(state, known, state.config.repair_after_s)
    return True


def _keep_writing(state: State, segment: Segment, found: Found) -> bool:
    """Keep a place from others while an unknown client writes there."""
    put = state.puts.get(found.generation)
    place = Slot(segment.handle, found.index, found.offset)
    if put is not None:
        here = [slot for slot in put.slots + put.held if slot.segment == segment.handle]
        if here or put.capacity != found.capacity:
            return place in here
    if segment.reserve(found.index, found.offset, found.capacity) is None:
        return False
    if put is None:
        put = _unknown_put(state, found)
    elif put.orphaned and put.client:
        state.push(segment.peer, FenceWriter(put.client, state.generation))
    put.held.append(place)
    segment.own(place.offset, put)
    return True


def _unknown_put(state: State, found: Found) -> Put:
    state.generation = max(state.generation, found.generation)
    put = Put(
        generation=found.generation,
        key=b"",
        size=found.size,
        parent=b"",
        client="",
        capacity=found.capacity,
        started=state.now,
        pinned=False,
        slots=[],
        discarded=True,
        orphaned=True,
    )
    add_put(state, put)
    return put


def damaged(state: State, request: Damaged, peer: str) -> Done | Failed:
    """Forget the copies of objects that a node found to be damaged."""
    segment = announcing(state, request.handle, peer)
    if isinstance(segment, Failed):
        return segment
    settle(state)
    for offset, generation in zip(request.offsets, request.generations, strict=False):
        owner = segment.found_at(offset)
        if not isinstance(owner, Object):
            continue
        here = [slot for slot in owner.slots if slot.segment == segment.handle]
        if owner.generation_at(here[0]) == generation:
            state.counters["damaged_objects"] += 1
            rest = [slot for slot in owner.slots if slot.segment != segment.handle]
            if rest:
                owner.move(rest)
                segment.release(here[0])
                note(state, owner)
            else:
                state.remove_object(owner)
    return Done()


def unmount(state: State, request: Unmount, peer: str) -> Done | Failed:
    """Let a node take its segment back."""
    segment = announcing(state, request.handle, peer)
    if isinstance(segment, Failed):
        return segment
    drop_segment(state, segment)
    if not state.segments.of_node(segment.info.node):
        draining.node_left(state, segment.info.node)
    return Done()


def node_gone(state: State, peer: str) -> None:
    """A node's session is over: what only it held is gone at once.

    If its Mount came late, after that of the node's next life, it has taken the segment from a
    session that does not know: that one is to begin anew, if it is still there.
    """
    for segment in state.segments.of_peer(peer):
        if segment.before:
            state.anew.append(segment.before)
        drop_segment(state, segment)
    copying.node_gone(state, peer)
    disk = state.disks.by_peer.get(peer)
    if disk is not None:
        drop_disk(state, disk)
    if disk is not None or peer in state.pending_bytes:
        client_gone(state, peer)


def drop_segment(state: State, segment: Segment) -> None:
    """Forget a segment. Unfinished puts keep their places there, should it come back."""
    settle(state)
    state.segments.unmount(segment)
    for _, owner in segment.owners():
        if isinstance(owner, Put):
            _lose_place(state, segment, owner)
        else:
            _lose_replica(state, segment, owner)
    _bound_absent(state)


def _lose_replica(state: State, segment: Segment, owner: Object) -> None:
    rest = [slot for slot in owner.slots if slot.segment != segment.handle]
    owner.move(rest)
    if not rest:
        state.counters["lost_objects"] += 1
        state.remove_object(owner)
    elif is_tagged(owner.generation):
        note(state, owner, state.config.repair_after_s)


def _lose_place(state: State, segment: Segment, put: Put) -> None:
    for slot in put.slots + put.held:
        if slot.segment == segment.handle:
            state.absent.setdefault(segment.name, {})[put.generation] = slot
            state.absent_shapes[segment.name] = (segment.info.data_bytes, segment.info.slots)
            put.absent += 1
    put.slots = [slot for slot in put.slots if slot.segment != segment.handle]
    put.held = [slot for slot in put.held if slot.segment != segment.handle]
    if not put.slots:
        state.discard_put(put)


def _bound_absent(state: State) -> None:
    """Forget the longest absent segments' places if there are too many."""
    while sum(map(len, state.absent.values())) > state.config.absent_claims_max:
        name = next(iter(state.absent))
        del state.absent_shapes[name]
        for generation in state.absent.pop(name):
            put = state.puts[generation]
            put.absent -= 1
            if not put.slots and not put.held and not put.absent:
                state.resolve_put(put)


def get_segments(state: State, _request: GetSegments, _peer: str) -> Segments:
    """Return all segments."""
    return Segments([each.info for each in state.segments.by_handle.values()])


def on_writer_gone(state: State, request: WriterGone, peer: str) -> Done:
    """A node answers FenceWriter."""
    writer_gone(state, request.client, request.generation, peer)
    return Done()
