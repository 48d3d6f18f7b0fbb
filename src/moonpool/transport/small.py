"""A few small objects, one at a time: what segment.py and copy.py do, in plain integers.

A NumPy call costs about a microsecond whatever its length, which is too much for a lone 4 KiB
object. The contract tests run both ways with the same cases.
"""

from __future__ import annotations

import struct
from array import array
from collections.abc import Iterator
from typing import TYPE_CHECKING, NamedTuple

import xxhash

from moonpool.errors import InvalidArgumentError, InvalidWriteError, NotFoundError
from moonpool.transport import layout, native
from moonpool.transport.base import U64, Pieces, Places
from moonpool.transport.layout import ENTRY_BYTES, KEY_INLINE_BYTES, PAGE_BYTES

if TYPE_CHECKING:
    from moonpool.transport.segment import Segment, Views

OBJECTS_MAX = 8
BUFFER_BYTES_MAX = 64 * 1024
"""Objects up to this are worth no array and no release of the GIL."""
BYTES_MAX = 1024 * 1024
"""Batches up to this are moved here."""

_BAD = InvalidArgumentError.code
_STALE = InvalidWriteError.code
_GONE = NotFoundError.code
_ENTRY = struct.Struct(f"<IHHQQQQQ{layout.PARENT_BYTES_MAX}s{KEY_INLINE_BYTES}sQ")
_HEAD = struct.Struct("<IHHQQQQQ")
_CHECK_AT = ENTRY_BYTES - 8


class Place(NamedTuple):
    """One of the Places."""

    slot: int
    offset: int
    size: int
    room: int
    generation: int


def is_small(places: Places) -> bool:
    """Tell whether a batch is better handled here."""
    return len(places) <= OBJECTS_MAX and sum(places.sizes.tolist()) <= BYTES_MAX


def is_small_write(places: Places) -> bool:
    """Tell whether a batch to write is better handled here."""
    return is_small(places) and sum(places.capacities.tolist()) <= 2 * BYTES_MAX


def rows(places: Places) -> Iterator[Place]:
    """Yield the places one by one."""
    return map(
        Place,
        places.indexes.tolist(),
        places.offsets.tolist(),
        places.sizes.tolist(),
        places.capacities.tolist(),
        places.generations.tolist(),
    )


# --- whole transfers --------------------------------------------------------------------------


def read(segment: Segment, places: Places, memory: Pieces) -> list[int]:
    """Copy objects into memory; return a code for each."""
    views = segment.views()
    codes = []
    for i, place in enumerate(rows(places)):
        pieces = _pieces(memory, i)
        if sum(n for _, n in pieces) != place.size or not _inside(segment, place):
            codes.append(_BAD)
        elif not _owned(views, place):
            codes.append(_GONE)
        else:
            at = segment.address + place.offset
            for address, length in pieces:
                native.memmove(address, at, length)
                at += length
            codes.append(0 if _owned(segment.views(), place) else _GONE)
    return codes


def write(
    segment: Segment, places: Places, memory: Pieces, keys: list[bytes], parents: list[bytes]
) -> tuple[list[int], list[int]]:
    """Write objects and commit their slots; return a code and a checksum for each."""
    codes, checksums = [], []
    keep = segment.views()  # mapped, though it be closed meanwhile
    for i, place in enumerate(rows(places)):
        pieces, checksum = _pieces(memory, i), 0
        code = _BAD
        if sum(n for _, n in pieces) == place.size:
            code = _begin(segment, place, keys[i], parents[i] if parents else b"")
        if code == 0:
            at = segment.address + place.offset
            for address, length in pieces:
                native.memmove(at, address, length)
                at += length
            checksum = native.xxh3(segment.address + place.offset, place.size)
            code = _seal(segment, place, checksum)
        codes.append(code)
        checksums.append(checksum)
    del keep
    return codes, checksums


def write_buffer(
    segment: Segment, place: Place, value: memoryview, key: bytes, parent: bytes
) -> tuple[int, int]:
    """Write one object from a view of bytes and commit its slot; return its code and checksum.

    Holds the GIL: for objects of up to BUFFER_BYTES_MAX.
    """
    if value.nbytes != place.size:
        return _BAD, 0
    code = _begin(segment, place, key, parent)
    if code:
        return code, 0
    at = segment.data_offset + place.offset
    target = segment.views().memory[at : at + place.size]
    target[:] = value
    checksum = xxhash.xxh3_64_intdigest(target)
    return _seal(segment, place, checksum), checksum


