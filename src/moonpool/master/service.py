"""The desk behind the master's connections: who is there, and what they may ask.

One loop, one MasterState: requests of a connection are handled in the order they came in, and
what the state wants to tell nodes goes to their newest connection.
"""

from __future__ import annotations

import hmac
import logging
import time
from collections.abc import Callable
from typing import get_args

import msgspec

from moonpool.core.master import MasterState, Outcome
from moonpool.core.messages import (
    Announce,
    AnnouncePacked,
    Damaged,
    Drain,
    Failed,
    GetStatus,
    Hello,
    Mount,
    MountDisk,
    Parked,
    PeerGone,
    PutAbandon,
    PutEnd,
    PutRevoke,
    PutStart,
    Release,
    Remove,
    RemoveAll,
    Replicate,
    Reply,
    Request,
    Shelve,
    Status,
    Tell,
    Tick,
    Unmount,
    Unshelve,
    WaitersGone,
    Welcome,
    WriterGone,
)
from moonpool.errors import IllegalClientError, MoonpoolError, ProtocolError
from moonpool.master.board import Board
from moonpool.master.counts import Counts
from moonpool.master.session import Session
from moonpool.protocol.versions import negotiate

SESSIONS_MAX = 10_000
VALIDATE_EVERY_S = 60.0
STATUS_SHARE = 20
"""A status is good for this many times as long as it took to make."""
LOG_LINES_PER_S = 10

NODE_ONLY = frozenset(
    {Mount, Announce, AnnouncePacked, Damaged, Unmount, WriterGone, MountDisk, Shelve, Unshelve}
)
CHANGES = NODE_ONLY | {PutStart, PutEnd, PutRevoke, PutAbandon, Remove, RemoveAll, Tell, Drain}
CHANGES |= {Replicate}
REQUEST_KINDS: tuple[type[Request], ...] = get_args(Request)

log = logging.getLogger("moonpool.master")


class LogLimit(logging.Filter):
    """Lets peers cause so many lines a second; what is left out stays counted in the metrics."""

    def __init__(self, lines_per_s: int) -> None:
        super().__init__()
        self._lines_per_s = lines_per_s
        self._second = 0
        self._lines = 0

    def filter(self, record: logging.LogRecord) -> bool:
        """Tell whether the record may be written."""
        if int(record.created) != self._second:
            self._second, self._lines = int(record.created), 0
        self._lines += 1
        return self._lines <= self._lines_per_s


log.addFilter(LogLimit(LOG_LINES_PER_S))


