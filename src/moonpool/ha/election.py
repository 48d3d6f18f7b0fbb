"""Who leads: a state machine that is told the time and what a store answered; no I/O.

The store keeps one record and can compare and swap it. The leader writes it anew well before its
lease ends. Whoever has seen the same version of it for a lease's length, by its own clock, may
write itself in, with a higher epoch. No two clocks are ever compared: only the rates at which
they run have to agree, within the share that a leader gives up of its lease.

A lease counts from the moment at which its write was *sent*, and others wait from the moment at
which they *saw* it, so what is slow or lost in between only makes the leader stop earlier.
"""

from __future__ import annotations

from dataclasses import dataclass, replace

GUARD = 0.85
"""The share of a lease in which its holder acts."""
RENEW = 1 / 3
"""The share of a lease after which it is renewed; also how long a store may take to answer."""
LOOK = 1 / 6
"""The share of a lease between two looks of those who stand by."""
LEASE_S_MAX = 60.0


@dataclass(frozen=True)
class Record:
    """What the store keeps. ``holder`` names a process's life, empty once it has resigned;
    ``address`` is where the leader serves; ``beat`` counts renewals, so that each is a change."""

    holder: str
    address: str
    epoch: int
    lease_s: float
    beat: int = 0


@dataclass(frozen=True)
class Seen:
    """The record and the store's name for this version of it; both empty if there is none."""

    version: str
    record: Record | None


@dataclass(frozen=True)
class Read:
    """Ask for the record; answered by Seen."""


@dataclass(frozen=True)
class Write:
    """Replace the record if it still is ``version``. Answered by Written, or by Seen where it has
    another version."""

    record: Record
    version: str


@dataclass(frozen=True)
class Written:
    """The write was done; the record now has this version."""

    version: str


Action = Read | Write
Answer = Seen | Written


class Election:
    """One candidate. The caller asks ``next`` what to do, does it, and says how it went with
    ``answered`` or ``failed``; one action at a time. Times are seconds of one monotonic clock.
    """

    def __init__(self, holder: str, address: str, lease_s: float) -> None:
        self.holder = holder
        self.address = address
        self.lease_s = lease_s
        self.seen: Seen | None = None
        self._seen_at = 0.0
        self._look_at = float("-inf")
        self._must_look = False
        self._pending: tuple[Action, float] | None = None
        self._term: Record | None = None
        self._version = ""
        self._until = float("-inf")
        self._renew_at = 0.0

    # --- what is so ---------------------------------------------------------------------------

    def epoch(self, now: float) -> int | None:
        """Return the epoch in which this candidate leads and may act, None if it may not."""
        if self._term is None or now >= self._until:
            return None
        return self._term.epoch

    @property
    def until(self) -> float:
        """When this candidate must have stopped acting, unless it renews its lease before."""
        return self._until

    @property
    def leader(self) -> Record | None:
        """The leader as far as is known here; it may be gone."""
        record = None if self.seen is None else self.seen.record
        return record if record is not None and record.holder else None

    # --- what to do ---------------------------------------------------------------------------

    def next(self, now: float, floor: int) -> Action | None:
        """Return what to do now, if anything. A new epoch is at least ``floor``."""
        if self._pending is not None:
            return None
        self._end_if_over(now)
        term = self._term
        action = self._candidacy(now, floor) if term is None else self._renewal(term, now)
        if action is not None:
            self._pending = action, now
        return action

    def wait_s(self, now: float) -> float:
        """Return how long nothing is to be done, if nothing is answered meanwhile."""
        if self._term is not None:
            return max(0.0, min(self._renew_at, self._until) - now)
        return max(0.0, min(self._look_at, self._claim_at()) - now)

    def resign(self) -> Write | None:
        """Stop acting at once; return the write that lets another lead without waiting, if any."""
        term, self._term = self._term, None
        self._until = float("-inf")
        if term is None:
            return None
        return Write(replace(term, holder="", beat=term.beat + 1), self._version)

    # --- what came of it ----------------------------------------------------------------------

    def answered(self, answer: Answer, now: float) -> None:
        """Take the answer to the action under way."""
        action, sent_at = self._taken()
        self._end_if_over(now)
        if isinstance(answer, Written):
            if isinstance(action, Write):
                self._wrote(action.record, answer.version, sent_at, now)
            return
        self._must_look = False
        self._note(answer, now)
        if self._term is None:
            self._look_at = now + LOOK * self.lease_s
        elif self._is_own_term(answer.record):
            # The answer to an earlier renewal was lost, and with it from when on it counts.
            self._version, self._term = answer.version, answer.record
            self._renew_at = now
        else:
            self._end()

    def failed(self, now: float) -> None:
        """The action under way was not answered: whether it was done is not known."""
        action, _ = self._taken()
        self._end_if_over(now)
        if self._term is not None:
            self._renew_at = now + LOOK * RENEW * self.lease_s
        else:
            self._must_look = self._must_look or isinstance(action, Write)
            self._look_at = now + LOOK * self.lease_s

    # --- inside -------------------------------------------------------------------------------

    def _taken(self) -> tuple[Action, float]:
        if self._pending is None:
            raise RuntimeError("nothing was asked of the store")
        taken, self._pending = self._pending, None
        return taken

    def _wrote(self, record: Record, version: str, sent_at: float, now: float) -> None:
        self._note(Seen(version, record), now)
        until = sent_at + GUARD * self.lease_s
        if record.beat and self._term is None:
            self._look_at = now  # a renewal that came too late
        elif now < until:
            self._version, self._term = version, record
            self._until = until
            self._renew_at = sent_at + RENEW * self.lease_s
        else:
            self._end()

    def _note(self, seen: Seen, now: float) -> None:
        if self.seen is None or self.seen.version != seen.version:
            self.seen, self._seen_at = seen, now

    def _renewal(self, term: Record, now: float) -> Action | None:
        if now < self._renew_at:
            return None
        return Write(replace(term, beat=term.beat + 1), self._version)

    def _candidacy(self, now: float, floor: int) -> Action | None:
        if self.seen is None or self._must_look or now < self._claim_at():
            return Read() if now >= self._look_at else None
        record = self.seen.record
        epoch = max(floor, 1 if record is None else record.epoch + 1)
        return Write(Record(self.holder, self.address, epoch, self.lease_s), self.seen.version)

    def _claim_at(self) -> float:
        """Return when the record may be replaced."""
        if self.seen is None or self._must_look:
            return float("inf")
        record = self.seen.record
        if record is None or record.holder in ("", self.holder):
            return self._seen_at
        return self._seen_at + min(max(record.lease_s, self.lease_s), LEASE_S_MAX)

    def _is_own_term(self, record: Record | None) -> bool:
        term = self._term
        return (
            record is not None
            and term is not None
            and (record.holder, record.epoch) == (term.holder, term.epoch)
        )

    def _end_if_over(self, now: float) -> None:
        if self._term is not None and now >= self._until:
            self._end()

    def _end(self) -> None:
        """A term is over. It is never taken up again: the next one has another epoch."""
        self._term = None
        self._until = self._look_at = float("-inf")
        self._must_look = True
