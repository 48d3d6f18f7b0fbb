"""Comparing what a segment held before this life with its checksums, beside everything else.

A segment that was taken over is announced at once. Until it has been gone through, a file beside it
tells clients that map it to compare checksums themselves, as those do that read over a network.
"""

from __future__ import annotations

import contextlib
import logging
import os
import threading
import time
from collections.abc import Callable

from moonpool.errors import TransferError
from moonpool.node.storage import Storage
from moonpool.transport.segment import Segment

_log = logging.getLogger(__name__)
_NICENESS = 10

Tell = Callable[[str, list[int], list[int]], None]


class Verifier:
    """A thread that goes through the segments that were taken over, once.

    tell: called in it with a segment's name and the offsets and generations of objects that are
    not what was put; their entries are free by then.
    """

    def __init__(self, storage: Storage, tell: Tell) -> None:
        self._storage = storage
        self._tell = tell
        self._stop = threading.Event()
        self._thread = threading.Thread(target=self._run, name="moonpool-verify", daemon=True)

    def start(self) -> None:
        """Begin, unless that was done before."""
        if self._thread.ident is None and self._storage.doubtful():
            self._thread.start()

    def close(self) -> None:
        """Stop soon, and wait for that."""
        self._stop.set()
        if self._thread.ident is not None:
            self._thread.join()

    def _run(self) -> None:
        with contextlib.suppress(OSError):
            os.setpriority(os.PRIO_PROCESS, threading.get_native_id(), _NICENESS)
        with contextlib.suppress(TransferError):  # closed
            for name in self._storage.doubtful():
                segment = self._storage.segment(name)
                if segment is not None and self._verify(name, segment):
                    self._storage.trust(name)

    def _verify(self, name: str, segment: Segment) -> bool:
        """Go through a segment; return whether to the end."""
        started, found = time.monotonic(), 0
        for indexes, offsets, generations in segment.damaged():
            if indexes:
                # Before the file beside goes: who has located such an object must not read it then.
                segment.disown(offsets, generations)
                segment.drop(indexes, generations)
                self._tell(name, offsets, generations)
                found += len(indexes)
            if self._stop.is_set():
                return False
        took_s = time.monotonic() - started
        _log.info("verified %s in %.1f s: %d damaged objects", segment.path, took_s, found)
        return True
