"""Where a stack keeps its files: a directory for this run, and one in shared memory."""

from __future__ import annotations

import contextlib
import os
import re
import shutil
import socket
import tempfile
from collections.abc import Iterator
from pathlib import Path

from moonpool.demo.process import StartError
from moonpool.errors import ConfigError

PREFIX = "moonpool-run"
SHARED_MEMORY = Path("/dev/shm")
FALLBACK = Path("/tmp")
PARENT_BYTES_MAX = 24
HEADROOM = 1.1
"""Segments hold a little more than the pool's bytes: header, page owners, slot table."""


def temporary_parent() -> Path:
    """Return where a run's directory goes: short, since it holds sockets, whose paths the kernel
    limits to 107 bytes."""
    chosen = Path(tempfile.gettempdir())
    return chosen if len(os.fsencode(chosen)) <= PARENT_BYTES_MAX else FALLBACK


def cache_dir() -> Path:
    """Return where models that were made here are kept between runs."""
    base = os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache"
    return Path(base) / "moonpool"


@contextlib.contextmanager
def directory(parent: Path) -> Iterator[Path]:
    """Give a directory of this process under ``parent`` and remove it afterwards.

    After a StartError its logs stay for people to read, until the next run starts.
    """
    remove_stale(parent)
    path = Path(tempfile.mkdtemp(prefix=f"{PREFIX}-{os.getpid()}-", dir=parent))
    try:
        yield path
    except StartError:
        _remove_all_but_logs(path)
        raise
    except BaseException:
        shutil.rmtree(path, ignore_errors=True)
        raise
    else:
        shutil.rmtree(path, ignore_errors=True)


def _remove_all_but_logs(path: Path) -> None:
    for entry in path.iterdir():
        if entry.is_dir():
            shutil.rmtree(entry, ignore_errors=True)
        elif entry.suffix != ".log":
            entry.unlink(missing_ok=True)
    with contextlib.suppress(OSError):
        path.rmdir()


def remove_stale(parent: Path) -> None:
    """Remove what runs of this user left under ``parent`` that were killed outright."""
    for path in parent.glob(f"{PREFIX}-*"):
        match = re.fullmatch(rf"{PREFIX}-(\d+)-.*", path.name)
        with contextlib.suppress(OSError):
            if match and path.stat().st_uid == os.getuid() and not _is_alive(int(match[1])):
                shutil.rmtree(path, ignore_errors=True)


def _is_alive(pid: int) -> bool:
    try:
        os.kill(pid, 0)
    except ProcessLookupError:
        return False
    except PermissionError:
        pass
    return True


def segment_parent(pool_bytes: int) -> Path:
    """Return a place for the pool's segments: shared memory, or a disk where that is too small.

    Containers often have 64 MB of /dev/shm; files elsewhere work as well, but their pages are
    written back to the disk. Raises ConfigError where neither has room.
    """
    places = [SHARED_MEMORY, Path(tempfile.gettempdir())]
    free = {place: shutil.disk_usage(place).free for place in places if place.is_dir()}
    for place, free_bytes in free.items():
        if free_bytes >= pool_bytes * HEADROOM:
            return place
    found = ", ".join(f"{place}: {free_bytes >> 20} MiB free" for place, free_bytes in free.items())
    raise ConfigError(
        f"pool-size: no room for {pool_bytes >> 20} MiB ({found}); allowed: what fits there"
    )


def free_ports(count: int) -> list[int]:
    """Return ports of the loopback interface that were free a moment ago, all different."""
    with contextlib.ExitStack() as stack:
        sockets = [
            stack.enter_context(socket.create_server(("127.0.0.1", 0))) for _ in range(count)
        ]
        return [int(sock.getsockname()[1]) for sock in sockets]
