"""Pinned host memory for what is not pinned, and for what passes through sockets."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager

import numpy as np

from moonpool.gpu.arena import WAIT_S_MAX, Arena
from moonpool.gpu.base import Driver


class Staging:
    """``nbytes`` of pinned memory, allocated when first needed.

    on_pinned: told where it is. More than all of it, and everything if the driver refuses, is
    lent from ordinary memory.
    """

    def __init__(self, driver: Driver, nbytes: int, on_pinned: Callable[[int, int], None]) -> None:
        def allocate(nbytes: int) -> int:
            address = driver.host_alloc(nbytes)
            on_pinned(address, nbytes)
            return address

        self._arena = Arena(allocate, driver.host_free, nbytes, "pinned staging memory")

    def pinned(self, nbytes: int) -> bool:
        """Tell whether ``lend`` of that much gives pinned memory."""
        return self._arena.has(nbytes)

    @contextmanager
    def lend(self, nbytes: int, timeout_s: float = WAIT_S_MAX) -> Iterator[int]:
        """Lend memory for as long as the block lasts; GpuError if none becomes free in time."""
        if self.pinned(nbytes):
            with self._arena.lend(nbytes, timeout_s) as address:
                yield address
        else:
            memory = np.empty(max(nbytes, 1), np.uint8)
            yield int(memory.ctypes.data)

    def close(self) -> None:
        """Give it back; nothing may be lent."""
        self._arena.close()
