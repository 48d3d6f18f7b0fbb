"""Marks in the engine's stream of computations, for copies that must come after them."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import AbstractContextManager

from moonpool.gpu import Driver

Fence = Callable[[], AbstractContextManager[None]]
"""What a transfer's calls run inside of, so that its copies wait."""

EVENTS = 16


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
