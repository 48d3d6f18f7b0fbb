"""Reads of Linux' native asynchronous I/O: many under way at once, in one thread.

Past the page cache only: otherwise the kernel makes such calls wait. A thread of its own for each
call costs more than the call where objects are small.
"""

from __future__ import annotations

import ctypes
import errno
import os
import platform
from collections.abc import Callable
from typing import Any, Final

import numpy as np
import numpy.typing as npt

_CALLS: Final = {"x86_64": (206, 207, 208, 209), "aarch64": (0, 1, 4, 2)}
"""The numbers of io_setup, io_destroy, io_getevents and io_submit."""
_PREADV: Final = 7
_IOCB = np.dtype(
    [
        ("data", "<u8"),
        ("key", "<u4"),
        ("rw_flags", "<u4"),
        ("opcode", "<u2"),
        ("priority", "<i2"),
        ("fd", "<u4"),
        ("vectors", "<u8"),
        ("count", "<u8"),
        ("offset", "<i8"),
        ("reserved", "<u8"),
        ("flags", "<u4"),
        ("event_fd", "<u4"),
    ]
)
_EVENT = np.dtype([("data", "<u8"), ("iocb", "<u8"), ("result", "<i8"), ("result2", "<i8")])

U64 = npt.NDArray[np.uint64]


class Reads:
    """What is to be read: for each call a descriptor, an offset, and its vectors.

    vectors: (address, bytes) of all calls, shape (m, 2). starts: where those of each begin, and m,
    shape (n + 1,).
    """

    def __init__(self, fds: list[int], offsets: list[int], vectors: U64, starts: U64) -> None:
        self.vectors = np.ascontiguousarray(vectors, np.uint64)
        self.iocbs = np.zeros(len(fds), _IOCB)
        self.iocbs["data"] = np.arange(len(fds))
        self.iocbs["opcode"] = _PREADV
        self.iocbs["fd"] = fds
        self.iocbs["offset"] = offsets
        self.iocbs["vectors"] = self.vectors.ctypes.data + 16 * starts[:-1]
        self.iocbs["count"] = np.diff(starts)


class Context:
    """The kernel's side of up to ``depth`` calls under way. Used by one thread at a time."""

    def __init__(self, depth: int) -> None:
        """Raises OSError where there is no such thing."""
        numbers = _CALLS.get(platform.machine())
        if numbers is None or platform.system() != "Linux":
            raise OSError(errno.ENOSYS, "no asynchronous reads")
        self._setup, self._destroy, self._getevents, self._submit = numbers
        self._syscall: Any = ctypes.CDLL(None, use_errno=True).syscall
        self._syscall.restype = ctypes.c_long
        self.depth = depth
        self._events = np.zeros(depth, _EVENT)
        context = ctypes.c_ulong(0)
        self._call(self._setup, ctypes.c_long(depth), ctypes.byref(context))
        self._context = context

    def close(self) -> None:
        """Give it up; nothing is under way."""
        self._call(self._destroy, self._context)

    def run(self, reads: Reads, done: Callable[[int, int], None]) -> None:
        """Make the reads; call ``done(number, bytes read or a negative errno)`` for each.

        Returns or raises when none is under way.
        """
        total = len(reads.iocbs)
        pointers = reads.iocbs.ctypes.data + _IOCB.itemsize * np.arange(total, dtype=np.uint64)
        sent = ended = 0
        try:
            while ended < total:
                if sent < total and sent - ended < self.depth:
                    sent += self._send(
                        pointers, sent, min(self.depth - (sent - ended), total - sent)
                    )
                for number, result in self._some():
                    ended += 1
                    done(number, result)
        finally:
            while ended < sent:
                ended += len(self._some())

    def _send(self, pointers: U64, first: int, count: int) -> int:
        """Submit calls; return how many were taken."""
        return self._call(
            self._submit,
            self._context,
            ctypes.c_long(count),
            ctypes.c_void_p(pointers.ctypes.data + 8 * first),
        )

    def _some(self) -> list[tuple[int, int]]:
        """Wait for at least one call; return the numbers and results of those that ended."""
        count = self._call(
            self._getevents,
            self._context,
            ctypes.c_long(1),
            ctypes.c_long(self.depth),
            ctypes.c_void_p(self._events.ctypes.data),
            ctypes.c_void_p(0),
        )
        ended = self._events[:count]
        return list(zip(ended["data"].tolist(), ended["result"].tolist(), strict=True))

    def _call(self, number: int, *arguments: Any) -> int:
        while True:
            result = int(self._syscall(ctypes.c_long(number), *arguments))
            if result >= 0:
                return result
            code = ctypes.get_errno()
            if code != errno.EINTR:
                raise OSError(code, os.strerror(code))
