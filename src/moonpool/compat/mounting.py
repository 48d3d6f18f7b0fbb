"""Segments that are lent and taken back while a program runs."""

from __future__ import annotations

import logging
import mmap
from pathlib import Path
from typing import Any

from moonpool.compat.base import Base
from moonpool.compat.casting import Parameter, call, text, texts, u32, u64
from moonpool.compat.codes import INTERNAL, OK
from moonpool.compat.connected import Connected
from moonpool.errors import MoonpoolError

ROUND = 16 << 20
IDS = Parameter("segment_ids", texts)
GRACE = Parameter("grace_period_seconds", u32, 0)
WHERE = Parameter("protocol", text, "tcp"), Parameter("location", text, "")
_log = logging.getLogger(__name__)


class Mounting(Base):
    """The calls about segments."""

    @call(Parameter("path", text), Parameter("size", u64), Parameter("offset", u64, 0), *WHERE)
    def mount_segment(
        self, path: str, size: int, offset: int, _protocol: str, _location: str
    ) -> dict[str, Any]:
        """Lend as much memory as a part of a file has; the file's own is not used. Return ``ret``,
        0 or a code, and ``segment_ids``."""
        connected = self._connected
        if connected is None or offset % mmap.PAGESIZE or not _holds(path, size + offset):
            return {"ret": INTERNAL, "segment_ids": []}
        if not size:
            return {"ret": OK, "segment_ids": []}
        found = _lent(connected, size, "file")
        return {"ret": OK if found else INTERNAL, "segment_ids": found}

    @call(Parameter("size", u64), *WHERE)
    def allocate_and_mount_segment(
        self, size: int, _protocol: str, _location: str
    ) -> dict[str, Any]:
        """Lend memory, a multiple of 16 MiB; return ``ret``, ``segment_ids`` and
        ``allocated_size``."""
        connected = self._connected
        rounded = -(-size // ROUND) * ROUND
        found = [] if connected is None or not size else _lent(connected, rounded, "memory")
        return {
            "ret": OK if found else INTERNAL,
            "segment_ids": found,
            "allocated_size": rounded if found else 0,
        }

    @call(IDS, GRACE)
    def unmount_segment(self, segment_ids: list[str], _grace_s: int) -> int:
        """Take back what ``mount_segment`` lent; return 0, or -1 if one of the ids is unknown."""
        return _taken_back(self._connected, segment_ids, "file")

    @call(IDS, GRACE)
    def unmount_and_free_segment(self, segment_ids: list[str], _grace_s: int) -> int:
        """Take back what ``allocate_and_mount_segment`` lent; return 0 or -1."""
        return _taken_back(self._connected, segment_ids, "memory")

    @call(GRACE)
    def unmount_local_disk_segment(self, _grace_s: int) -> int:
        """Take this client's disk back: it has none. Return 0, or -1 if not set up."""
        return INTERNAL if self._connected is None else OK


def _holds(path: str, nbytes: int) -> bool:
    try:
        return Path(path).is_file() and Path(path).stat().st_size >= nbytes
    except (OSError, ValueError):
        return False


def _lent(connected: Connected, nbytes: int, kind: str) -> list[str]:
    try:
        return [connected.lend(nbytes, kind=kind)]
    except (MoonpoolError, OSError) as error:
        _log.warning("a segment of %d bytes cannot be lent: %s", nbytes, error)
        return []


def _taken_back(connected: Connected | None, numbers: list[str], kind: str) -> int:
    if connected is None:
        return INTERNAL
    found = [connected.take_back(number, kind=kind) for number in numbers]
    return OK if all(found) else INTERNAL
