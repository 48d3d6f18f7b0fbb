"""The master's state machine: requests in, answers and pushes out; no I/O, clock or chance."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Final, NamedTuple

from moonpool.core import (
    adopting,
    awaiting,
    browse,
    codes,
    copying,
    draining,
    feed,
    heating,
    nodes,
    pins,
    placing,
    promotion,
    puts,
    reads,
    removal,
    retiring,
    shelving,
    visiting,
)
from moonpool.core import messages as m
from moonpool.core.catching import catch_up
from moonpool.core.marks import Marks
from moonpool.core.room import evict_to_watermark
from moonpool.core.settings import MasterConfig
from moonpool.core.state import State
from moonpool.core.validate import validate

__all__ = ["MasterConfig", "MasterState", "Outcome"]


class Outcome(NamedTuple):
    """The answer to a request (None: it has none), what to send to nodes, by peer, and what to
    answer to Awaits that were parked, by number. ``parked``: the request is one, under this number.
    ``anew``: peers whose sessions are to end, so that they mount again what they have.
    """

    reply: m.Reply | None
    pushes: list[tuple[str, m.Push]]
    answers: tuple[tuple[int, m.Awaited], ...] = ()
    parked: int = 0
    anew: tuple[str, ...] = ()


_Verb = Callable[[State, Any, str], m.Reply | m.Parked | None]


def _peer_gone(state: State, request: m.PeerGone, _peer: str) -> None:
    if request.role == "node":
        nodes.node_gone(state, request.peer)
        return
    state.offer(state.leases.release_peer(request.peer))
    puts.client_gone(state, request.peer)
    state.handoffs.peer_gone(request.peer, state.now)


def _tick(state: State, _request: m.Tick, _peer: str) -> None:
    state.expire_leases()
    state.expire_puts()
    state.expire_soft_pins()
    catch_up(state)
    evict_to_watermark(state)
    promotion.go_on(state)
    heating.measure(state)
    _go_on_copying(state)
    state.handoffs.expire(state.now)
    state.feed.rest(state.now)


def _put_end(state: State, request: m.PutEnd, peer: str) -> m.Codes | m.Failed:
    before = len(state.copies.under_way)
    reply = puts.put_end(state, request, peer)
    if state.disks.by_handle:
        promotion.go_on(state)
    if len(state.copies.under_way) < before:
        _go_on_copying(state)
    return reply


def _go_on_copying(state: State) -> None:
    if state.copies.idle:
        return
    copying.note_newcomers(state)
    copying.expire(state)
    retiring.go_on_retiring(state)
    copying.repair(state)
    draining.go_on(state)
    heating.go_on(state)


def _changes(state: State, request: m.GetChanges, _peer: str) -> m.Changes:
    state.feed.ask(state.now)
    return feed.changes(state.feed, state.segments, request, state.epoch)


def _keys(state: State, request: m.GetKeys, _peer: str) -> m.Keys | m.Failed:
    return feed.keys(state.index, state.segments, request)


_VERBS: Final[dict[type[m.Message], _Verb]] = {
    m.Mount: nodes.mount,
    m.Announce: nodes.announce,
    m.AnnouncePacked: adopting.announce_packed,
    m.Damaged: nodes.damaged,
    m.Unmount: nodes.unmount,
    m.GetSegments: nodes.get_segments,
    m.WriterGone: nodes.on_writer_gone,
    m.PutStart: puts.put_start,
    m.PutEnd: _put_end,
    m.PutRevoke: puts.put_revoke,
    m.PutAbandon: puts.put_abandon,
    m.Match: reads.match,
    m.MatchKeys: reads.match_keys,
    m.Exists: reads.exists,
    m.Get: reads.get,
    m.Hold: reads.hold,
    m.Release: reads.release,
    m.Remove: removal.remove,
    m.RemoveAll: removal.remove_all,
    m.List: browse.list_objects,
    m.Stat: browse.stat,
    m.GetStatus: browse.status,
    m.GetChanges: _changes,
    m.GetKeys: _keys,
    m.Tell: awaiting.tell,
    m.Await: awaiting.wait,
    m.MountDisk: shelving.mount_disk,
    m.Shelve: shelving.shelve,
    m.Unshelve: shelving.unshelve,
    m.Prefetch: shelving.prefetch,
    m.Drain: draining.drain,
    m.Pin: pins.pin,
    m.Unpin: pins.unpin,
    m.UseSession: visiting.use_session,
    m.EndSession: visiting.end_session,
    m.Replicate: placing.replicate,
    m.WaitersGone: awaiting.gone,
    m.PeerGone: _peer_gone,
    m.Tick: _tick,
}


class MasterState:
    """All that a master knows, and what each request does to it.

    ``handle`` never raises for what a request says: one that cannot be served as a whole is
    answered by Failed and changes nothing; one item's failure is that item's code.
    """

    def __init__(self, config: MasterConfig, epoch: int, marks: Marks | None = None) -> None:
        """``marks`` follows the objects, in memory of the caller's choice."""
        self.state = State(config, epoch, marks)

    def handle(
        self, request: m.Request | m.PeerGone | m.WaitersGone | m.Tick, peer: str, now: float
    ) -> Outcome:
        """Serve a request of the session ``peer``.

        ``now`` is in seconds from any fixed point; a step back counts as no time at all.
        """
        state = self.state
        state.advance(now)
        verb = _VERBS.get(type(request))
        if verb is None:
            text = f"{type(request).__name__} is not for the state machine"
            return Outcome(m.Failed(codes.INVALID, text), [])
        reply = verb(state, request, peer)
        pushes, answers = state.take_pushes(), awaiting.answers(state)
        if isinstance(reply, m.Parked):
            return Outcome(None, pushes, answers, reply.number)
        anew, state.anew = tuple(state.anew), []
        return Outcome(reply, pushes, answers, anew=anew)

    def catch_up(self, now: float) -> bool:
        """Make some of the objects that were announced; tell whether some are left. For moments
        when there is little to do; every Tick does so too."""
        self.state.advance(now)
        return catch_up(self.state)

    def validate_state(self) -> None:
        """Raise AssertionError if any two parts of the state contradict each other."""
        validate(self.state)
