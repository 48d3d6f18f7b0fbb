"""Puts under way: taking note of one, and giving one up."""

from __future__ import annotations

from typing import Final

from moonpool.core.segments import Put
from moonpool.core.state import State

_QUEUE_SLACK: Final = 4096


def add_put(state: State, put: Put) -> None:
    """Take note of a put and of the space its client ties up."""
    state.puts[put.generation] = put
    pending = state.pending_bytes
    pending[put.client] = pending.get(put.client, 0) + put.capacity
    if len(state.put_queue) > _QUEUE_SLACK + 2 * len(state.puts):
        alive = [each for each in state.put_queue if not each.resolved]
        state.put_queue.clear()
        state.put_queue.extend(alive)


def give_up(state: State, put: Put) -> None:
    """Free a put's places; its client has ended it. The nodes forget what it sealed there."""
    for slot in put.slots + put.held:
        state.drop_slot(slot, put.generation)
    state.resolve_put(put)
