"""The segment file, format version 1: where its parts are and what they look like.

Little endian. In order: a header of one page; one u64 per page of the data area, the generation
of the object on it; the slot table; the data area. docs/protocol.md has the full description.
"""

from __future__ import annotations

import math
import os
import time
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

import numpy as np
import xxhash

from moonpool.errors import InvalidArgumentError

MAGIC: Final = b"MOONPOOL"
FORMAT_VERSION: Final = 1
PAGE_BYTES: Final = 4096
HEADER_BYTES: Final = PAGE_BYTES
ENTRY_BYTES: Final = 256
KEY_INLINE_BYTES: Final = 128
"""Longer keys follow their payload in the data area."""
PARENT_BYTES_MAX: Final = 64
"""Longer parents are not stored; the object is a root after a restart of the node."""
NAME_BYTES_MAX: Final = 255
SEGMENT_BYTES_MAX: Final = 1 << 42
SLOTS_MAX: Final = 1 << 24
BYTES_PER_SLOT: Final = 64 * 1024
"""By default the table has an entry for each so many bytes of data: 0.4 % of them."""
SLOTS_FEW: Final = 4096
"""Below this many, there is an entry for every page: small segments hold small objects too."""
LARGE_BYTES: Final = 64 * 1024 * 1024
"""Segments from here on have their data area on a 2 MiB boundary, as huge pages want it."""

CLOCK_SLACK_S: Final = 86_400
"""How far the clocks of a pool's hosts may differ."""

FREE, WRITING, COMMITTED = 0, 1, 2
FLOOR: Final = 0xFFFF << 32
"""The first word of a free entry that holds no object ever, but the segment's floor: the last one.
Its second word is a generation; what was granted up to that one must not be begun any more."""

HEADER: Final = np.dtype(
    [
        ("magic", "S8"),
        ("version", "<u4"),
        ("page_bytes", "<u4"),
        ("node_bytes", "<u2"),
        ("name_bytes", "<u2"),
        ("entry_bytes", "<u4"),
        ("node", "V256"),
        ("name", "V256"),
        ("epoch", "<u8"),
        ("total_bytes", "<u8"),
        ("owners_offset", "<u8"),
        ("table_offset", "<u8"),
        ("data_offset", "<u8"),
        ("data_bytes", "<u8"),
        ("slots", "<u8"),
        ("created_s", "<f8"),
    ]
)
ENTRY: Final = np.dtype(
    [
        ("state", "<u4"),
        ("key_bytes", "<u2"),
        ("parent_bytes", "<u2"),
        ("generation", "<u8"),
        ("offset", "<u8"),
        ("size", "<u8"),
        ("capacity", "<u8"),
        ("checksum", "<u8"),
        ("parent", f"S{PARENT_BYTES_MAX}"),
        ("key", f"S{KEY_INLINE_BYTES}"),
        ("key_check", "<u8"),
        ("check", "<u8"),
    ]
)


