"""A few small objects, one at a time: what segment.py and copy.py do, in plain integers.

A NumPy call costs about a microsecond whatever its length, which is too much for a lone 4 KiB
object. The contract tests run both ways with the same cases.
"""

from __future__ import annotations

import struct

from moonpool.errors import InvalidArgumentError, InvalidWriteError, NotFoundError
from moonpool.transport import layout, native
from moonpool.transport.base import Pieces, Places
from moonpool.transport.layout import ENTRY_BYTES, KEY_INLINE_BYTES, PAGE_BYTES
from moonpool.transport.segment import Segment, Views

OBJECTS_MAX = 8
BYTES_MAX = 1024 * 1024
"""Batches up to this are moved here."""

_BAD = InvalidArgumentError.code
_STALE = InvalidWriteError.code
_GONE = NotFoundError.code
_ENTRY = struct.Struct(f"<IHHQQQQQ{layout.PARENT_BYTES_MAX}s{KEY_INLINE_BYTES}sQ")
_CHECK_AT = ENTRY_BYTES - 8


def is_small(places: Places) -> bool:
    """Tell whether a batch is better moved here."""
    return len(places) <= OBJECTS_MAX and sum(places.sizes.tolist()) <= BYTES_MAX


def read(segment: Segment, places: Places, memory: Pieces) -> list[int]:
    """Copy objects into memory; return a code for each."""
    views = segment.views()
    codes = []
    rows = zip(
        places.offsets.tolist(), places.sizes.tolist(), places.generations.tolist(), strict=True
    )
    for i, (offset, size, generation) in enumerate(rows):
        pieces = _pieces(memory, i)
        if sum(n for _, n in pieces) != size or not _inside(segment, offset, size, generation):
            codes.append(_BAD)
        elif not _owned(views, offset, size, generation):
            codes.append(_GONE)
        else:
            at = segment.address + offset
            for address, length in pieces:
                native.memmove(address, at, length)
                at += length
            codes.append(0 if _owned(views, offset, size, generation) else _GONE)
    return codes


def write(
    segment: Segment, places: Places, memory: Pieces, keys: list[bytes], parents: list[bytes]
) -> tuple[list[int], list[int]]:
    """Write objects and commit their slots; return a code and a checksum for each."""
    codes, checksums = [], []
    for i, key in enumerate(keys):
        code, checksum = _write(
            segment, places, i, _pieces(memory, i), key, parents[i] if parents else b""
        )
        codes.append(code)
        checksums.append(checksum)
    return codes, checksums


def _write(
    segment: Segment,
    places: Places,
    i: int,
    pieces: list[tuple[int, int]],
    key: bytes,
    parent: bytes,
) -> tuple[int, int]:
    index, offset, size = int(places.indexes[i]), int(places.offsets[i]), int(places.sizes[i])
    room, generation = int(places.capacities[i]), int(places.generations[i])
    views = segment.views()
    if sum(n for _, n in pieces) != size or not _writable(
        segment, index, offset, size, room, generation, key
    ):
        return _BAD, 0
    first, last = _pages(offset, room)
    if max(views.owners[first:last]) > generation:
        return _STALE, 0
    inline = key if len(key) <= KEY_INLINE_BYTES else b""
    kept = parent if len(parent) <= layout.PARENT_BYTES_MAX else b""
    fields = [layout.WRITING, len(key), len(kept), generation, offset, size, room, 0]
    _store(views, index, _ENTRY.pack(*fields, kept, inline, 0))
    for page in range(first, last):
        views.owners[page] = generation
    at = segment.address + offset
    if not inline:
        start = segment.geometry.data_offset + offset + size
        views.memory[start : start + len(key)] = key
    for address, length in pieces:
        native.memmove(at, address, length)
        at += length
    checksum = native.xxh3(segment.address + offset, size)
    fields[0], fields[-1] = layout.COMMITTED, checksum
    if not _owned(views, offset, size, generation):
        return _STALE, 0
    _store(views, index, _ENTRY.pack(*fields, kept, inline, 0))
    return 0, checksum


def _store(views: Views, index: int, body: bytes) -> None:
    at = index * ENTRY_BYTES
    check = layout.hash_bytes(body)
    views.table[at : at + _CHECK_AT] = body
    views.table[at + _CHECK_AT : at + ENTRY_BYTES] = check.to_bytes(8, "little")


def _pieces(memory: Pieces, i: int) -> list[tuple[int, int]]:
    first, last = memory.starts[i : i + 2].tolist()
    return list(
        zip(memory.addresses[first:last].tolist(), memory.lengths[first:last].tolist(), strict=True)
    )


def _inside(segment: Segment, offset: int, size: int, generation: int) -> bool:
    end = segment.geometry.data_bytes
    return offset % PAGE_BYTES == 0 and offset < end and size <= end - offset and generation != 0


def _writable(
    segment: Segment, index: int, offset: int, size: int, room: int, generation: int, key: bytes
) -> bool:
    shape = segment.geometry
    return (
        _inside(segment, offset, size, generation)
        and 0 < room <= shape.data_bytes - offset
        and 0 < len(key) < 1 << 16
        and layout.needed_bytes(size, key) <= room
        and 0 <= index < shape.slots
    )


def _pages(offset: int, nbytes: int) -> tuple[int, int]:
    first = offset // PAGE_BYTES
    return first, first + max(1, -(-nbytes // PAGE_BYTES))


def _owned(views: Views, offset: int, size: int, generation: int) -> bool:
    first, last = _pages(offset, size)
    owners = views.owners[first:last].tolist()
    return owners.count(generation) == last - first
