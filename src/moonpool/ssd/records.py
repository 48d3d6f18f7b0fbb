"""Index files: for each extent a log of what was put into it and what was taken out again.

A record is a header, a key and a parent, and xxh3_64 of all that. A log is read up to the first
record that is not whole, so that a torn write is never taken for one. Data are durable before the
record that names them is written. docs/ssd.md has the full description.
"""

from __future__ import annotations

import struct
from collections.abc import Iterator
from typing import Final

import msgspec
import xxhash

from moonpool.core.checks import SIZE_MAX, U64_MAX, is_packed
from moonpool.core.keys import KEY_BYTES_MAX, NAMESPACE_BYTES_MAX

FORMAT_VERSION: Final = 1
BLOCK_BYTES: Final = 4096
"""Payloads start at multiples of it: what O_DIRECT wants of any disk."""
HEAD, OBJECT, DROP = 1, 2, 3

_MAGIC: Final = b"MPX1"
_FIELDS: Final = struct.Struct("<4sHHHHQQQQQ")
_CHECK_BYTES: Final = 8
_TEXT_MAX: Final = 1 + NAMESPACE_BYTES_MAX + KEY_BYTES_MAX

hash_bytes = xxhash.xxh3_64_intdigest


class Record(msgspec.Struct, gc=False):
    """An object on the disk. ``used`` is the catalog's stamp of its last use."""

    key: bytes
    parent: bytes
    size: int
    checksum: int
    generation: int
    extent: int
    offset: int
    used: int = 0


def padded(size: int) -> int:
    """Return the bytes that a payload takes on the disk."""
    return -(-size // BLOCK_BYTES) * BLOCK_BYTES


def pack_head(node: str, extent: int, extent_bytes: int) -> bytes:
    """Return the first record of an index: whose extent it is."""
    return _pack(HEAD, node.encode()[:_TEXT_MAX], b"", extent, FORMAT_VERSION, extent_bytes, 0, 0)


def pack_object(record: Record) -> bytes:
    """Return the record that makes an object count."""
    where = record.extent, record.offset, record.size, record.checksum, record.generation
    return _pack(OBJECT, record.key, record.parent, *where)


def pack_drop(record: Record) -> bytes:
    """Return the record that takes an object out."""
    return _pack(DROP, record.key, b"", record.extent, record.offset, 0, 0, record.generation)


def _pack(kind: int, key: bytes, parent: bytes, *numbers: int) -> bytes:
    body = _FIELDS.pack(_MAGIC, kind, len(key), len(parent), 0, *numbers) + key + parent
    return body + hash_bytes(body).to_bytes(_CHECK_BYTES, "little")


class Log(msgspec.Struct, gc=False):
    """What an index tells: the objects that count, by key, and how many of its bytes are whole."""

    objects: dict[bytes, Record]
    extent_bytes: int
    whole_bytes: int


def read_log(raw: bytes, node: str, extent: int) -> Log | None:
    """Return what an index file tells; None if it is none of this extent of this node."""
    found: Log | None = None
    for kind, record, end in _records(raw):
        if record.extent != extent or (kind == HEAD) is (found is not None):
            break
        if found is None:
            if record.key != node.encode()[:_TEXT_MAX] or record.offset != FORMAT_VERSION:
                return None
            found = Log({}, record.size, end)
            continue
        if kind == OBJECT:
            if not _is_sane(record, found.extent_bytes):
                break
            found.objects[record.key] = record
        else:
            known = found.objects.get(record.key)
            if known is not None and known.generation == record.generation:
                del found.objects[record.key]
        found.whole_bytes = end
    return found


def _records(raw: bytes) -> Iterator[tuple[int, Record, int]]:
    """Yield (kind, record, end) up to the first that is not whole."""
    at = 0
    while at + _FIELDS.size <= len(raw):
        magic, kind, keys, parents, _, *numbers = _FIELDS.unpack_from(raw, at)
        body = at + _FIELDS.size + keys + parents
        end = body + _CHECK_BYTES
        if magic != _MAGIC or kind not in (HEAD, OBJECT, DROP) or end > len(raw):
            return
        if hash_bytes(raw[at:body]) != int.from_bytes(raw[body:end], "little"):
            return
        start = at + _FIELDS.size
        key, parent = raw[start : start + keys], raw[start + keys : body]
        extent, offset, size, checksum, generation = numbers
        yield kind, Record(key, parent, size, checksum, generation, extent, offset), end
        at = end


def _is_sane(record: Record, extent_bytes: int) -> bool:
    return (
        is_packed(record.key)
        and (not record.parent or is_packed(record.parent))
        and 0 < record.size <= SIZE_MAX
        and 0 <= record.checksum <= U64_MAX
        and record.generation > 0
        and record.offset % BLOCK_BYTES == 0
        and record.offset + padded(record.size) <= extent_bytes
    )
