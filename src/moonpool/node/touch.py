"""Touching memory ahead of use: a write to a fresh page of shared memory is ten times slower."""

from __future__ import annotations

import contextlib
import logging
import os
import threading
from collections.abc import Callable

from moonpool.errors import TransferError
from moonpool.transport import native
from moonpool.transport.segment import Segment

_log = logging.getLogger(__name__)

STEP_BYTES = 64 * 1024 * 1024
_NICENESS = 10


class Toucher:
    """A background thread that makes all pages of the segments present, the first ones first."""

    def __init__(
        self, segments: list[Segment], populate: Callable[[int, int], int] = native.populate
    ) -> None:
        self._segments = segments
        self._populate = populate
        self._stop = threading.Event()
        self._thread = threading.Thread(target=self._run, name="moonpool-touch", daemon=True)
        self.touched_bytes = 0

    def start(self) -> None:
        """Begin."""
        self._thread.start()

    def join(self, timeout_s: float | None = None) -> None:
        """Wait until all is touched or touching was given up."""
        self._thread.join(timeout_s)

    def close(self) -> None:
        """Stop after the step that is under way."""
        self._stop.set()
        if self._thread.ident is not None:
            self._thread.join()

    def _run(self) -> None:
        with contextlib.suppress(OSError):
            os.setpriority(os.PRIO_PROCESS, threading.get_native_id(), _NICENESS)
        with contextlib.suppress(TransferError):  # closed
            for segment in self._segments:
                if not self._touch(segment):
                    return

    def _touch(self, segment: Segment) -> bool:
        keep = segment.parts()
        shape = segment.geometry
        base = segment.address - shape.data_offset
        owners = (base + shape.owners_offset, shape.table_offset - shape.owners_offset)
        for start, nbytes in (owners, (segment.address, shape.data_bytes)):
            for at in range(0, nbytes, STEP_BYTES):
                step = min(STEP_BYTES, nbytes - at)
                if self._stop.is_set():
                    return False
                code = self._populate(start + at, step)
                if code:
                    _log.warning(
                        "segment %s is not touched ahead: %s",
                        segment.header.name,
                        os.strerror(code),
                    )
                    return False
                self.touched_bytes += step
        del keep
        return True
