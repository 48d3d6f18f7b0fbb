"""Making the objects of the backlog: those that are asked for, and the others bit by bit."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final

from moonpool.core.state import State

STEP_OBJECTS: Final = 4096
QUIET_S: Final = 0.1
LATE_S: Final = 5.0
"""Objects are made when nothing was announced for a while, or after so long."""


def bring_in(state: State, keys: Sequence[bytes]) -> None:
    """Make those of the objects that are in the backlog."""
    if state.backlog:
        by_key = state.index.by_key
        state.make(*state.backlog.find([key for key in keys if key not in by_key]))


def catch_up(state: State, count: int = STEP_OBJECTS) -> bool:
    """Make up to so many objects, unless more are still being told; tell whether some are left."""
    backlog = state.backlog
    quiet = state.now - backlog.told >= QUIET_S or state.now - backlog.since >= LATE_S
    while backlog and quiet and count > 0:
        batch, rows = backlog.oldest(count)
        state.make((batch, rows))
        count -= len(rows)
    return bool(backlog)


def all_made(state: State) -> bool:
    """Tell whether all objects are made; what is left is made now if that does not take long."""
    if state.backlog.count <= STEP_OBJECTS:
        settle(state)
    return not state.backlog


def settle(state: State) -> None:
    """Make all objects that there are."""
    while state.backlog:
        state.make(state.backlog.oldest(1 << 20))
