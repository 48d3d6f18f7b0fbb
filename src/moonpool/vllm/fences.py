"""Marks in the engine's stream of computations, for copies that must come after them."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager

from moonpool.gpu import Driver, GpuError

Fence = Callable[[], AbstractContextManager[None]]
"""What a transfer's calls run inside of, so that its copies wait."""

EVENTS = 16
POLL_S = 0.0005


@contextmanager
def passed(driver: Driver, event: int, limit_s: float) -> Iterator[None]:
    """Run the block when the event has happened; raise GpuError if it does not in time.

    For another process's event: no stream of this process shall be blocked on the GPU, which the
    two share by turns, while the engine computes.
    """
    deadline = time.monotonic() + limit_s
    while not driver.event_query(event):
        if time.monotonic() > deadline:
            raise GpuError(f"the engine's step did not end within {limit_s:.0f} s")
        time.sleep(POLL_S)
    yield


class Fences:
    """Events on the GPU, used in turn. One that is recorded anew only makes copies wait longer."""

    def __init__(self, driver: Driver, stream: Callable[[], int], *, shared: bool) -> None:
        """stream: returns the engine's current stream; shared: other processes wait for them.

        Raises GpuError.
        """
        self._driver, self._stream = driver, stream
        self.events = [driver.event_create(ipc=shared) for _ in range(EVENTS)]
        for event in self.events:
            # An event that was never recorded cannot be waited for by another process.
            driver.event_record(event, stream())
        self._next = 0

    def handles(self) -> list[bytes]:
        """Return what other processes open the events with. Raises GpuError."""
        return [self._driver.event_handle(event) for event in self.events]

    def mark(self) -> int:
        """Mark what is launched so far; return the mark's number. Raises GpuError."""
        self._next = (self._next + 1) % len(self.events)
        self._driver.event_record(self.events[self._next], self._stream())
        return self._next
