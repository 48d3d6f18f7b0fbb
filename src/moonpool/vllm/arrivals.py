"""A load whose objects another engine is still computing: how far they have come; sans I/O."""

from __future__ import annotations

from moonpool.core.messages import AWAIT_KEYS_MAX, ENDED, FAILED, OPEN, Awaited

LIMIT_S = 600.0
"""No load waits longer, whatever is heard of its prefill."""
WINDOW = 64
"""Objects asked about at a time."""
WAIT_S_MAX = 10.0
WAIT_S_MIN = 0.05
RETRY_S = 0.2
"""Rest after a question that could not be answered."""
AWAY_S = 1.5
"""A master that answers nothing for so long takes all hope with it: to compute costs less than to
wait for the next one."""
assert WINDOW <= AWAIT_KEYS_MAX


class Arrival:
    """Asks about the next objects until all are there or there is no hope any more.

    There is hope while objects come or the prefill engine gives signs of life, the last less than
    ``patience_s`` ago.
    """

    def __init__(
        self, count: int, patience_s: float, now: float, limit_s: float | None = None
    ) -> None:
        """count: the objects that are waited for, in order. limit_s: of claims; then only progress
        counts, and nobody who works on the next object ends the waiting."""
        self._claims = limit_s is not None
        self._limit_s = LIMIT_S if limit_s is None else limit_s
        self.count, self.ready, self.early = count, 0, 0
        """``ready`` objects are there; ``early`` of them came while their prefill was open."""
        self.over = False
        """Whether nothing more is waited for."""
        self._patience_s = patience_s
        self._sign = self._began = now
        self._rest_until = now
        self._asked = 0
        self._away_since: float | None = None

    @property
    def complete(self) -> bool:
        """Whether all objects are there."""
        return self.ready >= self.count

    @property
    def hopeless_at(self) -> float:
        """When to give up if nothing is heard until then."""
        most = min(self._sign + self._patience_s, self._began + self._limit_s)
        return most if self._away_since is None else min(most, self._away_since + AWAY_S)

    @property
    def due(self) -> float:
        """When to look again if nothing happens."""
        return self.hopeless_at if self._asked else min(self._rest_until, self.hopeless_at)

    def question(self, now: float) -> tuple[int, int, float] | None:
        """Return what to ask now: objects [first, last) and how long the answer may take, in
        seconds; None if there is nothing to ask."""
        if self.over or self._asked or now < self._rest_until:
            return None
        first, last = self.ready, min(self.count, self.ready + WINDOW)
        self._asked = last - first
        wait_s = min(self.hopeless_at - now, WAIT_S_MAX)
        return first, last, max(wait_s, WAIT_S_MIN)

    def heard(self, answer: Awaited | None, now: float) -> None:
        """Take in the answer; None if there was none."""
        asked, self._asked = self._asked, 0
        if answer is None:
            self._rest_until = now + RETRY_S
            if self._away_since is None:
                self._away_since = now
            return
        self._away_since = None
        count = min(max(answer.count, 0), asked)
        if count:
            self.ready += count
            self._sign = now
            self.early += count if answer.state == OPEN else 0
        elif answer.state == OPEN and not self._claims:
            self._sign = max(self._sign, min(now, now - answer.quiet_s))
        # The state of a claim is that of the first object asked about.
        closed = answer.state in (ENDED, FAILED) and count < asked
        if self._claims:
            closed = not count and answer.state != OPEN
        self.over = self.over or self.complete or closed

    def tick(self, now: float) -> bool:
        """Give up if it is time; return whether nothing more is waited for."""
        self.over = self.over or now >= self.hopeless_at
        return self.over
