"""Memory that a client and its carrier share: bytes wait here to be fetched or to be spread out."""

from __future__ import annotations

import mmap
import os
import threading
import time

import numpy as np
import numpy.typing as npt

from moonpool.errors import DeadlineError, TransferError
from moonpool.transport.base import Copier
from moonpool.transport.onesided_carrier import Pending

WINDOWS = 4
ALIGN_BYTES = 64


class Window:
    """A part of the staging memory, lent to one thread. ``offset`` and ``address`` of its start."""

    def __init__(self, offset: int, address: int, nbytes: int) -> None:
        self.offset, self.address, self.nbytes = offset, address, nbytes


class Staging:
    """``nbytes`` of shared memory in windows; pages are taken as they are used.

    copier: told of the memory, which it may pin.
    """

    def __init__(self, nbytes: int, copier: Copier) -> None:
        """Raises TransferError if there is no memory to be had."""
        page = mmap.PAGESIZE
        self.window_bytes = max(page, nbytes // WINDOWS // page * page)
        self.nbytes = self.window_bytes * WINDOWS
        self._copier = copier
        try:
            self.fd = os.memfd_create("moonpool-staging", os.MFD_CLOEXEC)
            try:
                os.ftruncate(self.fd, self.nbytes)
                self._array: npt.NDArray[np.uint8] = np.frombuffer(
                    mmap.mmap(self.fd, self.nbytes), np.uint8
                )
            except BaseException:
                os.close(self.fd)
                raise
        except OSError as error:
            raise TransferError(f"no staging memory: {error.strerror}") from None
        self.address = int(self._array.ctypes.data)
        self._free = threading.Condition()
        self._idle = [
            Window(at, self.address + at, self.window_bytes)
            for at in range(0, self.nbytes, self.window_bytes)
        ]
        self._stuck = 0
        self._closed = False
        copier.attach(self.address, self.nbytes)

    def take(self, timeout_s: float) -> Window:
        """Lend a window. Raises DeadlineError; TransferError when closed."""
        deadline = time.monotonic() + timeout_s
        with self._free:
            while not self._idle and not self._closed:
                if not self._free.wait(deadline - time.monotonic()):
                    raise DeadlineError("all staging memory is in use")
            if self._closed:
                raise TransferError("closed")
            return self._idle.pop()

    def give_back(self, window: Window) -> None:
        """Take a window back that nothing writes into any more."""
        with self._free:
            self._idle.append(window)
            self._free.notify()

    def keep_until(self, pending: Pending, window: Window) -> bool:
        """Lend the window to nobody before a transfer into it has ended; tell whether any window
        is left that no such transfer holds."""
        with self._free:
            self._stuck += 1
            left = self._stuck < WINDOWS

        def ended() -> None:
            with self._free:
                self._stuck -= 1
            self.give_back(window)

        pending.then(ended)
        return left

    def view(self, address: int, nbytes: int) -> npt.NDArray[np.uint8]:
        """Return the memory at an address inside."""
        at = address - self.address
        return self._array[at : at + nbytes]

    def close(self) -> None:
        """Give the memory back once no call uses it."""
        with self._free:
            if self._closed:
                return
            self._closed = True
            self._free.notify_all()
        self._copier.detach(self.address)
        os.close(self.fd)
