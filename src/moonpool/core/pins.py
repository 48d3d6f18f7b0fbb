"""The verbs of pins, and how much may be pinned for good."""

from __future__ import annotations

import math
from collections.abc import Callable

from moonpool.core import codes
from moonpool.core.checks import is_packed
from moonpool.core.index import Object
from moonpool.core.messages import BATCH_ITEMS_MAX, Codes, Failed, Pin, Unpin
from moonpool.core.state import State


def fits(state: State, nbytes: int) -> bool:
    """Tell whether so many bytes more may be hard-pinned."""
    most = state.config.hard_pin_share * state.segments.total_bytes()
    return state.pins.nbytes + nbytes <= most


def pin(state: State, request: Pin, _peer: str) -> Codes | Failed:
    """Pin objects in memory, item by item."""
    soft_s = state.config.soft_pin_s if request.soft_s < 0 else request.soft_s
    if not math.isfinite(soft_s) or soft_s > state.config.soft_pin_s_max:
        text = f"soft_s {soft_s}: at most {state.config.soft_pin_s_max} are allowed"
        return Failed(codes.INVALID, text)
    return _each(state, request.keys, lambda found: _pin(state, found, soft_s))


def unpin(state: State, request: Unpin, _peer: str) -> Codes | Failed:
    """End pins, hard or soft, item by item; an object that has none is no error."""
    return _each(state, request.keys, lambda found: _unpin(state, found))


def _each(state: State, keys: list[bytes], act: Callable[[Object], int]) -> Codes | Failed:
    if len(keys) > BATCH_ITEMS_MAX:
        return Failed(codes.INVALID, f"{len(keys)} keys; {BATCH_ITEMS_MAX} are allowed")
    state.expire_soft_pins()
    done: list[int] = []
    for key in keys:
        found = state.index.find(key)
        if found is not None:
            done.append(act(found))
        elif key in state.in_progress:
            done.append(codes.NOT_READY)
        else:
            done.append(codes.NOT_FOUND if is_packed(key) else codes.INVALID)
    return Codes(done)


def _pin(state: State, found: Object, soft_s: float) -> int:
    hard = found in state.pins
    if soft_s:
        if not hard:
            state.soft.add(found, state.now + soft_s)
        return codes.OK
    if not hard:
        if not fits(state, found.size):
            state.counters["pins_refused"] += 1
            return codes.PIN_QUOTA
        state.soft.forget(found)
        state.pins.add(found)
    return codes.OK


def _unpin(state: State, found: Object) -> int:
    if found.pinned:
        state.soft.forget(found)
        state.pins.forget(found)
        found.pinned = False
        state.offer([found])
    return codes.OK