def _up(value: int, step: int) -> int:
    return -(-value // step) * step


@dataclass(frozen=True, slots=True)
class Geometry:
    """Sizes and offsets of a segment's parts, in bytes, from its data area and its table."""

    data_bytes: int
    slots: int

    def __post_init__(self) -> None:
        if not PAGE_BYTES <= self.data_bytes <= SEGMENT_BYTES_MAX or self.data_bytes % PAGE_BYTES:
            raise InvalidArgumentError(
                f"a data area of {self.data_bytes} bytes; multiples of {PAGE_BYTES} "
                f"from {PAGE_BYTES} to {SEGMENT_BYTES_MAX} are allowed"
            )
        if not 1 <= self.slots <= SLOTS_MAX:
            raise InvalidArgumentError(
                f"a table of {self.slots} slots; 1 to {SLOTS_MAX} are allowed"
            )

    @classmethod
    def holding(
        cls, data_bytes: int, slots: int | None = None, *, per_slot: int = BYTES_PER_SLOT
    ) -> Geometry:
        """Return the geometry for at least so many bytes of payload.

        slots: entries of the table; by default one for each ``per_slot`` bytes.
        """
        data = _up(max(data_bytes, PAGE_BYTES), PAGE_BYTES)
        few = min(data // PAGE_BYTES, SLOTS_FEW)
        return cls(data, slots or min(max(few, data // per_slot), SLOTS_MAX))

    @classmethod
    def within(
        cls, total_bytes: int, slots: int | None = None, *, per_slot: int = BYTES_PER_SLOT
    ) -> Geometry:
        """Return the largest geometry whose file is not larger than ``total_bytes``."""
        data = total_bytes // PAGE_BYTES * PAGE_BYTES
        for _ in range(8):
            found = cls.holding(data, slots, per_slot=per_slot)
            over = found.total_bytes - total_bytes
            if over <= 0:
                return found
            data -= _up(over, PAGE_BYTES)
        raise InvalidArgumentError(f"a segment of {total_bytes} bytes is too small")

    @property
    def pages(self) -> int:
        """Pages of the data area."""
        return self.data_bytes // PAGE_BYTES

    @property
    def owners_offset(self) -> int:
        """Where the array of page owners starts."""
        return HEADER_BYTES

    @property
    def table_offset(self) -> int:
        """Where the slot table starts."""
        return _up(HEADER_BYTES + 8 * self.pages, PAGE_BYTES)

    @property
    def data_offset(self) -> int:
        """Where the data area starts."""
        step = 2 * 1024 * 1024 if self.data_bytes >= LARGE_BYTES else PAGE_BYTES
        return _up(self.table_offset + ENTRY_BYTES * self.slots, step)

    @property
    def total_bytes(self) -> int:
        """Bytes of the file."""
        return self.data_offset + self.data_bytes


@dataclass(frozen=True, slots=True)
class Header:
    """What a segment says of itself. ``epoch`` is unique to this file's creation."""

    node: str
    name: str
    epoch: int
    created_s: float
    geometry: Geometry


def new_header(node: str, name: str, geometry: Geometry) -> Header:
    """Return the header of a segment that is made now."""
    for text in (node, name):
        if len(text.encode()) > NAME_BYTES_MAX:
            raise InvalidArgumentError(f"{text!r}: names have at most {NAME_BYTES_MAX} bytes")
    return Header(node, name, time.time_ns(), time.time(), geometry)


def pack_header(header: Header) -> bytes:
    """Return the first page of the file."""
    record = np.zeros(1, HEADER)
    node, name, shape = header.node.encode(), header.name.encode(), header.geometry
    values: dict[str, Any] = {
        "magic": MAGIC,
        "version": FORMAT_VERSION,
        "page_bytes": PAGE_BYTES,
        "node_bytes": len(node),
        "name_bytes": len(name),
        "entry_bytes": ENTRY_BYTES,
        "node": np.void(node.ljust(256, b"\0")),
        "name": np.void(name.ljust(256, b"\0")),
        "epoch": header.epoch,
        "total_bytes": shape.total_bytes,
        "owners_offset": shape.owners_offset,
        "table_offset": shape.table_offset,
        "data_offset": shape.data_offset,
        "data_bytes": shape.data_bytes,
        "slots": shape.slots,
        "created_s": header.created_s,
    }
    for field, value in values.items():
        record[field] = value
    body = record.tobytes().ljust(HEADER_BYTES - 8, b"\0")
    return body + xxhash.xxh3_64_intdigest(body).to_bytes(8, "little")


def parse_header(page: bytes, file_bytes: int) -> Header:
    """Return the header in a file's first page; raise InvalidArgumentError if it is none."""
    if len(page) < HEADER_BYTES or page[:8] != MAGIC:
        raise InvalidArgumentError("not a segment: no header")
    body = page[: HEADER_BYTES - 8]
    if xxhash.xxh3_64_intdigest(body) != int.from_bytes(
        page[HEADER_BYTES - 8 : HEADER_BYTES], "little"
    ):
        raise InvalidArgumentError("not a segment: the header's checksum is wrong")
    record = np.frombuffer(body, HEADER, count=1)[0]
    if record["version"] != FORMAT_VERSION:
        raise InvalidArgumentError(
            f"a segment of format {record['version']}; {FORMAT_VERSION} is known"
        )
    shape = Geometry(int(record["data_bytes"]), int(record["slots"]))
    created = float(record["created_s"])
    node = record["node"].tobytes()[: record["node_bytes"]]
    name = record["name"].tobytes()[: record["name_bytes"]]
    if not _same(record, shape) or file_bytes < shape.total_bytes or not math.isfinite(created):
        raise InvalidArgumentError("not a segment: its sizes do not fit together")
    return Header(
        node.decode(errors="replace"),
        name.decode(errors="replace"),
        int(record["epoch"]),
        created,
        shape,
    )


def _same(record: Any, shape: Geometry) -> bool:
    """Tell whether the offsets a header names are those of its geometry."""
    told = [int(record[f]) for f in ("page_bytes", "entry_bytes", "owners_offset", "table_offset")]
    told += [int(record["data_offset"]), int(record["total_bytes"])]
    return told == [
        PAGE_BYTES,
        ENTRY_BYTES,
        shape.owners_offset,
        shape.table_offset,
        shape.data_offset,
        shape.total_bytes,
    ]


def doubt_of(path: str | os.PathLike[str]) -> Path:
    """Return the file that is there while a segment taken over has not been compared with its
    checksums: whoever maps it compares them itself."""
    return Path(path).with_suffix(".doubt")


def generation_limit(now_s: float) -> int:
    """Return a generation that no master has reached at this time (seconds since 1970).

    Generations count up from the second in which their master started; a higher one was not
    granted by any, so it is damage or a lie.
    """
    return (int(now_s) + CLOCK_SLACK_S) << 32


def needed_bytes(size: int, key: bytes) -> int:
    """Return the capacity that an object needs: a long key is stored behind its payload."""
    return size + (len(key) if len(key) > KEY_INLINE_BYTES else 0)


def key_check(key: bytes) -> int:
    """Return what an entry says of its key: xxh3_64 of one that is stored behind the payload, 0 of
    others, which the entry's own checksum covers."""
    return hash_bytes(key) if len(key) > KEY_INLINE_BYTES else 0


hash_bytes = xxhash.xxh3_64_intdigest
"""xxh3_64 of a bytes-like object."""


def entry_checks(entries: np.ndarray[Any, Any]) -> np.ndarray[Any, np.dtype[np.uint64]]:
    """Return the checksum over all other fields of each entry, shape (n,)."""
    raw = np.ascontiguousarray(entries).view(np.uint8).data
    hash_of, end = hash_bytes, ENTRY_BYTES - 8
    values = [hash_of(raw[at : at + end]) for at in range(0, len(raw), ENTRY_BYTES)]
    return np.array(values, np.uint64)
