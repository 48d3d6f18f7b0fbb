"""Open files that threads share: opening one for each read costs as much as the read does."""

from __future__ import annotations

import contextlib
import os
import threading
from collections import OrderedDict
from collections.abc import Callable
from dataclasses import dataclass

HANDLES_MAX = 64


@dataclass(slots=True)
class Handle:
    """An open file. ``over``: it is closed by the last who uses it."""

    fd: int
    users: int = 0
    over: bool = False


class Handles:
    """Files by number, the least recently opened ones closed where there are too many."""

    def __init__(self, open_: Callable[[int], int], most: int = HANDLES_MAX) -> None:
        """open_: returns a descriptor, or raises OSError."""
        self._open, self._most = open_, most
        self._lock = threading.Lock()
        self._handles: OrderedDict[int, Handle] = OrderedDict()

    def take(self, number: int) -> Handle:
        """Return a file for use until ``give``. Raises OSError."""
        with self._lock:
            handle = self._handles.get(number)
            if handle is None:
                handle = self._handles[number] = Handle(self._open(number))
                if len(self._handles) > self._most:
                    self._end(self._handles.popitem(last=False)[1])
            handle.users += 1
            return handle

    def give(self, handle: Handle) -> None:
        """Give a file back."""
        with self._lock:
            handle.users -= 1
            if handle.over:
                self._end(handle)

    def forget(self, number: int) -> None:
        """Close a file as soon as nobody uses it; whoever wants it next opens it again."""
        with self._lock:
            handle = self._handles.pop(number, None)
            if handle is not None:
                self._end(handle)

    def close(self) -> None:
        """Close all."""
        for number in list(self._handles):
            self.forget(number)

    def _end(self, handle: Handle) -> None:
        handle.over = True
        if not handle.users:
            with contextlib.suppress(OSError):
                os.close(handle.fd)
