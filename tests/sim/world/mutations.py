"""Faults put into the product on purpose. The checks must find each within a few seeds."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from typing import Any

from moonpool.client.putting import Putter
from moonpool.core import puts
from moonpool.core.lease import LeaseBook
from moonpool.core.removed import Removed
from moonpool.core.state import State
from moonpool.ha import election
from moonpool.ha.seeker import Seeker
from moonpool.master.terms import Term
from moonpool.node.session import MasterSession
from moonpool.node.writers import Writers
from moonpool.transport import layout, small, wire
from moonpool.transport.owners import Owners
from tests.sim.world.cluster import Shape


@dataclass(frozen=True)
class Mutation:
    """What is changed, and in which kind of pool it shows best."""

    name: str
    change: Callable[[contextlib.ExitStack], None]
    shape: Shape | None = None
    seeds: int = 200


def _put(stack: contextlib.ExitStack, holder: Any, name: str, value: Any) -> Any:
    before = getattr(holder, name)
    setattr(holder, name, value)
    stack.callback(setattr, holder, name, before)
    return before


def _free_at_discard(stack: contextlib.ExitStack) -> None:
    def discard_put(self: State, put: Any) -> None:
        before(self, put)
        for slot in put.held:
            self.segments.by_handle[slot.segment].release(slot)
        put.held = []

    before = _put(stack, State, "discard_put", discard_put)
    _put(stack, Writers, "refused", lambda _self, _client, each: each < 0)


def _free_when_client_is_gone(stack: contextlib.ExitStack) -> None:
    def client_gone(state: State, client: str) -> None:
        for put in [each for each in state.puts.values() if each.client == client]:
            state.resolve_put(put)

    _put(stack, puts, "client_gone", client_gone)


def _leases_ignored(stack: contextlib.ExitStack) -> None:
    _put(stack, LeaseBook, "take", lambda *_args: None)


def _generations_not_compared(stack: contextlib.ExitStack) -> None:
    _put(stack, small, "_owned", lambda _views, _place: True)
    _put(stack, Owners, "equal", lambda _self, first, _count, _generations: first >= 0)


def _guard_of_the_election(stack: contextlib.ExitStack) -> None:
    _put(stack, election, "GUARD", 1.4)


def _deposed_goes_on(stack: contextlib.ExitStack) -> None:
    _put(stack, Term, "acts", lambda _self: True)
    _put(stack, Seeker, "accepted", lambda _self, _address, _epoch: None)


def _removals_not_told(stack: contextlib.ExitStack) -> None:
    _put(stack, State, "drop_slot", lambda _self, _slot, _generation: None)
    _put(stack, Removed, "note", lambda _self, _key, _newest: None)


def _removals_not_remembered(stack: contextlib.ExitStack) -> None:
    _put(stack, Removed, "note", lambda _self, _key, _newest: None)


def _half_written_is_taken_over(stack: contextlib.ExitStack) -> None:
    _put(stack, layout, "WRITING", layout.COMMITTED)


def _writers_gone_not_told(stack: contextlib.ExitStack) -> None:
    async def report(_self: MasterSession, _link: Any) -> None:
        await asyncio.Event().wait()

    _put(stack, MasterSession, "_report_gone", report)


def _failed_writes_count(stack: contextlib.ExitStack) -> None:
    def write_one(self: Putter, *args: Any) -> tuple[int, int, bool]:
        _, checksum, _ = before(self, *args)
        return 0, checksum, False

    before = _put(stack, Putter, "_write_one", write_one)


def _no_deadline(stack: contextlib.ExitStack) -> None:
    class Patient:
        def __init__(self, *_: Any) -> None:
            pass

        def within(self, _seconds: float) -> None:
            pass

        def arm(self) -> None:
            pass

    _put(stack, wire, "_Limit", Patient)


def _seen_before_its_end(stack: contextlib.ExitStack) -> None:
    def start(self: Any, item: Any) -> Any:
        grant = before(self, item)
        if grant.code == 0:
            puts._end(self.state, grant.generation, 0, self.peer)
        return grant

    before = _put(stack, puts._Starter, "start", start)


FULL = Shape(nodes=1, clients=3, sizes=(70_000, 150_000, 260_000), think_s=0.05, pause=0.1)
"""A pool in which space is reused all the time."""
SEVERAL = Shape(
    masters=3, nodes=1, clients=2, drift=0.05, faults=("cut_from_store", "freeze"), harm=6
)

MUTATIONS = [
    Mutation(
        "the space of a put that took too long is free at once",
        _free_at_discard,
        replace(FULL, pause=0.3),
    ),
    Mutation(
        "the space of a client that is gone is free at once",
        _free_when_client_is_gone,
        replace(FULL, faults=("break_stream",), harm=15, pause=0.3),
    ),
    Mutation("leases are ignored", _leases_ignored, replace(FULL, harm=0)),
    Mutation("page owners are not compared", _generations_not_compared),
    Mutation(
        "the guard of the election is removed",
        _guard_of_the_election,
        SEVERAL,
    ),
    Mutation(
        "a deposed leader goes on, and is listened to",
        _deposed_goes_on,
        SEVERAL,
    ),
    Mutation(
        "nodes are not told of removals",
        _removals_not_told,
        Shape(clients=3, faults=("kill_node", "break_stream"), harm=6, think_s=0.05),
    ),
    Mutation(
        "removals are not remembered",
        _removals_not_remembered,
        Shape(
            nodes=2, clients=3, faults=("kill_node", "break_stream", "cut"), think_s=0.05, harm=8
        ),
    ),
    Mutation("what was half written is taken over", _half_written_is_taken_over),
    Mutation(
        "a node does not say that a writer is gone",
        _writers_gone_not_told,
        Shape(faults=("kill_client",), harm=8),
    ),
    Mutation(
        "a put counts though its bytes were not moved",
        _failed_writes_count,
        Shape(faults=("kill_node", "cut"), harm=8, think_s=0.05),
    ),
    Mutation(
        "the data port has no deadlines",
        _no_deadline,
        Shape(faults=("freeze", "cut"), harm=10, think_s=0.05, pause=0.1),
    ),
    Mutation("an object can be read before it is written", _seen_before_its_end),
]


@contextlib.contextmanager
def mutated(mutation: Mutation) -> Iterator[None]:
    """Run the product with the fault inside the block."""
    with contextlib.ExitStack() as stack:
        mutation.change(stack)
        yield
