"""The file in which a master shows its clients on the same host which objects there are.

A header page, then the table of ``core.marks``. Three words of the header change: when the master
last said that it is alive, which file continues this one, and how much is on disks only.
"""

from __future__ import annotations

import struct
from typing import NamedTuple

from moonpool.core.marks import SEED_BYTES_MAX
from moonpool.errors import ProtocolError

MAGIC = b"MOONMARK"
FORMAT = 1
HEADER_BYTES = 4096
SLOT_BYTES = 16
SLOTS_MAX = 1 << 36
BEAT_AT = 128
"""Monotonic nanoseconds, u64."""
NEXT_AT = 136
"""0, the number of the file that continues this one, or CLOSED."""
DISKS_AT = 144
"""How many objects are on disks only, u64; it may be a tenth of a second old."""
CLOSED = (1 << 64) - 1
STALE_S = 1.0
"""A table whose master has not been heard of for longer is not believed."""

_HEADER = struct.Struct(f"<8sIIQQQQ{SEED_BYTES_MAX}s")


class Header(NamedTuple):
    """What does not change about a file."""

    epoch: int
    cookie: int
    number: int
    slots: int
    seed: bytes

    @property
    def file_bytes(self) -> int:
        """The length of the file."""
        return HEADER_BYTES + SLOT_BYTES * self.slots


def file_name(cookie: int, number: int) -> str:
    """Return the name of a master's file; numbers count from 1."""
    return f"marks-{cookie:016x}.{number}"


def pack_header(header: Header) -> bytes:
    """Return the start of a file."""
    facts = header.epoch, header.cookie, header.number, header.slots
    return _HEADER.pack(MAGIC, FORMAT, len(header.seed), *facts, header.seed)


def parse_header(raw: bytes, file_bytes: int) -> Header:
    """Return what a file's start says, or raise ProtocolError for one that is no such file."""
    if len(raw) < _HEADER.size:
        raise ProtocolError(f"a table of {len(raw)} bytes")
    magic, version, seed_bytes, epoch, cookie, number, slots, seed = _HEADER.unpack_from(raw)
    if magic != MAGIC or version != FORMAT or seed_bytes > SEED_BYTES_MAX:
        raise ProtocolError("no table of marks, or of another format")
    header = Header(epoch, cookie, number, slots, seed[:seed_bytes])
    if not 0 < slots <= SLOTS_MAX or slots & (slots - 1) or header.file_bytes != file_bytes:
        raise ProtocolError(f"a table of {slots} slots in {file_bytes} bytes")
    return header
