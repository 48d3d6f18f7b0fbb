"""Copies and moves to a node that somebody names.

Who asks asks again until it is done: that costs no list of tasks here, and none is lost with a
master. A copy so made is one beyond those wanted, and goes first when room is needed; what is moved
leaves its old place once nobody reads there.
"""

from __future__ import annotations

from moonpool.core import codes
from moonpool.core.copies import ASKED
from moonpool.core.copying import BUSY, NO_ROOM, STARTED, begin_at
from moonpool.core.index import Object
from moonpool.core.messages import Codes, Failed, Replicate
from moonpool.core.retiring import retire
from moonpool.core.state import State


def replicate(state: State, request: Replicate, _peer: str) -> Codes | Failed:
    """Begin, or tell how far it is: 0 done, -703 on its way or to be asked for again."""
    if request.node == request.source:
        return Failed(codes.INVALID, "an object cannot be moved to where it is")
    found = state.index.find(request.key)
    if found is None:
        return Codes([codes.NOT_FOUND])
    if not state.segments.of_node(request.node):
        return Codes([codes.NO_REPLICA])
    return Codes([_step(state, found, request)])


def _step(state: State, found: Object, request: Replicate) -> int:
    if _is_on(state, found, request.node):
        return _leave(state, found, request.source) if request.source else codes.OK
    if request.source and not _is_on(state, found, request.source):
        return codes.NO_REPLICA
    begun = begin_at(state, found, request.node, ASKED, spare=not request.source)
    if begun in (STARTED, BUSY):
        return codes.NOT_READY
    return codes.NO_SPACE if begun == NO_ROOM else codes.NO_REPLICA


def _leave(state: State, found: Object, node: str) -> int:
    """Give up what a node has of an object that is elsewhere by now, once nobody reads it."""
    by_handle = state.segments.by_handle
    for slot in found.slots:
        if by_handle[slot.segment].info.node == node:
            state.copies.moving[found, slot.segment] = None
            retire(state, found, slot)
    return codes.OK


def _is_on(state: State, found: Object, node: str) -> bool:
    return any(state.segments.by_handle[slot.segment].info.node == node for slot in found.slots)