def read_buffer(segment: Segment, place: Place, target: memoryview) -> int:
    """Copy one object into a view of as many bytes; return its code. Holds the GIL."""
    if target.nbytes != place.size or not _inside(segment, place):
        return _BAD
    views = segment.views()
    if not _owned(views, place):
        return _GONE
    at = segment.data_offset + place.offset
    target[:] = views.memory[at : at + place.size]
    return 0 if _owned(segment.views(), place) else _GONE


# --- steps of transfers, as Segment has them --------------------------------------------------


def intact(segment: Segment, places: Places) -> list[bool]:
    """Tell whose pages all carry the object's generation."""
    views = segment.views()
    return [_inside(segment, place) and _owned(views, place) for place in rows(places)]


def begin(segment: Segment, places: Places, keys: list[bytes], parents: list[bytes]) -> list[int]:
    """Take the slots for writing; return a code for each."""
    fathers = parents or [b""] * len(keys)
    return [
        _begin(segment, place, key, parent)
        for place, key, parent in zip(rows(places), keys, fathers, strict=True)
    ]


def seal(segment: Segment, places: Places, checksums: U64) -> list[int]:
    """Mark written slots as committed; return a code for each."""
    return [
        _seal(segment, place, checksum)
        for place, checksum in zip(rows(places), checksums.tolist(), strict=True)
    ]


def _begin(segment: Segment, place: Place, key: bytes, parent: bytes) -> int:
    if not _writable(segment, place, key):
        return _BAD
    views = segment.views()
    index, offset, size, room, generation = place
    first, last = _pages(offset, room)
    if max(views.owners[first:last].tolist()) >= generation or generation <= views.allowed():
        return _STALE
    inline = key if len(key) <= KEY_INLINE_BYTES else b""
    kept = parent if len(parent) <= layout.PARENT_BYTES_MAX else b""
    where = generation, offset, size, room, 0
    own = layout.key_check(key)
    entry = _ENTRY.pack(layout.WRITING, len(key), len(kept), *where, kept, inline, own)
    _store(views, index, entry)
    if generation <= views.allowed():  # raised meanwhile: see Segment.raise_floor
        return _STALE
    views.owners[first:last] = memoryview(array("Q", [generation]) * (last - first))
    if not inline:
        at = segment.geometry.data_offset + offset + size
        views.memory[at : at + len(key)] = key
    return 0


def _seal(segment: Segment, place: Place, checksum: int) -> int:
    views = segment.views()
    if not 0 <= place.slot < segment.geometry.slots or not _inside(segment, place):
        return _STALE
    at = place.slot * ENTRY_BYTES
    entry = bytearray(views.table[at : at + _CHECK_AT])
    state, key, parent, generation, *where, _old = _HEAD.unpack_from(entry)
    if state == layout.FREE or generation != place.generation or not _owned(views, place):
        return _STALE
    _HEAD.pack_into(entry, 0, layout.COMMITTED, key, parent, generation, *where, checksum)
    _store(views, place.slot, bytes(entry))
    return 0


def _store(views: Views, index: int, entry: bytes) -> None:
    # The old check is wrong for any mix of old and new fields, so a torn store is no commit.
    at = index * ENTRY_BYTES
    check = layout.hash_bytes(entry)
    views.table[at : at + _CHECK_AT] = entry
    views.table[at + _CHECK_AT : at + ENTRY_BYTES] = check.to_bytes(8, "little")


def _pieces(memory: Pieces, i: int) -> list[tuple[int, int]]:
    first, last = memory.starts[i : i + 2].tolist()
    return list(
        zip(memory.addresses[first:last].tolist(), memory.lengths[first:last].tolist(), strict=True)
    )


def _inside(segment: Segment, place: Place) -> bool:
    end = segment.geometry.data_bytes
    return (
        place.offset % PAGE_BYTES == 0
        and place.offset < end
        and place.size <= end - place.offset
        and place.generation != 0
    )


def _writable(segment: Segment, place: Place, key: bytes) -> bool:
    shape = segment.geometry
    return (
        _inside(segment, place)
        and 0 < place.room <= shape.data_bytes - place.offset
        and 0 < len(key) < 1 << 16
        and layout.needed_bytes(place.size, key) <= place.room
        and 0 <= place.slot < shape.slots
    )


def _pages(offset: int, nbytes: int) -> tuple[int, int]:
    first = offset // PAGE_BYTES
    return first, first + max(1, -(-nbytes // PAGE_BYTES))


def _owned(views: Views, place: Place) -> bool:
    first, last = _pages(place.offset, place.size)
    return views.owners[first:last].tolist().count(place.generation) == last - first
