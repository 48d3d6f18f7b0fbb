"""Extents as files of a directory, past the page cache where the filesystem lets us.

``<directory>/<node>/`` holds ``lock``, and for each extent ``<number>.data`` and
``<number>.index``. The lock is a flock, which ends with the process that holds it.
"""

from __future__ import annotations

import contextlib
import errno
import fcntl
import os
from collections.abc import Sequence
from pathlib import Path

from moonpool.errors import ConfigError
from moonpool.ssd.handles import Handles
from moonpool.ssd.many import ManyReads
from moonpool.ssd.records import BLOCK_BYTES
from moonpool.ssd.volume import Buffer, VolumeError

_FULL = (errno.ENOSPC, errno.EDQUOT)


class LocalVolume:
    """The directory of one node. Raises ConfigError if it cannot be had or is another's."""

    immutable = False

    def __init__(self, directory: str | os.PathLike[str], node: str) -> None:
        self.path = Path(directory) / node
        try:
            self.path.mkdir(mode=0o700, parents=True, exist_ok=True)
            self._lock = _lock(self.path, node)
            self.direct = _takes_direct(self.path)
        except OSError as error:
            raise ConfigError(
                f"ssd: {self.path}: {error.strerror}; a directory on a disk that this user may "
                "write to is needed"
            ) from None
        self._dir = os.open(self.path, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
        self._open: tuple[int, int] | None = None
        self._readable = Handles(
            lambda number: os.open(self._data(number), self._flags(os.O_RDONLY))
        )
        self.many: ManyReads | None = None
        if self.direct:
            with contextlib.suppress(OSError):  # then each call has a thread of its own
                self.many = ManyReads(self._readable, self.read)

    def describe(self) -> str:
        """Say what it is and how it is opened."""
        direct = "O_DIRECT" if self.many is None else "O_DIRECT, asynchronous"
        way = direct if self.direct else "buffered: the filesystem refuses O_DIRECT"
        return f"{self.path} ({way})"

    def check_space(self, wanted: int) -> None:
        """Raise ConfigError unless so much is free, or already taken by extents."""
        found = os.statvfs(self.path)
        free = found.f_bavail * found.f_frsize
        have = sum(512 * path.stat().st_blocks for path in self.path.glob("*.data"))
        if wanted > free + have:
            raise ConfigError(
                f"ssd_size: {wanted} bytes are wanted and {free + have} are free in {self.path}; "
                f"at most {free + have} are allowed"
            )

    def numbers(self) -> list[int]:
        """Return the extents that have both files; delete what is left of others."""
        found: dict[str, set[int]] = {".data": set(), ".index": set()}
        for path in self.path.iterdir():
            if path.suffix in found and path.stem.isdecimal():
                found[path.suffix].add(int(path.stem))
        whole = found[".data"] & found[".index"]
        for number in (found[".data"] | found[".index"]) - whole:
            self.delete(number)
        return sorted(whole)

    def make(self, number: int, size: int) -> None:
        """Make both files; the space of the data is taken at once."""
        try:
            fd = os.open(self._data(number), self._flags(os.O_RDWR | os.O_CREAT | os.O_EXCL), 0o600)
            try:
                os.posix_fallocate(fd, 0, size)
                with self._index(number).open("xb"):
                    pass
                os.fsync(self._dir)
            except BaseException:
                os.close(fd)
                self.delete(number)
                raise
        except OSError as error:
            raise _error(error, f"extent {number}") from None
        self._close_data()
        self._open = number, fd

    def write(self, number: int, offset: int, buffers: Sequence[Buffer]) -> None:
        """Write buffers one after the other."""
        try:
            total = sum(map(len, buffers))
            done = os.pwritev(self._fd(number), buffers, offset)
            while done < total:
                buffers = _after(buffers, done)
                offset, total = offset + done, total - done
                done = os.pwritev(self._fd(number), buffers, offset)
        except OSError as error:
            raise _error(error, f"extent {number}") from None

    def sync(self, number: int) -> None:
        """Have the device keep what was written."""
        try:
            os.fdatasync(self._fd(number))
        except OSError as error:
            raise _error(error, f"extent {number}") from None

    def read(self, number: int, offset: int, buffers: Sequence[Buffer]) -> None:
        """Fill buffers one after the other."""
        try:
            handle = self._readable.take(number)
            try:
                done = _fill(handle.fd, buffers, offset)
            finally:
                self._readable.give(handle)
        except FileNotFoundError:
            raise VolumeError(f"extent {number} is gone", "gone") from None
        except OSError as error:
            raise _error(error, f"extent {number}") from None
        if done < sum(map(len, buffers)):
            raise VolumeError(f"extent {number} ends before {offset + done}", "truncated")

    def log(self, number: int) -> bytes:
        """Return the index."""
        try:
            return self._index(number).read_bytes()
        except OSError as error:
            raise _error(error, f"index {number}") from None

    def cut_log(self, number: int, size: int) -> None:
        """Cut the index."""
        try:
            os.truncate(self._index(number), size)
        except OSError as error:
            raise _error(error, f"index {number}") from None

    def append(self, number: int, records: bytes) -> None:
        """Add to the index; what is there of it after a failure is cut off again."""
        try:
            fd = os.open(self._index(number), os.O_WRONLY | os.O_APPEND | os.O_CLOEXEC)
            try:
                before = os.fstat(fd).st_size
                try:
                    if os.write(fd, records) < len(records):
                        raise OSError(errno.ENOSPC, "a short write")
                    os.fdatasync(fd)
                except OSError:
                    os.ftruncate(fd, before)
                    raise
            finally:
                os.close(fd)
        except OSError as error:
            raise _error(error, f"index {number}") from None

    def delete(self, number: int) -> None:
        """Delete both files."""
        if self._open is not None and self._open[0] == number:
            self._close_data()
        self._readable.forget(number)
        try:
            self._index(number).unlink(missing_ok=True)
            self._data(number).unlink(missing_ok=True)
        except OSError as error:
            raise _error(error, f"extent {number}") from None

    def close(self) -> None:
        """Give the directory up."""
        self._close_data()
        if self.many is not None:
            self.many.close()
        self._readable.close()
        for fd in (self._dir, self._lock):
            with contextlib.suppress(OSError):
                os.close(fd)

    def _data(self, number: int) -> Path:
        return self.path / f"{number:08d}.data"

    def _index(self, number: int) -> Path:
        return self.path / f"{number:08d}.index"

    def _flags(self, flags: int) -> int:
        return flags | os.O_CLOEXEC | (os.O_DIRECT if self.direct else 0)

    def _fd(self, number: int) -> int:
        if self._open is None or self._open[0] != number:
            raise VolumeError(f"extent {number} is not open for writing", "io")
        return self._open[1]

    def _close_data(self) -> None:
        if self._open is not None:
            os.close(self._open[1])
            self._open = None


def _lock(path: Path, node: str) -> int:
    fd = os.open(path / "lock", os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
    try:
        fcntl.flock(fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        os.close(fd)
        raise ConfigError(
            f"ssd: {path} is in use by a node {node!r} that lives; each node needs its own"
        ) from None
    return fd


def _takes_direct(path: Path) -> bool:
    """Tell whether the filesystem opens files past the page cache."""
    probe = path / f"probe.{os.getpid()}"
    try:
        fd = os.open(probe, os.O_RDWR | os.O_CREAT | os.O_DIRECT | os.O_CLOEXEC, 0o600)
    except OSError as error:
        if error.errno != errno.EINVAL:
            raise
        return False
    finally:
        probe.unlink(missing_ok=True)
    os.close(fd)
    return True


def _fill(fd: int, buffers: Sequence[Buffer], offset: int) -> int:
    """Read until the buffers are full or the file ends; return the bytes read."""
    total, done = sum(map(len, buffers)), 0
    while done < total:
        got = os.preadv(fd, _after(buffers, done) if done else buffers, offset + done)
        # Past the page cache nothing can be read from the middle of a block on: that is the end.
        done += got
        if not got or got % BLOCK_BYTES:
            break
    return done


def _after(buffers: Sequence[Buffer], done: int) -> Sequence[Buffer]:
    """Return what is left of buffers of which ``done`` bytes are served."""
    for i, buffer in enumerate(buffers):
        if done < len(buffer):
            return [buffer[done:], *buffers[i + 1 :]]
        done -= len(buffer)
    return []


def _error(error: OSError, what: str) -> VolumeError:
    reason = "full" if error.errno in _FULL else "io"
    return VolumeError(f"{what}: {error.strerror or error}", reason)
