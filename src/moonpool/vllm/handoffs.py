"""The prefill side of handoffs: tells the master how the requests go that others wait for.

A handoff is open from the request's arrival until it has ended and its last save is done; while it
is open, the engine's steps repeat that now and then, so that a stuck engine is noticed.
"""

from __future__ import annotations

import itertools
import threading
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
    transfer: str
    began: float
    jobs: set[int] = field(default_factory=set)
    over: bool = False
    good: bool = False


class Handoffs:
    """All of one engine. Called by the scheduler's thread."""

    def __init__(self, tell: Teller, tally: Tally, clock: Clock) -> None:
        self._tell, self._tally, self._clock = tell, tally, clock
        self._numbers = itertools.count(1)
        self._open: dict[int, _Handoff] = {}
        self._jobs: dict[int, int] = {}
        self._beat_at = 0.0

    @property
    def count(self) -> int:
        """Handoffs that are open."""
        return len(self._open)

    def begin(self, transfer: str) -> int:
        """Open a handoff; return its number, 0 if there are too many."""
        number = next(self._numbers)
        if len(self._open) >= HANDOFFS_MAX:
            self._say(News(transfer, number, FAILED))
            return 0
        self._open[number] = _Handoff(transfer, self._clock())
        self._tally.count("handoffs")
        self._say(News(transfer, number, OPEN))
        return number

    def refuse(self, transfer: str) -> None:
        """Say that nothing will come of it."""
        self._say(News(transfer, next(self._numbers), FAILED))

    def saving(self, number: int, job_id: int) -> None:
        """A save job of the request begins."""
        handoff = self._open.get(number)
        if handoff is not None:
            handoff.jobs.add(job_id)
            self._jobs[job_id] = number

    def saved(self, job_id: int) -> None:
        """A save job has ended, well or not: what is in the pool the pool knows."""
        number = self._jobs.pop(job_id, 0)
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
        self._tell([News(handoff.transfer, number, OPEN) for number, handoff in self._open.items()])

    def _close_if_over(self, number: int, handoff: _Handoff) -> None:
        # Of a request that ended before its time nothing more comes that is worth waiting for.
        if not handoff.over or (handoff.jobs and handoff.good):
            return
        del self._open[number]
        for job_id in handoff.jobs:
            self._jobs.pop(job_id, None)
        self._tally.count("handoffs_failed", int(not handoff.good))
        self._tally.observe("handoff_seconds", self._clock() - handoff.began)
        self._say(News(handoff.transfer, number, ENDED if handoff.good else FAILED))

    def _say(self, news: News) -> None:
        self._tell([news])


class Teller:
    """Brings news to the master in the background; of each handoff the newest, in order."""

    def __init__(self, courier: Courier, link: Link) -> None:
        """courier: one thread, or the order is not kept."""
        self._courier, self._link = courier, link
        self._lock = threading.Lock()
        self._untold: dict[int, News] = {}

    @property
    def untold(self) -> bool:
        """Whether there is something that could not be told."""
        return bool(self._untold)

    def __call__(self, news: list[News]) -> None:
        """Take news. Never blocks; never raises."""
        with self._lock:
            for each in news:
                known = self._untold.get(each.number)
                if known is None or known.state == OPEN:
                    self._untold[each.number] = each
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
