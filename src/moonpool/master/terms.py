"""A master among several: it stands by, and serves while it leads.

Each term has a Service of its own, with an empty state and a new epoch; nodes announce what they
hold. Nothing is answered, and nothing pushed, unless the lease is still ours at that moment, so a
leader that was frozen or cut off changes nothing when it wakes up.
"""

from __future__ import annotations

import gc
import logging
import time
from collections.abc import Callable

from moonpool.core.master import MasterState, Outcome
from moonpool.core.messages import Failed, Hello, Parked, Reply, Request
from moonpool.errors import NotLeaderError
from moonpool.ha.campaign import clock
from moonpool.ha.election import Election
from moonpool.master.board import Board
from moonpool.master.service import SESSIONS_MAX, Service
from moonpool.master.session import Session

log = logging.getLogger("moonpool.master")

MakeTerm = Callable[["Lead", int], "Term"]


class Term(Service):
    """A Service that acts only while its lead holds its epoch."""

    def __init__(
        self, lead: Lead, state: MasterState, epoch: int, token: str, board: Board
    ) -> None:
        super().__init__(state, epoch, token=token, board=board)
        self.local = lead.local
        self._lead = lead
        self._table = board

    def acts(self) -> bool:
        """Tell whether the lease is still held."""
        return self._lead.epoch() == self.epoch

    def greet(self, session: Session, hello: Hello) -> Reply:
        """See Service; once the lease may be another's, tell who leads."""
        if self.acts():
            return super().greet(session, hello)
        self._lead.look()
        return self._lead.greet(session, hello)

    def answer(self, session: Session, request: Request) -> Reply | Parked | None:
        """See Service; nothing is answered any more once the lease may be another's."""
        if self.acts():
            return super().answer(session, request)
        self._lead.look()
        return None

    def catch_up(self) -> bool:
        """See Service."""
        return self.acts() and super().catch_up()

    def abandon(self) -> None:
        """End all connections, without what was still to be sent on them."""
        for session in list(self.sessions):
            session.abort()
        self._table.close()

    def _deliver(self, outcome: Outcome) -> None:
        if self.acts():
            super()._deliver(outcome)


class Lead:
    """Begins and ends terms as the election goes; the Desk of connections in between."""

    def __init__(self, election: Election, make: MakeTerm) -> None:
        self.election = election
        self.term: Term | None = None
        self.local = ""
        self.sessions: set[Session] = set()
        self.terms = 0
        self._make = make

    def epoch(self) -> int | None:
        """Return the epoch in which this master may act at this moment."""
        return self.election.epoch(clock())

    @property
    def desk(self) -> Service | Lead:
        """Who is to greet a new connection."""
        return self if self.term is None else self.term

    def look(self) -> None:
        """Begin or end a term if the election says so. Costs next to nothing otherwise."""
        epoch = self.epoch()
        if self.term is not None and self.term.epoch != epoch:
            self._end(self.term)
        if self.term is None and epoch is not None:
            self._begin(epoch)

    def tick(self) -> None:
        """Let time pass: call about ten times a second."""
        self.look()
        now = self.now()
        for session in [s for s in self.sessions if s.stuck(now)]:
            self.refused(session, TimeoutError("it has been waited for too long"))
        if self.term is not None:
            self.term.tick()

    def catch_up(self) -> bool:
        """See Service."""
        return self.term is not None and self.term.catch_up()

    def close(self) -> None:
        """Stop serving, whatever the lease says."""
        if self.term is not None:
            self._end(self.term)
        for session in list(self.sessions):
            session.close()

    def _begin(self, epoch: int) -> None:
        self.terms += 1
        self.term = self._make(self, epoch)
        log.info("leads in epoch %d", epoch)

    def _end(self, term: Term) -> None:
        self.term = None
        term.abandon()
        log.warning("no longer leads in epoch %d", term.epoch)
        del term
        gc.collect()

    # --- the Desk of those who come while nobody leads here -----------------------------------

    def now(self) -> float:
        """See session.Desk."""
        return time.monotonic()

    def opened(self, session: Session) -> bool:
        """See session.Desk."""
        if len(self.sessions) >= SESSIONS_MAX:
            return False
        self.sessions.add(session)
        return True

    def greet(self, session: Session, hello: Hello) -> Reply:
        """Tell who leads."""
        leader = self.election.leader
        if leader is None or leader.holder == self.election.holder:
            return Failed(NotLeaderError.code, "this master does not lead, nor does another yet")
        text = f"this master does not lead; {leader.address} does, in epoch {leader.epoch}"
        return Failed(NotLeaderError.code, text, leader.address, leader.epoch)

    def answer(self, session: Session, request: Request) -> Reply | Parked | None:
        """See session.Desk. Never called: nobody is greeted with a Welcome."""
        return Failed(NotLeaderError.code, "this master does not lead")

    def park(self, session: Session, request_id: int, parked: Parked) -> None:
        """See session.Desk. Never called."""

    def refused(self, session: Session, reason: Exception) -> None:
        """See session.Desk."""
        log.warning("closed %s: %s", session, reason)

    def closed(self, session: Session) -> None:
        """See session.Desk."""
        self.sessions.discard(session)
