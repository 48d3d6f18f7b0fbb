"""From objects to reads and writes that keep a disk busy: neighbours joined, large ones cut."""

from __future__ import annotations

import ctypes
import mmap
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import NamedTuple

from moonpool.ssd.records import BLOCK_BYTES, padded
from moonpool.ssd.volume import Buffer
from moonpool.transport import native

IO_BYTES = 2 * 1024 * 1024
"""What one call moves at most; several are under way at once."""
_PIECES_MAX = 512


class Item(NamedTuple):
    """An object in memory, to be written; ``address`` is a whole block's."""

    key: bytes
    parent: bytes
    size: int
    checksum: int
    generation: int
    address: int


class Part(NamedTuple):
    """An object's memory beside its place: what is moved are whole blocks."""

    owner: int
    offset: int
    address: int
    size: int


@dataclass(slots=True)
class Span:
    """One call's worth: neighbouring bytes of an extent, and whose they are.

    pieces: the memory to read to or to write, (address, bytes), in order.
    """

    offset: int
    end: int
    pieces: list[tuple[int, int]] = field(default_factory=list)
    owners: list[int] = field(default_factory=list)

    @property
    def buffers(self) -> list[Buffer]:
        """Return the memory as buffers."""
        return [native.view(address, nbytes) for address, nbytes in self.pieces]

    def has_room(self, offset: int, nbytes: int) -> bool:
        """Tell whether these bytes may be added."""
        joined = offset == self.end and self.end + nbytes - self.offset <= IO_BYTES
        return joined and len(self.pieces) < _PIECES_MAX


class Tails:
    """The last, not full blocks of objects that are read: their memory may end before."""

    def __init__(self, count: int) -> None:
        self._memory = mmap.mmap(-1, max(count, 1) * BLOCK_BYTES)
        self._address = ctypes.addressof(ctypes.c_char.from_buffer(self._memory))

    def address(self, index: int) -> int:
        """Return where the block of an object is."""
        return self._address + index * BLOCK_BYTES

    def settle(self, part: Part) -> None:
        """Copy what belongs to an object to where it belongs."""
        rest = part.size % BLOCK_BYTES
        if rest:
            target = native.view(part.address + part.size - rest, rest)
            target[:] = native.view(self.address(part.owner), rest)


def spans_of(parts: Sequence[Part], tails: Tails | None = None) -> list[Span]:
    """Return the calls for parts of one extent. Without ``tails`` the memory has whole blocks."""
    spans: list[Span] = []
    for part in sorted(parts, key=lambda each: each.offset):
        whole = part.size // BLOCK_BYTES * BLOCK_BYTES if tails else padded(part.size)
        for at in range(0, whole, IO_BYTES):
            nbytes = min(IO_BYTES, whole - at)
            _add(spans, part, part.offset + at, part.address + at, nbytes)
        if tails is not None and whole < part.size:
            _add(spans, part, part.offset + whole, tails.address(part.owner), BLOCK_BYTES)
    return spans


def _add(spans: list[Span], part: Part, offset: int, address: int, nbytes: int) -> None:
    if not spans or not spans[-1].has_room(offset, nbytes):
        spans.append(Span(offset, offset))
    span = spans[-1]
    span.pieces.append((address, nbytes))
    span.end += nbytes
    if not span.owners or span.owners[-1] != part.owner:
        span.owners.append(part.owner)
