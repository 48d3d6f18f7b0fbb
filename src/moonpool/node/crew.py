"""Threads that take work in batches, and can be brought to rest."""

from __future__ import annotations

import logging
import threading
from collections import deque
from collections.abc import Callable, Iterable
from typing import Generic, TypeVar

from moonpool.errors import MoonpoolError

T = TypeVar("T")

_log = logging.getLogger(__name__)


class Crew(Generic[T]):
    """``serve`` is called in ``threads`` threads with batches of up to ``batch`` in weight."""

    def __init__(
        self,
        name: str,
        serve: Callable[[list[T]], None],
        *,
        threads: int = 1,
        batch: int = 1,
        weigh: Callable[[T], int] = lambda _each: 1,
    ) -> None:
        self._serve, self._batch, self._weigh = serve, batch, weigh
        self._work = threading.Condition()
        self._queue: deque[T] = deque()
        self._busy = 0
        self._stopped = False
        self._threads = [
            threading.Thread(target=self._run, name=f"moonpool-{name}-{i}", daemon=True)
            for i in range(threads)
        ]

    def start(self) -> None:
        """Begin to work."""
        for thread in self._threads:
            thread.start()

    def add(self, more: Iterable[T]) -> None:
        """Give more work."""
        with self._work:
            self._queue.extend(more)
            self._work.notify_all()

    def rest(self, timeout_s: float) -> bool:
        """Forget what was not begun and wait for what was; tell whether it has ended."""
        with self._work:
            self._queue.clear()
            return self._work.wait_for(lambda: not self._busy, timeout_s)

    def close(self, timeout_s: float) -> None:
        """Stop after what is under way."""
        with self._work:
            self._stopped = True
            self._work.notify_all()
        for thread in self._threads:
            if thread.ident is not None:
                thread.join(timeout_s)

    def _run(self) -> None:
        while True:
            with self._work:
                self._work.wait_for(lambda: self._stopped or self._queue)
                if self._stopped:
                    return
                batch = self._take()
                self._busy += 1
            try:
                self._serve(batch)
            except MoonpoolError as error:
                _log.warning("disk: %s", error)
            except Exception:  # noqa: BLE001 - the thread must go on working
                _log.exception("a bug: work with the disk failed")
            finally:
                with self._work:
                    self._busy -= 1
                    self._work.notify_all()

    def _take(self) -> list[T]:
        taken = [self._queue.popleft()]
        weight = self._weigh(taken[0])
        while self._queue and weight + self._weigh(self._queue[0]) <= self._batch:
            taken.append(self._queue.popleft())
            weight += self._weigh(taken[-1])
        return taken
