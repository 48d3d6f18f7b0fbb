"""Extents as files of a shared filesystem or objects of a store, through fsspec.

Such files are written in one go, so an extent holds one batch: its data first, and then its index,
which is what makes it count. ``<url>/<node>/owner`` says who uses the directory, as long as it is
renewed: there is no lock to be had that all stores know.
"""

from __future__ import annotations

import contextlib
import importlib
import json
import os
import secrets
import socket
import threading
import time
from collections.abc import Sequence
from typing import Any

from moonpool.errors import ConfigError
from moonpool.ssd.volume import Buffer, VolumeError

OWNED_S = 60.0
RENEW_S = 15.0


class RemoteVolume:
    """A directory named by a URL, such as ``s3://bucket/pool``. Raises ConfigError."""

    immutable = True

    def __init__(self, url: str, node: str) -> None:
        try:
            fsspec = importlib.import_module("fsspec")
        except ImportError:
            raise ConfigError(
                "ssd: a URL needs the package fsspec, and s3fs for s3:// (pip install "
                "'moonpool[s3]')"
            ) from None
        try:
            self._fs, root = fsspec.core.url_to_fs(url)
            self._root = f"{root.rstrip('/')}/{node}"
            self._fs.makedirs(self._root, exist_ok=True)
        except Exception as error:  # noqa: BLE001 - whatever a store's package raises
            raise ConfigError(f"ssd: {url}: {error}") from None
        self._url = url
        self._buffers: dict[int, bytearray] = {}
        self._filled: dict[int, int] = {}
        self._logs: dict[int, bytes] = {}
        self._owner = _Owner(self._fs, f"{self._root}/owner", node)

    def describe(self) -> str:
        """Say what it is."""
        return f"{self._url} (fsspec, {type(self._fs).__name__})"

    def numbers(self) -> list[int]:
        """Return the extents that have both files; delete what is left of others."""
        found: dict[str, set[int]] = {"data": set(), "index": set()}
        self._fs.invalidate_cache()
        with self._told("the directory"):
            for path in self._fs.ls(self._root, detail=False):
                name, _, kind = str(path).rpartition("/")[2].partition(".")
                if kind in found and name.isdecimal():
                    found[kind].add(int(name))
        whole = found["data"] & found["index"]
        for number in (found["data"] | found["index"]) - whole:
            self.delete(number)
        return sorted(whole)

    def make(self, number: int, size: int) -> None:
        """Make room for the batch."""
        self._buffers[number] = bytearray(size)
        self._filled[number] = 0
        self._logs[number] = b""

    def write(self, number: int, offset: int, buffers: Sequence[Buffer]) -> None:
        """Gather the batch."""
        target = self._buffers.get(number)
        if target is None:
            raise VolumeError(f"extent {number} is written already", "io")
        for buffer in buffers:
            target[offset : offset + len(buffer)] = buffer
            offset += len(buffer)
        self._filled[number] = max(self._filled[number], offset)

    def sync(self, number: int) -> None:
        """Send the batch."""
        data = self._buffers.pop(number)
        with self._told(f"extent {number}"):
            self._fs.pipe_file(self._path(number, "data"), bytes(data[: self._filled[number]]))

    def read(self, number: int, offset: int, buffers: Sequence[Buffer]) -> None:
        """Read a range and deal it out."""
        total = sum(map(len, buffers))
        with self._told(f"extent {number}"):
            raw = self._fs.cat_file(self._path(number, "data"), start=offset, end=offset + total)
        if len(raw) < total:
            raise VolumeError(f"extent {number} ends before {offset + total}", "truncated")
        for buffer in buffers:
            buffer[:] = raw[: len(buffer)]
            raw = raw[len(buffer) :]

    def log(self, number: int) -> bytes:
        """Return the index."""
        with self._told(f"index {number}"):
            self._logs[number] = bytes(self._fs.cat_file(self._path(number, "index")))
        return self._logs[number]

    def cut_log(self, number: int, size: int) -> None:
        """Cut the index to its whole records."""
        self._send_log(number, self._logs[number][:size])

    def append(self, number: int, records: bytes) -> None:
        """Add to the index; what comes before the data waits for what comes behind."""
        if number in self._buffers:
            self._logs[number] += records
        else:
            self._send_log(number, self._logs[number] + records)

    def delete(self, number: int) -> None:
        """Delete both files."""
        for kind in ("index", "data"):
            with contextlib.suppress(FileNotFoundError), self._told(f"{kind} {number}", keep=True):
                self._fs.rm_file(self._path(number, kind))
        for held in (self._buffers, self._filled, self._logs):
            held.pop(number, None)

    def close(self) -> None:
        """Give the directory up."""
        self._owner.close()

    def _path(self, number: int, kind: str) -> str:
        return f"{self._root}/{number:08d}.{kind}"

    def _send_log(self, number: int, log: bytes) -> None:
        with self._told(f"index {number}"):
            self._fs.pipe_file(self._path(number, "index"), log)
        self._logs[number] = log

    @contextlib.contextmanager
    def _told(self, what: str, *, keep: bool = False) -> Any:
        """Turn whatever a store's package raises into a VolumeError."""
        try:
            yield
        except FileNotFoundError:
            if keep:
                raise
            raise VolumeError(f"{what} is gone", "gone") from None
        except VolumeError:
            raise
        except Exception as error:  # noqa: BLE001 - as above
            full = getattr(error, "errno", None) == 28
            raise VolumeError(f"{what}: {error}", "full" if full else "io") from None


class _Owner:
    """The word of who uses a directory, renewed by a thread."""

    def __init__(self, fs: Any, path: str, node: str) -> None:
        self._fs, self._path = fs, path
        self._me = {"host": socket.gethostname(), "pid": os.getpid(), "id": secrets.token_hex(8)}
        other = self._read()
        if other is not None and not _is_over(other):
            raise ConfigError(
                f"ssd: {path}: in use by a node {node!r} that lives ({other.get('host')}, process "
                f"{other.get('pid')}); each node needs its own"
            )
        self._stop = threading.Event()
        self._write()
        self._thread = threading.Thread(target=self._renew, name="moonpool-disk-owner", daemon=True)
        self._thread.start()

    def close(self) -> None:
        """Say that it is free."""
        self._stop.set()
        self._thread.join(RENEW_S)
        with contextlib.suppress(Exception):
            self._fs.rm_file(self._path)

    def _renew(self) -> None:
        while not self._stop.wait(RENEW_S):
            with contextlib.suppress(Exception):
                self._write()

    def _write(self) -> None:
        said = {**self._me, "until": time.time() + OWNED_S}
        self._fs.pipe_file(self._path, json.dumps(said).encode())

    def _read(self) -> dict[str, Any] | None:
        try:
            found = json.loads(self._fs.cat_file(self._path))
        except Exception:  # noqa: BLE001 - there is none, or none that can be read
            return None
        return found if isinstance(found, dict) else None


def _is_over(other: dict[str, Any]) -> bool:
    """Tell whether an owner is gone: its time is over, or it was a process here that has ended."""
    until = other.get("until")
    if not isinstance(until, int | float) or until < time.time():
        return True
    pid = other.get("pid")
    if other.get("host") != socket.gethostname() or not isinstance(pid, int) or pid <= 0:
        return False
    try:
        os.kill(pid, 0)
    except ProcessLookupError:
        return True
    except OSError:
        pass
    return False
