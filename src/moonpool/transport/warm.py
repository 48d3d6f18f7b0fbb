"""Entering a segment's pages into this process's page table before they are written to.

The node has filled the pages, but the first store to each one of them through another process's
mapping is a fault: 2 GB/s instead of 8 and more. Pages that the node has not come to yet are left
alone, so that they are not this process's to fill and to account for.
"""

from __future__ import annotations

import contextlib
import os
import threading

from moonpool.errors import TransferError
from moonpool.transport import native
from moonpool.transport.segment import Segment

AFTER_BYTES = 64 * 1024 * 1024
"""Short-lived clients never pay for it."""
STEP_BYTES = 64 * 1024 * 1024
PAUSE_MIN_S = 1.0
PASSES = 8
_NICENESS = 10


class Warmer:
    """A background thread for one segment, begun once enough bytes were moved through it."""

    def __init__(self, segment: Segment) -> None:
        self._segment = segment
        self._moved = 0
        self._stop = threading.Event()
        self._thread: threading.Thread | None = None
        self.warm_bytes = 0

    def moved(self, nbytes: int) -> None:
        """Count bytes; begin when they are enough."""
        if self._thread is not None or not self._segment.path:
            return
        self._moved += nbytes
        if self._moved >= AFTER_BYTES:
            self._begin()

    def close(self) -> None:
        """Stop after the step that is under way."""
        self._stop.set()

    def join(self) -> None:
        """Wait until the thread has ended."""
        if self._thread is not None:
            self._thread.join()

    def _begin(self) -> None:
        self._thread = threading.Thread(target=self._run, name="moonpool-warm", daemon=True)
        try:
            self._thread.start()
        except RuntimeError:  # no more threads: the faults are only slow
            self._stop.set()

    def _run(self) -> None:
        with contextlib.suppress(OSError):
            os.setpriority(os.PRIO_PROCESS, threading.get_native_id(), _NICENESS)
        left = list(range(0, self._segment.geometry.data_bytes, STEP_BYTES))
        with contextlib.suppress(TransferError):  # closed
            for number in range(PASSES):
                left = [at for at in left if not self._stop.is_set() and not self._step(at)]
                if not left or self._stop.wait(PAUSE_MIN_S * 2**number):
                    return

    def _step(self, at: int) -> bool:
        """Enter a part of the data area; return whether it is done with."""
        keep = self._segment.parts()
        nbytes = min(STEP_BYTES, self._segment.geometry.data_bytes - at)
        address = self._segment.address + at
        done = native.is_resident(address, nbytes)
        if done and native.prefault(address, nbytes) == 0:
            self.warm_bytes += nbytes
        del keep
        return done
