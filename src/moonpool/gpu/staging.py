"""A bounded stock of pinned host memory, lent in pieces."""

from __future__ import annotations

import bisect
import contextlib
import logging
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager

import numpy as np

from moonpool.gpu.base import Driver, GpuError

_log = logging.getLogger(__name__)

ALIGN_BYTES = 4096
WAIT_S_MAX = 10.0


class Staging:
    """``nbytes`` of pinned memory, allocated when first needed.

    on_pinned: told where it is. More than all of it, and everything if the driver refuses, is
    lent from ordinary memory.
    """

    def __init__(self, driver: Driver, nbytes: int, on_pinned: Callable[[int, int], None]) -> None:
        self._driver = driver
        self._nbytes = max(nbytes // ALIGN_BYTES, 1) * ALIGN_BYTES
        self._on_pinned = on_pinned
        self._changed = threading.Condition()
        self._free: list[tuple[int, int]] = []
        self._address = 0
        self._tried = False

    def pinned(self, nbytes: int) -> bool:
        """Tell whether ``lend`` of that much gives pinned memory."""
        self._allocate()
        return self._address != 0 and nbytes <= self._nbytes

    @contextmanager
    def lend(self, nbytes: int, timeout_s: float = WAIT_S_MAX) -> Iterator[int]:
        """Lend memory for as long as the block lasts; GpuError if none becomes free in time."""
        if not self.pinned(nbytes):
            memory = np.empty(max(nbytes, 1), np.uint8)
            yield int(memory.ctypes.data)
            return
        size = max(-(-nbytes // ALIGN_BYTES), 1) * ALIGN_BYTES
        address = self._take(size, time.monotonic() + timeout_s)
        try:
            yield address
        finally:
            self._give(address, size)

    def close(self) -> None:
        """Give it back; nothing may be lent."""
        with self._changed:
            address, self._address, self._tried = self._address, 0, True
            self._free.clear()
        if address:
            with contextlib.suppress(GpuError):
                self._driver.host_free(address)

    def _allocate(self) -> None:
        with self._changed:
            if self._tried:
                return
            self._tried = True
            try:
                self._address = self._driver.host_alloc(self._nbytes)
            except GpuError as error:
                _log.warning("no pinned staging memory, copies are slower: %s", error)
            else:
                self._free = [(self._address, self._nbytes)]
                self._on_pinned(self._address, self._nbytes)

    def _take(self, size: int, deadline: float) -> int:
        with self._changed:
            while True:
                for i, (address, room) in enumerate(self._free):
                    if room >= size:
                        rest = [(address + size, room - size)] if room > size else []
                        self._free[i : i + 1] = rest
                        return address
                if not self._changed.wait(deadline - time.monotonic()):
                    raise GpuError(f"no {size} bytes of staging memory became free")

    def _give(self, address: int, size: int) -> None:
        with self._changed:
            if not self._address:
                return
            i = bisect.bisect(self._free, (address, size))
            self._free.insert(i, (address, size))
            for left in (i, i - 1):
                if (
                    0 <= left < len(self._free) - 1
                    and sum(self._free[left]) == (self._free[left + 1][0])
                ):
                    together = self._free[left][1] + self._free[left + 1][1]
                    self._free[left : left + 2] = [(self._free[left][0], together)]
            self._changed.notify_all()
