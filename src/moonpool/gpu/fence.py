"""Copies that must come after work of another stream, perhaps of another process."""

from __future__ import annotations

import contextvars
import time
from collections.abc import Iterator
from contextlib import contextmanager

from moonpool.gpu.base import Driver, GpuError

WAIT_S_MAX = 60.0
PAUSE_MIN_S = 0.0001
PAUSE_MAX_S = 0.0005


class Fence:
    """An event to wait for, once.

    The processor waits, not the copy's stream: if the process that records the event dies, the
    wait ends with an error, while what is queued in a stream could not be taken back.
    """

    def __init__(self, event: int, timeout_s: float) -> None:
        self._event, self._timeout_s = event, timeout_s
        self._happened = False

    def wait(self, driver: Driver) -> None:
        """Return when the event has happened. Raises GpuError."""
        deadline = time.monotonic() + self._timeout_s
        pause = PAUSE_MIN_S
        while not self._happened:
            self._happened = driver.event_query(self._event)
            if self._happened:
                return
            if time.monotonic() > deadline:
                raise GpuError(f"the GPU did not come to the fence within {self._timeout_s} s")
            time.sleep(pause)
            pause = min(2 * pause, PAUSE_MAX_S)


_fences: contextvars.ContextVar[tuple[Fence, ...]] = contextvars.ContextVar("fences", default=())


@contextmanager
def fence(event: int, timeout_s: float) -> Iterator[None]:
    """Let the copies of this block, also those in threads with its context, wait for an event."""
    token = _fences.set((*_fences.get(), Fence(event, timeout_s)))
    try:
        yield
    finally:
        _fences.reset(token)


def wait(driver: Driver) -> None:
    """Wait for the fences of this context. Raises GpuError."""
    for each in _fences.get():
        each.wait(driver)