class Service:
    """Answers sessions out of one MasterState. Not thread-safe: lives in one event loop."""

    def __init__(
        self,
        state: MasterState,
        epoch: int,
        *,
        token: str = "",
        clock: Callable[[], float] = time.monotonic,
        board: Board | None = None,
    ) -> None:
        """board: where clients on this host see which objects there are."""
        self.state = state
        self.epoch = epoch
        self.now = clock
        self.counts = Counts(kind.__name__ for kind in REQUEST_KINDS)
        self.sessions: set[Session] = set()
        self._peers: dict[str, list[Session]] = {}
        self._parked: dict[int, tuple[Session, int]] = {}
        self._board = board
        self.local = ""
        self.tenant_quotas = ""
        """The file of the tenants' quotas; empty or "memory": they are in no file."""
        self._token = token.encode()
        self._status: tuple[float, Status] | None = None
        self._validated_at = float("-inf")

    # --- connections --------------------------------------------------------------------------

    def opened(self, session: Session) -> bool:
        """Note a new connection; False if there are too many."""
        if len(self.sessions) >= SESSIONS_MAX:
            log.warning("closed %s: more than %d connections", session, SESSIONS_MAX)
            return False
        self.sessions.add(session)
        return True

    def greet(self, session: Session, hello: Hello) -> Reply:
        """Answer the first message; a Failed ends the connection."""
        try:
            version = negotiate(hello.version_min, hello.version_max)
            may_change = self._may_change(hello)
            others = self._peers.get(hello.peer, [])
            if others and others[0].role != hello.role:
                raise IllegalClientError(f"the peer {hello.peer} is a {others[0].role} already")
        except MoonpoolError as error:
            self.refused(session, error)
            return Failed(error.code, str(error))
        session.peer, session.role, session.may_change = hello.peer, hello.role, may_change
        self._peers.setdefault(hello.peer, []).append(session)
        log.debug("opened %s", session)
        return self._welcome(version)

    def _welcome(self, version: int) -> Welcome:
        board, lease_s = self._board, self.state.state.config.kv_lease_s
        if board is None or not board.path:
            return Welcome(version, self.epoch, kv_lease_s=lease_s)
        there = board.path, board.host, board.cookie, self.local
        return Welcome(version, self.epoch, *there, lease_s)

    def closed(self, session: Session) -> None:
        """Note the end of a connection; the peer is gone with its last one."""
        self.sessions.discard(session)
        if session.parked:
            for number in session.parked:
                self._parked.pop(number, None)
            self._event(WaitersGone(sorted(session.parked)))
            session.parked.clear()
        others = self._peers.get(session.peer)
        if others is None or session not in others:
            return
        others.remove(session)
        if not others:
            del self._peers[session.peer]
            log.debug("gone: %s", session)
            self._event(PeerGone(session.peer, session.role))

    def refused(self, session: Session, reason: Exception) -> None:
        """Note that the connection is closed for what its peer sent."""
        self.counts.refused += 1
        log.warning("closed %s: %s", session, reason)

    def _may_change(self, hello: Hello) -> bool:
        if not self._token:
            return True
        if not hello.token:
            return False
        if not hmac.compare_digest(hello.token.encode(errors="replace"), self._token):
            raise IllegalClientError("the token is wrong")
        return True

    # --- requests -----------------------------------------------------------------------------

    def answer(self, session: Session, request: Request) -> Reply | Parked | None:
        """Answer a request; None if it wants no answer, Parked if it is answered later."""
        kind = type(request)
        started = time.perf_counter_ns()
        try:
            if kind in CHANGES:
                self._check_rights(session, kind)
            if kind is Drain:
                self._status = None  # what was asked for is to be seen at once
            if kind is GetStatus:
                outcome = Outcome(self.status(), [])
            else:
                outcome = self.state.handle(request, session.peer, self.now())
        except ProtocolError:
            raise
        except MoonpoolError as error:
            outcome = Outcome(Failed(error.code, str(error)), [])
        except Exception:
            log.exception("a bug: %s of %s failed", kind.__name__, session)
            outcome = Outcome(self._after_bug(kind.__name__), [])
        if outcome.pushes or outcome.answers:
            self._deliver(outcome)
        self.counts.done(kind.__name__, time.perf_counter_ns() - started)
        if outcome.parked:
            return Parked(outcome.parked)
        return None if kind is Release else outcome.reply

    def park(self, session: Session, request_id: int, parked: Parked) -> None:
        """Remember who is to have the answer of this number."""
        self._parked[parked.number] = session, request_id
        session.parked.add(parked.number)

    def _check_rights(self, session: Session, kind: type[Request]) -> None:
        if not session.may_change:
            raise IllegalClientError(f"{kind.__name__} needs the master's token")
        if kind in NODE_ONLY and session.role != "node":
            raise IllegalClientError(f"{kind.__name__} is for nodes; this is a {session.role}")

    def _after_bug(self, what: str) -> Failed:
        """Count an error that should not be, and see now and then whether the state is sound."""
        self.counts.bugs += 1
        now = self.now()
        if now - self._validated_at >= VALIDATE_EVERY_S:
            self._validated_at = now
            try:
                self.state.validate_state()
            except Exception:
                log.exception("a bug: the state is not sound after it")
        return Failed(MoonpoolError.code, f"the master could not serve this {what}: see its log")

    # --- what happens by itself ---------------------------------------------------------------

    def tick(self) -> None:
        """Let time pass: call about ten times a second."""
        now = self.now()
        if self._board is not None:
            self._board.beat(self.state.state.disks.only)
        for session in [s for s in self.sessions if s.stuck(now)]:
            self.refused(session, TimeoutError("it has been waited for too long"))
        self._event(Tick())

    def catch_up(self) -> bool:
        """Do a little of what can wait; tell whether there is more of it."""
        try:
            return self.state.catch_up(self.now())
        except Exception:
            self.counts.bugs += 1
            log.exception("a bug: announced objects cannot be made")
            return False

    def status(self) -> Status:
        """Return the pool's state. It costs a walk over all objects, so that a large pool's is
        used again for a while."""
        now = self.now()
        if self._status is None or now >= self._status[0]:
            reply = self.state.handle(GetStatus(), "", now).reply
            if not isinstance(reply, Status):
                raise MoonpoolError(f"the state answered GetStatus with {type(reply).__name__}")
            clients = sum(sessions[0].role == "client" for sessions in self._peers.values())
            fresh = msgspec.structs.replace(reply, clients=clients)
            self._status = now + STATUS_SHARE * (self.now() - now), fresh
        return self._status[1]

    @property
    def token(self) -> bytes:
        """What those must say who want to change something; empty: nothing."""
        return self._token

    def change(self, request: RemoveAll | Drain) -> Reply | None:
        """Serve what somebody asked for over HTTP, who may do so."""
        outcome = self.state.handle(request, "", self.now())
        self._deliver(outcome)
        self._status = None
        return outcome.reply

    def close(self) -> None:
        """Close all connections."""
        for session in list(self.sessions):
            session.close()

    def _event(self, event: PeerGone | WaitersGone | Tick) -> None:
        try:
            self._deliver(self.state.handle(event, "", self.now()))
        except Exception:
            self.counts.bugs += 1
            log.exception("a bug: %s failed", event)

    def _deliver(self, outcome: Outcome) -> None:
        for peer, push in outcome.pushes:
            sessions = self._peers.get(peer)
            if sessions:
                sessions[-1].push(push)
        for peer in outcome.anew:
            for each in list(self._peers.get(peer, ())):
                log.warning("closed %s: another life of its node had its segments", each)
                each.close()
        for number, reply in outcome.answers:
            session, request_id = self._parked.pop(number, (None, 0))
            if session is not None:
                session.parked.discard(number)
                session.answer_later(request_id, reply)
