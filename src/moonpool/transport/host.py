"""Which memory can be shared: a name for "this machine, this directory, this user"."""

from __future__ import annotations

import hashlib
import os
from pathlib import Path

_BOOT_ID = Path("/proc/sys/kernel/random/boot_id")


def host_identity(segment_dir: str | os.PathLike[str]) -> str:
    """Return a name that two processes share only if both can map this directory's files.

    It covers the running kernel, the directory itself (a container has another /dev/shm) and the
    user. Empty if the directory is not there.
    """
    try:
        boot = _BOOT_ID.read_bytes()
        found = Path(segment_dir).stat()
    except OSError:
        return ""
    facts = f"{found.st_dev}:{found.st_ino}:{os.getuid()}".encode()
    return hashlib.sha256(boot + facts).hexdigest()[:32]


def shares_memory(host: str, path: str) -> bool:
    """Tell whether a segment file at ``path`` of the machine ``host`` can be mapped here.

    Segment files are at ``<segment_dir>/<node>/<segment>.seg``.
    """
    if not host or not path:
        return False
    parents = Path(path).parents
    if len(parents) < 2 or host_identity(parents[1]) != host:
        return False
    return os.access(path, os.R_OK | os.W_OK)
