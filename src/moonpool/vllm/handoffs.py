"""The prefill side of handoffs: tells the master how the requests go that others wait for, and
which objects are being computed that others may want to wait for.

A handoff is open from the request's arrival until it has ended and its last save is done; while it
is open, the engine's steps repeat that now and then, so that a stuck engine is noticed.
"""

from __future__ import annotations

import itertools
import threading
from collections.abc import Sequence
from dataclasses import dataclass, field

from moonpool.core.messages import ENDED, FAILED, OPEN, News
from moonpool.errors import MoonpoolError
from moonpool.vllm.courier import Courier
from moonpool.vllm.link import Clock, Link
from moonpool.vllm.stats import Tally

HANDOFFS_MAX = 4096
BEAT_S = 1.0
UNTOLD_MAX = 8192


@dataclass(slots=True)
class _Handoff:
    names: tuple[str, ...]
    began: float
    claims: bool
    jobs: set[int] = field(default_factory=set)
    over: bool = False
    good: bool = False


class Handoffs:
    """All of one engine. Called by the scheduler's thread."""

    def __init__(self, tell: Teller, tally: Tally, clock: Clock) -> None:
        self._tell, self._tally, self._clock = tell, tally, clock
        self._numbers = itertools.count(1)
        self._open: dict[int, _Handoff] = {}
        self._names = 0
        self._jobs: dict[int, list[int]] = {}
        self._beat_at = 0.0

    @property
    def count(self) -> int:
        """Handoffs that are open."""
        return sum(not each.claims for each in self._open.values())

    def begin(self, transfer: str) -> int:
        """Open a handoff; return its number, 0 if there are too many."""
        number = self._begin((transfer,), claims=False)
        if number:
            self._tally.count("handoffs")
        else:
            self.refuse(transfer)
        return number

    def claim(self, names: Sequence[str]) -> int:
        """Say that objects are being computed; return a number, 0 if too many are claimed."""
        number = self._begin(tuple(names), claims=True)
        self._tally.count("claims", len(names) if number else 0)
        return number

    def refuse(self, transfer: str) -> None:
        """Say that nothing will come of it."""
        self._tell([News(transfer, next(self._numbers), FAILED)])

    def _begin(self, names: tuple[str, ...], *, claims: bool) -> int:
        if self._names + len(names) > HANDOFFS_MAX:
            return 0
        number = next(self._numbers)
        self._open[number] = _Handoff(names, self._clock(), claims)
        self._names += len(names)
        self._tell([News(name, number, OPEN) for name in names])
        return number

    def saving(self, number: int, job_id: int) -> None:
        """A save job of the request begins."""
        handoff = self._open.get(number)
        if handoff is not None:
            handoff.jobs.add(job_id)
            self._jobs.setdefault(job_id, []).append(number)

    def saved(self, job_id: int) -> None:
        """A save job has ended, well or not: what is in the pool the pool knows."""
        for number in self._jobs.pop(job_id, ()):
            handoff = self._open.get(number)
            if handoff is not None:
                handoff.jobs.discard(job_id)
                self._close_if_over(number, handoff)

    def finished(self, number: int, *, good: bool) -> None:
        """The request has ended. good: its whole prompt was computed."""
        handoff = self._open.get(number)
        if handoff is None:
            return
        handoff.over, handoff.good = True, good
        self._close_if_over(number, handoff)

    def beat(self) -> None:
        """Call in each step: now and then repeat what is open."""
        now = self._clock()
        if now - self._beat_at < BEAT_S or not (self._open or self._tell.untold):
            return
        self._beat_at = now
        self._tell(
            [
                News(name, number, OPEN)
                for number, handoff in self._open.items()
                for name in handoff.names
            ]
        )

    def _close_if_over(self, number: int, handoff: _Handoff) -> None:
        # Of a request that ended before its time nothing more comes that is worth waiting for.
        if not handoff.over or (handoff.jobs and handoff.good):
            return
        del self._open[number]
        self._names -= len(handoff.names)
        if not handoff.claims:
            self._tally.count("handoffs_failed", int(not handoff.good))
            self._tally.observe("handoff_seconds", self._clock() - handoff.began)
        state = ENDED if handoff.good else FAILED
        self._tell([News(name, number, state) for name in handoff.names])


class Teller:
    """Brings news to the master in the background; of each handoff the newest, in order."""

    def __init__(self, courier: Courier, link: Link) -> None:
        """courier: one thread, or the order is not kept."""
        self._courier, self._link = courier, link
        self._lock = threading.Lock()
        self._untold: dict[tuple[str, int], News] = {}

    @property
    def untold(self) -> bool:
        """Whether there is something that could not be told."""
        return bool(self._untold)

    def __call__(self, news: list[News]) -> None:
        """Take news. Never blocks; never raises."""
        with self._lock:
            for each in news:
                known = self._untold.get((each.transfer, each.number))
                if known is None or known.state == OPEN:
                    self._untold[each.transfer, each.number] = each
            while len(self._untold) > UNTOLD_MAX:
                del self._untold[next(iter(self._untold))]
        self._courier.submit(self._bring)

    def _bring(self) -> None:
        pool = self._link.get()
        with self._lock:
            news, self._untold = self._untold, {}
        try:
            if pool is not None and news:
                if pool.awaits:
                    pool.tell(list(news.values()))
                news = {}
        except (MoonpoolError, OSError) as error:
            self._link.failed(error)
        finally:
            with self._lock:
                self._untold = news | self._untold
