"""How fast to write: not above a rate, and not while somebody waits for a read."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager

READS_FIRST_S = 0.2
"""The longest that a write waits for reads; they must not hold it back for ever."""


class Rate:
    """A bucket of bytes: after a call the next one waits as long as its bytes take."""

    def __init__(self, bytes_per_s: float) -> None:
        """0: any rate."""
        self._bytes_per_s = bytes_per_s
        self._free_at = 0.0

    def delay_s(self, nbytes: int, now: float) -> float:
        """Take bytes; return how long to wait before they may be moved."""
        if self._bytes_per_s <= 0:
            return 0.0
        begin = max(now, self._free_at)
        self._free_at = begin + nbytes / self._bytes_per_s
        return begin - now


class Pace:
    """Holds writes back. Threads may share it."""

    def __init__(
        self,
        bytes_per_s: float = 0.0,
        *,
        clock: Callable[[], float] = time.monotonic,
        reads_first_s: float = READS_FIRST_S,
    ) -> None:
        self._rate = Rate(bytes_per_s)
        self._clock = clock
        self._reads_first_s = reads_first_s
        self._quiet = threading.Condition()
        self._reads = 0
        self._closed = False

    @contextmanager
    def reading(self) -> Iterator[None]:
        """Count a read as under way."""
        with self._quiet:
            self._reads += 1
        try:
            yield
        finally:
            with self._quiet:
                self._reads -= 1
                self._quiet.notify_all()

    def before_write(self, nbytes: int) -> None:
        """Wait until so many bytes may be written."""
        with self._quiet:
            self._quiet.wait_for(lambda: self._closed or not self._reads, self._reads_first_s)
            left = self._rate.delay_s(nbytes, self._clock())
            if left > 0:
                self._quiet.wait_for(lambda: self._closed, left)

    def close(self) -> None:
        """Hold nothing back any more."""
        with self._quiet:
            self._closed = True
            self._quiet.notify_all()
