"""Removing objects on demand. Nodes are told, so that a crash does not bring them back."""

from __future__ import annotations

from moonpool.core import codes
from moonpool.core.catching import settle
from moonpool.core.checks import is_packed
from moonpool.core.index import Object
from moonpool.core.messages import BATCH_ITEMS_MAX, Codes, Failed, Matched, Remove, RemoveAll
from moonpool.core.state import State


def remove(state: State, request: Remove, _peer: str) -> Codes | Failed:
    """Remove objects, item by item."""
    if len(request.keys) > BATCH_ITEMS_MAX:
        return Failed(codes.INVALID, f"{len(request.keys)} keys; {BATCH_ITEMS_MAX} are allowed")
    state.expire_leases()
    return Codes([_remove(state, key, force=request.force) for key in request.keys])


def _remove(state: State, key: bytes, *, force: bool) -> int:
    found = state.index.find(key)
    if found is None:
        if _remove_shelved(state, key):
            return codes.OK
        if key in state.in_progress:
            return codes.NOT_READY
        return codes.NOT_FOUND if is_packed(key) else codes.INVALID
    if found.leases and not force:
        return codes.LEASED
    _take_out(state, found)
    return codes.OK


def _remove_shelved(state: State, key: bytes) -> bool:
    """Remove what a disk has of a key; tell whether one had it."""
    shelved = state.disks.objects.get(key)
    if shelved is None:
        return False
    state.removed.note(key, state.generation)
    state.drop_shelved(shelved)
    put = state.in_progress.get(key)
    if put is not None and put.generation in state.disks.promotions:
        # What is being read from there must not come back.
        state.discard_put(put)
    state.counters["removed"] += 1
    return True


def remove_all(state: State, request: RemoveAll, _peer: str) -> Matched:
    """Remove what starts with a prefix; return how many objects. Leased ones stay unless forced."""
    state.expire_leases()
    settle(state)
    doomed = [
        each
        for each in state.index
        if each.key.startswith(request.prefix) and (request.force or not each.leases)
    ]
    for each in reversed(doomed):
        _take_out(state, each)
    on_disk = [key for key in state.disks.objects if key.startswith(request.prefix)]
    only = sum(_remove_shelved(state, k) for k in on_disk if state.index.find(k) is None)
    return Matched(len(doomed) + only)


def _take_out(state: State, found: Object) -> None:
    state.counters["removed"] += 1
    state.removed.note(found.key, state.generation)
    shelved = state.disks.objects.get(found.key)
    if shelved is not None:
        state.drop_shelved(shelved)
    # What a node is still writing to its disk must not come back.
    for slot in found.slots:
        generation = found.generation_at(slot)
        for disk in state.disks.by_handle.values():
            disk.answered(generation)
        state.drop_slot(slot, generation)
    state.remove_object(found)
