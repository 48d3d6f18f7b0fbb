"""Removing objects on demand. Nodes are told, so that a crash does not bring them back."""

from __future__ import annotations

from moonpool.core import codes
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
        if key in state.in_progress:
            return codes.NOT_READY
        return codes.NOT_FOUND if is_packed(key) else codes.INVALID
    if found.leases and not force:
        return codes.LEASED
    _take_out(state, found)
    return codes.OK


def remove_all(state: State, request: RemoveAll, _peer: str) -> Matched:
    """Remove what starts with a prefix; return how many objects. Leased ones stay unless forced."""
    state.expire_leases()
    doomed = [
        each
        for each in state.index
        if each.key.startswith(request.prefix) and (request.force or not each.leases)
    ]
    for each in reversed(doomed):
        _take_out(state, each)
    return Matched(len(doomed))


def _take_out(state: State, found: Object) -> None:
    state.counters["removed"] += 1
    for slot in found.slots:
        state.drop_slot(slot, found.generation)
    state.remove_object(found)
