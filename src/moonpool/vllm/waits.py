"""Waits for the objects of loads that another engine is computing: one thread for all of them."""

from __future__ import annotations

import threading
from collections import deque
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial

from moonpool.core.handoffs import claim_of
from moonpool.core.keys import Key
from moonpool.core.messages import Awaited
from moonpool.errors import MoonpoolError
from moonpool.vllm.arrivals import Arrival
from moonpool.vllm.link import Clock, Link
from moonpool.vllm.log import logger

IDLE_S = 60.0

Came = Callable[[int, Arrival], None]


@dataclass(slots=True)
class _Wait:
    keys: Sequence[Key]
    transfer: str
    arrival: Arrival


class Waits:
    """Tells ``came(generation, arrival)`` whenever more of a load is there, and once when it is
    over. ``add`` and ``cancel`` may be called by any thread; ``came`` is called without locks."""

    def __init__(self, link: Link, came: Came, clock: Clock, *, threaded: bool = True) -> None:
        self._link, self._came, self._clock, self._threaded = link, came, clock, threaded
        self._bell = threading.Condition()
        self._waits: dict[int, _Wait] = {}
        self._answers: deque[tuple[int, Arrival, Awaited | None]] = deque()
        self._rung = self._stopped = False
        self._thread: threading.Thread | None = None

    def add(self, generation: int, keys: Sequence[Key], transfer: str, patience_s: float) -> None:
        """Wait for a load's objects; without a ``transfer`` for those that engines have claimed,
        ``patience_s`` in all."""
        limit_s = None if transfer else patience_s
        arrival = Arrival(len(keys), patience_s, self._clock(), limit_s)
        with self._bell:
            self._waits[generation] = _Wait(keys, transfer, arrival)
            self._ring()
            if self._threaded and self._thread is None:
                self._thread = threading.Thread(
                    target=self._run, name="moonpool-await", daemon=True
                )
                self._thread.start()

    def cancel(self, generation: int) -> None:
        """Wait no more; one that is not there is no error."""
        with self._bell:
            self._waits.pop(generation, None)

    def close(self, timeout_s: float = 5.0) -> None:
        """Stop. Idempotent."""
        with self._bell:
            self._stopped = True
            self._waits.clear()
            self._bell.notify_all()
            thread = self._thread
        if thread is not None:
            thread.join(timeout_s)

    def _ring(self) -> None:
        self._rung = True
        self._bell.notify_all()

    def _run(self) -> None:
        while True:
            with self._bell:
                if self._stopped:
                    return
                self._rung = False
            try:
                wait_s = self.turn()
            except Exception:  # noqa: BLE001 - loads must end, whatever happens
                logger.exception("moonpool: waiting for another engine failed")
                wait_s = 1.0
            with self._bell:
                if not self._rung and not self._stopped:
                    self._bell.wait(wait_s)

    def turn(self) -> float:
        """Take in answers, ask what is to be asked; return for how long nothing is due."""
        while self._answers:
            generation, arrival, answer = self._answers.popleft()
            before = arrival.ready
            arrival.heard(answer, self._clock())
            if arrival.ready > before and not arrival.over:
                self._tell(generation, arrival)
        with self._bell:
            waits = list(self._waits.items())
        due = self._clock() + IDLE_S
        for generation, wait in waits:
            if wait.arrival.tick(self._clock()):
                self._tell(generation, wait.arrival)
                self.cancel(generation)
                continue
            self._ask(generation, wait)
            due = min(due, wait.arrival.due)
        return max(0.0, due - self._clock())

    def _tell(self, generation: int, arrival: Arrival) -> None:
        with self._bell:
            wait = self._waits.get(generation)
        if wait is not None and wait.arrival is arrival:
            self._came(generation, arrival)

    def _ask(self, generation: int, wait: _Wait) -> None:
        question = wait.arrival.question(self._clock())
        if question is None:
            return
        first, last, wait_s = question
        answer = partial(self._answered, generation, wait.arrival)
        pool = self._link.get()
        if pool is None:
            answer(None)
            return
        try:
            transfer = wait.transfer or claim_of(wait.keys[first])
            pool.watch(wait.keys[first:last], transfer, wait_s, answer)
        except (MoonpoolError, OSError) as error:
            self._link.failed(error)
            answer(None)

    def _answered(self, generation: int, arrival: Arrival, answer: Awaited | None) -> None:
        with self._bell:
            self._answers.append((generation, arrival, answer))
            self._ring()
