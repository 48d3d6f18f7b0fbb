"""Streams of the GPU, each used by one call at a time."""

from __future__ import annotations

import contextlib
import threading
from collections.abc import Iterator
from contextlib import contextmanager

from moonpool.gpu.base import Driver, GpuError

LANES_MAX = 16
WAIT_S_MAX = 60.0


class Lane:
    """A stream with a few marks, which are places in it that one can wait for."""

    def __init__(self, driver: Driver) -> None:
        self.stream = driver.stream_create(low_priority=True)
        self._driver = driver
        self._events: list[int] = []
        self._set: set[int] = set()

    def mark(self, number: int) -> None:
        """Set a mark behind everything that is queued."""
        while len(self._events) <= number:
            self._events.append(self._driver.event_create())
        self._driver.event_record(self._events[number], self.stream)
        self._set.add(number)

    def wait(self, number: int) -> None:
        """Wait, asleep, until the stream has passed a mark; one that is not set is passed."""
        if number in self._set:
            self._driver.event_synchronize(self._events[number])
            self._set.discard(number)

    def drain(self) -> None:
        """Wait until nothing is queued any more, whatever happened."""
        with contextlib.suppress(GpuError):
            self.mark(0)
            self.wait(0)
        self._set.clear()

    def close(self) -> None:
        """Give up the stream."""
        with contextlib.suppress(GpuError):
            for event in self._events:
                self._driver.event_destroy(event)
            self._driver.stream_destroy(self.stream)


class Lanes:
    """Lends lanes; makes them as they are needed, LANES_MAX at most."""

    def __init__(self, driver: Driver, lanes_max: int = LANES_MAX) -> None:
        self._driver = driver
        self._changed = threading.Condition()
        self._idle: list[Lane] = []
        self._left = lanes_max
        self._closed = False

    @contextmanager
    def lane(self) -> Iterator[Lane]:
        """Lend a lane. When the block ends by an exception, what was queued has ended too: nobody
        writes to memory that the caller no longer cares for."""
        lane = self._take()
        try:
            yield lane
        except BaseException:
            lane.drain()
            raise
        finally:
            self._give(lane)

    def close(self) -> None:
        """Give up all lanes; none may be lent."""
        with self._changed:
            self._closed = True
            idle, self._idle = self._idle, []
        for lane in idle:
            lane.close()

    def _take(self) -> Lane:
        with self._changed:
            ready = self._changed.wait_for(
                lambda: self._closed or self._idle or self._left, WAIT_S_MAX
            )
            if self._closed or not ready:
                raise GpuError("closed" if self._closed else "all streams are busy")
            if self._idle:
                return self._idle.pop()
            self._left -= 1
        try:
            return Lane(self._driver)
        except BaseException:
            with self._changed:
                self._left += 1
                self._changed.notify()
            raise

    def _give(self, lane: Lane) -> None:
        with self._changed:
            if not self._closed:
                self._idle.append(lane)
                self._changed.notify()
                return
        lane.close()
