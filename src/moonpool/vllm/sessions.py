"""What clients say of their conversations: which blocks they use, and that they have ended.

The pool is told when a request has ended and all that it saves is there: before that the ends of
its prefix are not in the pool.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Final

from moonpool.core.keys import Key
from moonpool.errors import MoonpoolError
from moonpool.vllm.courier import Courier
from moonpool.vllm.link import Link
from moonpool.vllm.stats import Tally

WAITING_MAX: Final = 4096
"""Requests that have ended whose saves have not; the oldest are told at once beyond that."""


@dataclass(slots=True)
class _Ended:
    session: str
    keys: list[Key]
    last: bool
    jobs: set[int]


class SessionBook:
    """All of one engine. Called by the scheduler's thread."""

    def __init__(self, courier: Courier, link: Link, tally: Tally) -> None:
        """courier: one thread, or the order is not kept."""
        self._courier, self._link, self._tally = courier, link, tally
        self._waiting: dict[int, _Ended] = {}
        self._numbers = 0

    def finished(self, session: str, keys: Sequence[Key], jobs: set[int], *, last: bool) -> None:
        """A request of a session has ended. keys: the ends of its prefix; jobs: its saves that are
        under way; last: whether the session has ended with it."""
        ended = _Ended(session, list(keys), last, set(jobs))
        if not ended.jobs:
            self._tell(ended)
            return
        self._numbers += 1
        self._waiting[self._numbers] = ended
        if len(self._waiting) > WAITING_MAX:
            self._tell(self._waiting.pop(next(iter(self._waiting))))

    def saved(self, job_id: int) -> None:
        """A save job has ended, well or not."""
        if not self._waiting:
            return
        for number, ended in list(self._waiting.items()):
            ended.jobs.discard(job_id)
            if not ended.jobs:
                self._tell(self._waiting.pop(number))

    def _tell(self, ended: _Ended) -> None:
        # Of what cannot be told now nothing is kept: it is a hint.
        self._courier.submit(lambda: self._bring(ended))

    def _bring(self, ended: _Ended) -> None:
        pool = self._link.get()
        if pool is None:
            return
        try:
            if not pool.keeps:
                return
            if ended.keys:
                pool.use_session(ended.session, ended.keys)
            if ended.last:
                released = pool.end_session(ended.session)
                self._tally.count("sessions_ended")
                self._tally.count("session_objects_released", released)
        except (MoonpoolError, OSError) as error:
            self._link.failed(error)
