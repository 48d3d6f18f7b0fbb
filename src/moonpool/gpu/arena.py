"""A bounded stock of memory, lent in pieces."""

from __future__ import annotations

import bisect
import contextlib
import logging
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager

from moonpool.gpu.base import GpuError

_log = logging.getLogger(__name__)

ALIGN_BYTES = 4096
WAIT_S_MAX = 30.0


class Arena:
    """``nbytes`` of memory from ``allocate``, when first needed; if that is refused there is
    none, which is said once as ``what``."""

    def __init__(
        self,
        allocate: Callable[[int], int],
        free: Callable[[int], None],
        nbytes: int,
        what: str,
    ) -> None:
        self._allocate_it, self._free_it, self._what = allocate, free, what
        self._nbytes = max(nbytes // ALIGN_BYTES, 1) * ALIGN_BYTES
        self._changed = threading.Condition()
        self._rooms: list[tuple[int, int]] = []
        self._address = 0
        self._tried = False

    def has(self, nbytes: int) -> bool:
        """Tell whether that much can ever be lent."""
        with self._changed:
            if not self._tried:
                self._tried = True
                self._allocate()
            return self._address != 0 and nbytes <= self._nbytes

    @contextmanager
    def lend(self, nbytes: int, timeout_s: float = WAIT_S_MAX) -> Iterator[int]:
        """Lend memory for as long as the block lasts; GpuError if none becomes free in time."""
        size = max(-(-nbytes // ALIGN_BYTES), 1) * ALIGN_BYTES
        if not self.has(size):
            raise GpuError(f"no {size} bytes of {self._what}")
        address = self._take(size, time.monotonic() + timeout_s)
        try:
            yield address
        finally:
            self._give(address, size)

    def close(self) -> None:
        """Give all back; nothing may be lent."""
        with self._changed:
            address, self._address, self._tried = self._address, 0, True
            self._rooms.clear()
        if address:
            with contextlib.suppress(GpuError):
                self._free_it(address)

    def _allocate(self) -> None:
        try:
            self._address = self._allocate_it(self._nbytes)
        except GpuError as error:
            _log.warning("no %s, copies are slower: %s", self._what, error)
        else:
            self._rooms = [(self._address, self._nbytes)]

    def _take(self, size: int, deadline: float) -> int:
        with self._changed:
            while True:
                for i, (address, room) in enumerate(self._rooms):
                    if room >= size:
                        rest = [(address + size, room - size)] if room > size else []
                        self._rooms[i : i + 1] = rest
                        return address
                if not self._changed.wait(deadline - time.monotonic()):
                    raise GpuError(f"no {size} bytes of {self._what} became free")

    def _give(self, address: int, size: int) -> None:
        with self._changed:
            if not self._address:
                return
            rooms = self._rooms
            i = bisect.bisect(rooms, (address, size))
            rooms.insert(i, (address, size))
            for left in (i, i - 1):
                if 0 <= left < len(rooms) - 1 and sum(rooms[left]) == rooms[left + 1][0]:
                    together = rooms[left][1] + rooms[left + 1][1]
                    rooms[left : left + 2] = [(rooms[left][0], together)]
            self._changed.notify_all()
