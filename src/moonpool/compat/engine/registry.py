"""The memory that a process has registered, and who is using it at the moment.

Bytes are only moved within a registered buffer, and only while it is held: a buffer that is
unregistered is waited for first, and whoever holds it too long loses the connection.
"""

from __future__ import annotations

import bisect
import threading
import time
from collections.abc import Callable

import numpy as np

from moonpool.transport.base import U64

ADDRESS_MAX = 1 << 64
DRAIN_S = 10.0


class Buffer:
    """A registered range of addresses."""

    def __init__(self, address: int, nbytes: int) -> None:
        self.address = address
        self.nbytes = nbytes
        self.holders: dict[int, Callable[[], None]] = {}


class Registry:
    """All registered buffers of an engine. Threads may share it."""

    def __init__(self) -> None:
        self._lock = threading.Condition()
        self._buffers: list[Buffer] = []
        self._order: list[Buffer] = []
        self._holds = 0

    def add(self, address: int, nbytes: int) -> bool:
        """Register; False if it overlaps another buffer, is empty or no address."""
        if address <= 0 or nbytes <= 0 or address + nbytes > ADDRESS_MAX:
            return False
        added = Buffer(address, nbytes)
        with self._lock:
            at = bisect.bisect_left(self._buffers, address, key=_address)
            before = self._buffers[at - 1] if at else None
            after = self._buffers[at] if at < len(self._buffers) else None
            if before is not None and before.address + before.nbytes > address:
                return False
            if after is not None and address + nbytes > after.address:
                return False
            self._buffers.insert(at, added)
            self._order.append(added)
        return True

    def remove(self, address: int) -> bool:
        """Unregister the buffer that begins at an address, once nobody uses it; False if there is
        none. Nobody finds it any more from the beginning of the call."""
        with self._lock:
            at = bisect.bisect_left(self._buffers, address, key=_address)
            if at == len(self._buffers) or self._buffers[at].address != address:
                return False
            removed = self._buffers.pop(at)
            self._order.remove(removed)
            self._drain(removed)
        return True

    def first(self) -> int:
        """Return the address of the buffer that was registered first, 0 without one."""
        with self._lock:
            return self._order[0].address if self._order else 0

    def clear(self) -> None:
        """Unregister all."""
        while (address := self.first()) != 0:
            self.remove(address)

    def hold(self, addresses: U64, lengths: U64, interrupt: Callable[[], None]) -> Hold | None:
        """Keep the buffers of some ranges from being unregistered; None unless each range lies in
        one of them. ``interrupt`` is called, once, if that lasts too long."""
        with self._lock:
            found = self._find(addresses, lengths)
            if found is None:
                return None
            self._holds += 1
            for each in found:
                each.holders[self._holds] = interrupt
            return Hold(self, self._holds, found)

    def _find(self, addresses: U64, lengths: U64) -> list[Buffer] | None:
        if not len(addresses):
            return []
        if not self._buffers:
            return None
        starts = np.array([each.address for each in self._buffers], np.uint64)
        ends = starts + np.array([each.nbytes for each in self._buffers], np.uint64)
        at = np.searchsorted(starts, addresses, side="right") - 1
        if (at < 0).any():
            return None
        room = ends[at] - addresses
        if (addresses >= ends[at]).any() or (lengths > room).any():
            return None
        return [self._buffers[i] for i in np.unique(at).tolist()]

    def let_go(self, hold: Hold) -> None:
        """End a hold."""
        with self._lock:
            for each in hold.buffers:
                each.holders.pop(hold.number, None)
            self._lock.notify_all()

    def _drain(self, removed: Buffer) -> None:
        deadline = time.monotonic() + DRAIN_S
        while removed.holders:
            if not self._lock.wait(max(0.0, deadline - time.monotonic())):
                break
        for interrupt in list(removed.holders.values()):
            interrupt()
        # A connection that was interrupted ends at its next system call.
        while removed.holders:
            self._lock.wait()


def _address(buffer: Buffer) -> int:
    return buffer.address


class Hold:
    """Buffers that somebody uses, until ``with`` ends."""

    def __init__(self, registry: Registry, number: int, buffers: list[Buffer]) -> None:
        self.number = number
        self.buffers = buffers
        self._registry = registry

    def __enter__(self) -> Hold:
        return self

    def __exit__(self, *_: object) -> None:
        self._registry.let_go(self)
