"""The table of marks in shared memory, where clients on the master's host read it.

Only this process writes it. The files are the user's alone (0600), locked for as long as the
master lives, and removed at its end; what a killed one left is removed by the next.
"""

from __future__ import annotations

import contextlib
import fcntl
import logging
import mmap
import os
import secrets
import time
from pathlib import Path

import numpy as np

from moonpool.core.marks import U64
from moonpool.protocol.board import (
    BEAT_AT,
    CLOSED,
    DISKS_AT,
    HEADER_BYTES,
    NEXT_AT,
    Header,
    file_name,
    pack_header,
)
from moonpool.transport.host import host_identity

SEED_BYTES = 32
_SWEEP_MAX = 4096

log = logging.getLogger("moonpool.master")


class Board:
    """A Room for Marks. Without shared memory the table goes on in private memory, unseen."""

    def __init__(self, directory: str | os.PathLike[str], epoch: int) -> None:
        self.directory = Path(directory)
        self.cookie = secrets.randbits(63)
        self.seed = secrets.token_bytes(SEED_BYTES)
        self.host = ""
        self._epoch = epoch
        self._number = 0
        self._new: _File | None = None
        self._file: _File | None = None
        try:
            self.directory.mkdir(mode=0o700, parents=True, exist_ok=True)
            _sweep(self.directory)
            self.host = host_identity(self.directory)
        except OSError as error:
            self._give_up(error)

    @property
    def path(self) -> str:
        """The file in use; empty if there is none."""
        return "" if self._file is None else str(self._file.path)

    def make(self, slots: int) -> U64:
        """Return zeros of shape (slots, 2), in shared memory where that can be had."""
        self._number += 1
        if self.host:
            header = Header(self._epoch, self.cookie, self._number, slots, self.seed)
            try:
                self._new = _File(self.directory / file_name(self.cookie, self._number), header)
            except (OSError, ValueError) as error:
                self._give_up(error)
            else:
                return self._new.table
        return np.zeros((slots, 2), np.uint64)

    def use(self) -> None:
        """Show the table made last in place of the one before."""
        old, self._file, self._new = self._file, self._new, None
        self.beat()
        if old is not None:
            old.end(CLOSED if self._file is None else self._number)

    def beat(self, on_disks_only: int = 0) -> None:
        """Say that the master is alive, and how many objects are on disks only: call several times
        within STALE_S."""
        if self._file is not None:
            self._file.set(DISKS_AT, on_disks_only)
            self._file.set(BEAT_AT, time.monotonic_ns())

    def close(self) -> None:
        """Remove the files; clients stop believing the table at once."""
        self.host = ""
        for each in (self._file, self._new):
            if each is not None:
                each.end(CLOSED)
        self._file = self._new = None

    def _give_up(self, error: Exception) -> None:
        log.warning("no lookups through shared memory in %s: %s", self.directory, error)
        self.close()


class _File:
    """One file, locked and mapped."""

    def __init__(self, path: Path, header: Header) -> None:
        """Create it with all its memory: a write to it must not fail later. Raises OSError."""
        self.path = path
        self._fd = os.open(path, os.O_RDWR | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, 0o600)
        try:
            fcntl.flock(self._fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
            os.posix_fallocate(self._fd, 0, header.file_bytes)
            self._map = mmap.mmap(self._fd, header.file_bytes)
        except BaseException:
            os.close(self._fd)
            path.unlink(missing_ok=True)
            raise
        raw = pack_header(header)
        self._map[: len(raw)] = raw
        self._words = memoryview(self._map).cast("Q")
        self.table: U64 = np.frombuffer(self._map, np.uint64, offset=HEADER_BYTES).reshape(-1, 2)

    def set(self, at: int, word: int) -> None:
        """Write one of the words that change."""
        self._words[at // 8] = word

    def end(self, following: int) -> None:
        """Say what continues this file, and remove it; those who map it keep it."""
        self.set(NEXT_AT, following)
        with contextlib.suppress(OSError):
            self.path.unlink(missing_ok=True)
        if self._fd >= 0:
            os.close(self._fd)
            self._fd = -1


def _sweep(directory: Path) -> None:
    """Remove the files of masters that are dead: nobody holds their locks."""
    for count, path in enumerate(directory.glob("marks-*")):
        if count >= _SWEEP_MAX:
            return
        with contextlib.suppress(OSError):
            fd = os.open(path, os.O_RDWR | os.O_CLOEXEC | os.O_NOFOLLOW | os.O_NONBLOCK)
            try:
                fcntl.flock(fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
                path.unlink()
            finally:
                os.close(fd)
