"""Pinning mapped segments in the background, so that the GPU reads and writes them itself."""

from __future__ import annotations

import contextlib
import errno
import logging
import os
import threading
from collections import deque
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field

from moonpool.gpu.base import Driver, GpuError
from moonpool.gpu.runs import NONE_PINNED, Pinned
from moonpool.transport import native

_log = logging.getLogger(__name__)

CHUNK_BYTES = 64 * 1024 * 1024
"""Pinned in one call. The driver lets this process's copies wait meanwhile (measured: 6.3 ms in the
median, 20.9 ms at most), so that the next call waits in turn until no copy is under way, though not
for ever."""
PAUSE_S_MAX = 0.02
DETACH_S_MAX = 60.0
_NICENESS = 10


@dataclass
class _Region:
    """A mapping. ``users`` counts copies under way; ``busy`` is set while a chunk is pinned."""

    address: int
    nbytes: int
    mappings: int = 1
    users: int = 0
    busy: bool = False
    closing: bool = False
    chunks: list[tuple[int, int]] = field(default_factory=list)


class Pinning:
    """Which host memory is pinned. A thread pins what is attached, from its start on, until it
    is done or the driver refuses; what is not pinned stays usable, only slower."""

    def __init__(
        self,
        driver: Driver,
        *,
        chunk_bytes: int = CHUNK_BYTES,
        limit_bytes: int | None = None,
        populate: Callable[[int, int], int] = native.populate,
    ) -> None:
        self._populate = populate
        self._copies = 0
        self._driver = driver
        self._chunk_bytes = chunk_bytes
        self._limit_bytes = limit_bytes
        self._changed = threading.Condition()
        self._regions: dict[int, _Region] = {}
        self._todo: deque[_Region] = deque()
        self._thread: threading.Thread | None = None
        self._table: Pinned = NONE_PINNED
        self._pinned_bytes = 0
        self._complained = False

    @property
    def pinned_bytes(self) -> int:
        """Bytes of attached memory that are pinned."""
        return self._pinned_bytes

    def include(self, address: int, nbytes: int) -> None:
        """Count memory as pinned that was allocated so."""
        with self._changed:
            self._table = self._table.plus(address, nbytes)

    def attach(self, address: int, nbytes: int) -> None:
        """Pin a mapping in the background."""
        with self._changed:
            region = self._regions.get(address)
            if region is not None:
                region.mappings += 1
                return
            region = self._regions[address] = _Region(address, nbytes)
            self._todo.append(region)
            if self._thread is None:
                self._start()

    def detach(self, address: int) -> None:
        """Unpin a mapping once no copy uses it; unknown addresses are ignored."""
        with self._changed:
            region = self._regions.get(address)
            if region is None:
                return
            region.mappings -= 1
            if region.mappings:
                return
            del self._regions[address]
            region.closing = True
            self._table = self._table.outside(address, region.nbytes)
            idle = self._changed.wait_for(
                lambda: not region.users and not region.busy, DETACH_S_MAX
            )
        if not idle:
            _log.error("memory at %#x is still being copied; it stays pinned", address)
            return
        for start, nbytes in region.chunks:
            with contextlib.suppress(GpuError):
                self._driver.host_unregister(start)
            self._pinned_bytes -= nbytes

    @contextmanager
    def hold(self, low: int, high: int) -> Iterator[Pinned]:
        """Return what is pinned; of that, nothing between two addresses goes in this block."""
        with self._changed:
            used = [
                region
                for region in self._regions.values()
                if region.address < high and low < region.address + region.nbytes
            ]
            for region in used:
                region.users += 1
            self._copies += 1
            table = self._table
        try:
            yield table
        finally:
            with self._changed:
                for region in used:
                    region.users -= 1
                self._copies -= 1
                self._changed.notify_all()

    def wait(self, timeout_s: float) -> bool:
        """Wait until nothing is left to pin; tell whether that is so."""
        with self._changed:
            return self._changed.wait_for(lambda: self._thread is None, timeout_s)

    def close(self) -> None:
        """Unpin everything; no copy may be under way."""
        for address in list(self._regions):
            self._regions[address].mappings = 1
            self.detach(address)
        self.wait(DETACH_S_MAX)

    # --- the thread ---------------------------------------------------------------------------

    def _start(self) -> None:
        thread = threading.Thread(target=self._run, name="moonpool-pin", daemon=True)
        self._thread = thread
        try:
            thread.start()
        except RuntimeError:  # no more threads
            self._thread = None
            self._todo.clear()
            self._complain("no thread")

    def _run(self) -> None:
        with contextlib.suppress(OSError):
            os.setpriority(os.PRIO_PROCESS, threading.get_native_id(), _NICENESS)
        while True:
            with self._changed:
                if not self._todo:
                    self._thread = None
                    self._changed.notify_all()
                    return
                region = self._todo.popleft()
            self._pin(region)

    def _pin(self, region: _Region) -> None:
        for at in range(0, region.nbytes, self._chunk_bytes):
            nbytes = min(self._chunk_bytes, region.nbytes - at)
            with self._changed:
                self._changed.wait_for(lambda: region.closing or not self._copies, PAUSE_S_MAX)
                if region.closing or self._is_full(nbytes):
                    return
                region.busy = True
            failure = self._register(region.address + at, nbytes)
            with self._changed:
                region.busy = False
                if not failure:
                    region.chunks.append((region.address + at, nbytes))
                    self._pinned_bytes += nbytes
                    if not region.closing:
                        self._table = self._table.plus(region.address + at, nbytes)
                self._changed.notify_all()
            if failure:
                self._complain(failure)
                return

    def _register(self, address: int, nbytes: int) -> str:
        """Pin memory; return why not."""
        # Pages that are not there yet take long, and the driver would hold its lock meanwhile.
        code = self._populate(address, nbytes)
        if code not in (0, errno.EINVAL):  # EINVAL: an old kernel
            return os.strerror(code)
        try:
            self._driver.host_register(address, nbytes)
        except GpuError as error:
            return str(error)
        return ""

    def _is_full(self, nbytes: int) -> bool:
        return self._limit_bytes is not None and self._pinned_bytes + nbytes > self._limit_bytes

    def _complain(self, why: str) -> None:
        if not self._complained:
            self._complained = True
            _log.warning("memory of the pool is not pinned any further, copies are slower: %s", why)
