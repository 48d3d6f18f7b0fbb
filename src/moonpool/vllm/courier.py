"""A few threads that talk to the master for the scheduler, so that its step never waits for them.

Bounded: when the queue is full, the errand is refused and the scheduler goes on without.
"""

from __future__ import annotations

import queue
import threading
from collections.abc import Callable

from moonpool.vllm.log import logger

Errand = Callable[[], None]


class Courier:
    """Runs errands on daemon threads, in order of submission."""

    def __init__(self, threads: int = 2, limit: int = 1024) -> None:
        """Start the threads; ``limit`` errands may wait."""
        self._waiting: queue.Queue[Errand | None] = queue.Queue(limit)
        self._closed = False
        self._threads = [
            threading.Thread(target=self._run, name=f"moonpool-courier-{n}", daemon=True)
            for n in range(threads)
        ]
        for thread in self._threads:
            thread.start()

    def submit(self, errand: Errand) -> bool:
        """Queue an errand; False when it was refused. Never blocks."""
        if self._closed:
            return False
        try:
            self._waiting.put_nowait(errand)
        except queue.Full:
            return False
        return True

    def close(self, timeout_s: float = 1.0) -> None:
        """Take no more errands and wait a little for the running ones. Idempotent."""
        if self._closed:
            return
        self._closed = True
        for _ in self._threads:
            try:
                self._waiting.put_nowait(None)
            except queue.Full:
                break
        for thread in self._threads:
            thread.join(timeout_s)

    def _run(self) -> None:
        while not self._closed or not self._waiting.empty():
            errand = self._waiting.get()
            if errand is None:
                return
            try:
                errand()
            except Exception:  # noqa: BLE001 - an errand must not end its thread
                logger.exception("moonpool: an errand to the master failed")
