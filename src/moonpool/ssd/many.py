"""Many reads of extents under way at once, in the thread that wants them."""

from __future__ import annotations

import contextlib
import logging
import threading
from collections.abc import Callable, Sequence
from typing import Final

import numpy as np

from moonpool.ssd.aio import Context, Reads
from moonpool.ssd.handles import Handle, Handles
from moonpool.ssd.reading import Call
from moonpool.ssd.volume import Buffer, VolumeError

DEPTH: Final = 64
"""Calls under way of each thread: enough for the disk while another one holds the interpreter."""

_log = logging.getLogger(__name__)


Done = Callable[[int, VolumeError | None], None]
ReadOne = Callable[[int, int, Sequence[Buffer]], None]


class ManyReads:
    """Reads past the page cache. ``read_one`` says what is wrong where one did not bring all."""

    def __init__(self, handles: Handles, read_one: ReadOne) -> None:
        """Raises OSError where the kernel has no such reads."""
        self._handles, self._read_one = handles, read_one
        self._own = threading.local()
        self._lock = threading.Lock()
        self._contexts: list[Context] = []
        self._context()

    def close(self) -> None:
        """Give all up; no thread reads any more."""
        with self._lock:
            for context in self._contexts:
                with contextlib.suppress(OSError):
                    context.close()
            self._contexts.clear()

    def read_all(self, calls: Sequence[Call], done: Done) -> None:
        """Make reads, many at once, and say of each what came of it: ``done(its place among the
        calls, None or why it failed)``, in this thread."""
        left = bytearray(b"\1" * len(calls))

        def ended(number: int, result: int) -> None:
            place = some[number]
            span = calls[place].span
            if result == span.end - span.offset:
                left[place] = 0
                done(place, None)

        some: list[int] = []
        with contextlib.ExitStack() as stack:
            try:
                files = self._files(calls, stack)
                some += [place for place, call in enumerate(calls) if call.extent in files]
                self._context().run(_reads([calls[place] for place in some], files), ended)
            except OSError as error:
                _log.debug("asynchronous reads failed: %s", error)
        for place in [place for place, waits in enumerate(left) if waits]:
            call = calls[place]
            try:
                self._read_one(call.extent, call.span.offset, call.span.buffers)
            except VolumeError as error:
                done(place, error)
            else:
                done(place, None)

    def _files(self, calls: Sequence[Call], stack: contextlib.ExitStack) -> dict[int, Handle]:
        """Return the files that can be opened, for as long as the stack lasts."""
        files: dict[int, Handle] = {}
        for extent in {call.extent for call in calls}:
            with contextlib.suppress(OSError):
                files[extent] = handle = self._handles.take(extent)
                stack.callback(self._handles.give, handle)
        return files

    def _context(self) -> Context:
        """Return this thread's."""
        found: Context | None = getattr(self._own, "context", None)
        if found is None:
            found = self._own.context = Context(DEPTH)
            with self._lock:
                self._contexts.append(found)
        return found


def _reads(calls: Sequence[Call], files: dict[int, Handle]) -> Reads:
    starts = np.zeros(len(calls) + 1, np.uint64)
    np.cumsum([len(call.span.pieces) for call in calls], out=starts[1:])
    return Reads(
        [files[call.extent].fd for call in calls],
        [call.span.offset for call in calls],
        np.array([piece for call in calls for piece in call.span.pieces], np.uint64),
        starts,
    )
