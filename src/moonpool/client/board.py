"""Lookups without a message: the master's table of marks, mapped where it is on this host.

The table may lag by what the master is doing right now, so an answer from it is as good as one
that was on its way: at worst a block that is there is missed, or a load fails that the master,
who gives the lease for it, answers with "not there". Whatever looks wrong about the file means
that the master is asked instead.
"""

from __future__ import annotations

import logging
import mmap
import os
import stat
import threading
import time
from pathlib import Path

import numpy as np

from moonpool.core.marks import Flags, Marker, home_slot, prefix, present
from moonpool.core.messages import Welcome
from moonpool.errors import ProtocolError
from moonpool.protocol.board import (
    BEAT_AT,
    CLOSED,
    DISKS_AT,
    HEADER_BYTES,
    NEXT_AT,
    STALE_S,
    Header,
    file_name,
    parse_header,
)
from moonpool.transport.host import host_identity

_TRIES = 4
_STALE_NS = int(STALE_S * 1e9)

log = logging.getLogger("moonpool.client")


class Board:
    """The table that a master's Welcome offered. Threads may share it."""

    def __init__(self, offer: Welcome) -> None:
        """Map it. Raises OSError, ProtocolError."""
        self.cookie = offer.board_cookie
        self.epoch = offer.epoch
        self.lost = False
        self._directory = Path(offer.board_path).parent
        self._lock = threading.Lock()
        self._file = _File(Path(offer.board_path))
        self._check()
        self._marker = Marker(self._file.header.seed)

    def prefix(self, namespace: bytes, digests: bytes, stride: int) -> int | None:
        """Return how many leading blocks (16 bytes each) are there, None if it cannot be told."""
        file = self._current()
        if file is None:
            return None
        return prefix(file.table, self._marker, namespace, digests, stride)

    def any_on_disk(self) -> bool:
        """Tell whether any object is on a disk only."""
        return self._file.word(DISKS_AT) > 0

    def has(self, key: bytes) -> bool | None:
        """Tell whether a packed key is there, None if it cannot be told."""
        file = self._current()
        return None if file is None else file.has(*self._marker.mark(key))

    def which(self, keys: list[bytes]) -> Flags | None:
        """Tell which keys are there, shape (n,), if they are digests in one namespace.

        None if they are not, or if it cannot be told.
        """
        width = len(keys[0])
        joined = b"".join(keys)
        head = keys[0][: keys[0][0] + 1]
        if width != len(head) + 16 or len(joined) != width * len(keys):
            return None
        if any(len(key) != width or not key.startswith(head) for key in keys):
            return None
        file = self._current()
        if file is None:
            return None
        rows = np.frombuffer(joined, np.uint8).reshape(len(keys), width)
        digests = np.ascontiguousarray(rows[:, len(head) :]).view("<u8")
        return present(file.table, *self._marker.marks(head[1:], digests))

    def _current(self) -> _File | None:
        """Return the table in use, if its master was alive just now."""
        file = self._file
        following = file.word(NEXT_AT)
        if following:
            found = self._follow(file, following)
            if found is None:
                return None
            file = found
        if not 0 <= time.monotonic_ns() - file.word(BEAT_AT) < _STALE_NS or not file.is_whole():
            return None
        return file

    def _follow(self, file: _File, following: int) -> _File | None:
        """Map the file that continues one."""
        with self._lock:
            if self.lost:
                return None
            if self._file is not file:
                return self._file
            for _ in range(_TRIES):
                try:
                    if following == CLOSED:
                        raise ProtocolError("the master has closed it")
                    self._file = _File(self._directory / file_name(self.cookie, following))
                    self._check()
                except FileNotFoundError:
                    following = newest(self._directory, self.cookie) or CLOSED
                except (OSError, ValueError, ProtocolError) as error:
                    log.debug("lookups go to the master again: %s", error)
                    break
                else:
                    return self._file
            self.lost = True
            return None

    def _check(self) -> None:
        header = self._file.header
        if (header.cookie, header.epoch) != (self.cookie, self.epoch):
            raise ProtocolError("it is another master's")


class _File:
    """One file, mapped for reading."""

    def __init__(self, path: Path) -> None:
        """Raises OSError, ValueError, ProtocolError."""
        self.path = path
        self._fd = os.open(path, os.O_RDONLY | os.O_CLOEXEC | os.O_NOFOLLOW | os.O_NONBLOCK)
        try:
            found = os.fstat(self._fd)
            if not stat.S_ISREG(found.st_mode) or found.st_uid != os.getuid():
                raise ProtocolError(f"{path} is not a file of this user")
            if found.st_mode & 0o077:
                raise ProtocolError(f"{path} is open to other users")
            self.header: Header = parse_header(os.pread(self._fd, HEADER_BYTES, 0), found.st_size)
            self._map = mmap.mmap(self._fd, found.st_size, access=mmap.ACCESS_READ)
        except BaseException:
            os.close(self._fd)
            self._fd = -1
            raise
        self._words = memoryview(self._map).cast("Q")
        self.table = np.frombuffer(self._map, np.uint64, offset=HEADER_BYTES).reshape(-1, 2)

    def __del__(self) -> None:
        fd, self._fd = getattr(self, "_fd", -1), -1
        if fd >= 0:
            os.close(fd)

    def word(self, at: int) -> int:
        """Return one of the words that change."""
        return self._words[at // 8]

    def is_whole(self) -> bool:
        """Tell whether the file is as long as it was: reading behind its end would be fatal."""
        return os.fstat(self._fd).st_size == self.header.file_bytes

    def has(self, low: int, high: int) -> bool:
        """Tell whether a mark is there."""
        words, slots = self._words, self.header.slots
        at, first = home_slot(low, high, slots), HEADER_BYTES // 8
        for _ in range(slots):
            here, there = words[first + 2 * at], words[first + 2 * at + 1]
            if here == low and there == high:
                return True
            if not here and not there:
                return False
            at = (at + 1) & (slots - 1)
        return False


def newest(directory: Path, cookie: int) -> int:
    """Return the highest number of a master's files, 0 if there is none: one that grew several
    times between two looks has removed those between."""
    numbers = [
        path.name.rpartition(".")[2] for path in directory.glob(file_name(cookie, 0)[:-1] + "*")
    ]
    return max((int(each) for each in numbers if each.isdecimal()), default=0)


def board_of(offer: Welcome) -> Board | None:
    """Return the table that a Welcome offers, None if it is not to be had here."""
    if not offer.board_path or not Path(offer.board_path).is_absolute():
        return None
    try:
        if host_identity(Path(offer.board_path).parent) != offer.board_host:
            return None
        return Board(offer)
    except (OSError, ValueError, ProtocolError) as error:
        log.debug("lookups go to the master: %s", error)
        return None
