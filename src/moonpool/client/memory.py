"""This process's memory: buffers, their addresses, and which ranges zero-copy calls may touch."""

from __future__ import annotations

import threading
from bisect import bisect_right
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any, NamedTuple, TypeVar, cast

import numpy as np
import numpy.typing as npt

from moonpool.errors import (
    BufferAlreadyRegisteredError,
    BufferNotRegisteredError,
    BufferTooSmallError,
    InvalidArgumentError,
)
from moonpool.transport.base import I64, U64, Pieces

if TYPE_CHECKING:
    from typing_extensions import Buffer as _Buffer

    # NumPy's arrays are buffers, but say so only from Python 3.12 on.
    Buffer = _Buffer | npt.NDArray[Any]

ADDRESS_MAX = 2**64 - 1
_ZERO = np.zeros(1, np.uint64)


class Span(NamedTuple):
    """A contiguous range of memory; ``owner`` keeps it alive."""

    address: int
    nbytes: int
    owner: Any


def span_of(buffer: Buffer, *, writable: bool = False) -> Span:
    """Return where a buffer's bytes are.

    Raises InvalidArgumentError for what is no contiguous buffer, or is read-only although
    ``writable`` memory is needed.
    """
    try:
        if isinstance(buffer, np.ndarray) and buffer.dtype.hasobject:
            raise TypeError("it holds Python objects")
        array = np.frombuffer(cast("bytes", buffer), np.uint8)
    except (TypeError, ValueError, BufferError) as error:
        return _empty_span(buffer, error, writable)
    if writable and not array.flags.writeable:
        raise InvalidArgumentError("the buffer is read-only")
    return Span(array.__array_interface__["data"][0], array.size, array)


def _empty_span(buffer: Buffer, error: Exception, writable: bool) -> Span:
    """Return the span of an empty buffer, of which NumPy makes no array."""
    try:
        view = memoryview(cast("bytes", buffer))
    except TypeError:
        kind = type(buffer).__name__
        raise InvalidArgumentError(f"a {kind} has no buffer of bytes") from None
    if view.nbytes or "O" in view.format:
        raise InvalidArgumentError(f"the buffer cannot be used: {error}") from None
    if writable and view.readonly:
        raise InvalidArgumentError("the buffer is read-only")
    return Span(0, 0, view)


def view_of(buffer: Buffer, *, writable: bool = False) -> memoryview:
    """Return a buffer's bytes as a flat view; raise as ``span_of`` does."""
    try:
        view = memoryview(cast("bytes", buffer))
        if view.format != "B" or view.ndim != 1:
            if view.format == "O":
                raise TypeError("it holds Python objects")
            view = view.cast("B") if view.nbytes else memoryview(bytearray())
    except (TypeError, ValueError, NotImplementedError):
        return memoryview(span_of(buffer, writable=writable).owner)
    if not view.contiguous:
        raise InvalidArgumentError("the buffer is not contiguous")
    if writable and view.readonly:
        raise InvalidArgumentError("the buffer is read-only")
    return view


def is_writable(buffer: Buffer) -> bool:
    """Tell whether a buffer's bytes may be changed."""
    return not memoryview(cast("bytes", buffer)).readonly


A = TypeVar("A")


def taken(make: Callable[[int], A], nbytes: int) -> A:
    """Return memory for an object that is read; BufferTooSmallError if there is not so much."""
    try:
        return make(nbytes)
    except MemoryError:
        raise BufferTooSmallError(f"no memory for an object of {nbytes} bytes") from None


def whole(spans: Sequence[Span]) -> Pieces:
    """Return pieces of which each object is one span."""
    addresses = np.array([span.address for span in spans], np.uint64)
    lengths = np.array([span.nbytes for span in spans], np.uint64)
    return Pieces(addresses, lengths, np.arange(len(spans) + 1, dtype=np.int64))


def one_object(value: memoryview | Pieces) -> Pieces:
    """Return the pieces of one object, which a flat view is in one."""
    return value if isinstance(value, Pieces) else whole((span_of(value),))


def parts(spans: Sequence[Span]) -> Pieces:
    """Return pieces of one object that consists of all spans, in order."""
    together = whole(spans)
    return Pieces(together.addresses, together.lengths, np.array([0, len(spans)], np.int64))


def checked(pieces: Pieces) -> Pieces:
    """Return the pieces as contiguous arrays of the right types; InvalidArgumentError if their
    numbers cannot be right whatever memory there is."""
    try:
        addresses = np.ascontiguousarray(pieces.addresses, np.uint64)
        lengths = np.ascontiguousarray(pieces.lengths, np.uint64)
        starts = np.ascontiguousarray(pieces.starts, np.int64)
    except (TypeError, ValueError, OverflowError) as error:
        raise InvalidArgumentError(f"pieces are arrays of whole numbers: {error}") from None
    if addresses.ndim != 1 or addresses.shape != lengths.shape or starts.ndim != 1:
        raise InvalidArgumentError("pieces: addresses and lengths are (p,), starts is (n + 1,)")
    if not starts.size or starts[0] < 0 or starts[-1] > addresses.size:
        raise InvalidArgumentError(f"pieces: starts must lie between 0 and {addresses.size}")
    if (starts[1:] < starts[:-1]).any():
        raise InvalidArgumentError("pieces: starts must not fall")
    return Pieces(addresses, lengths, starts)


def trimmed(pieces: Pieces, sizes: U64) -> Pieces:
    """Return the first ``sizes[i]`` bytes of each object's pieces; they must have that many."""
    have = pieces.sizes()
    if (have == sizes).all():
        return pieces
    counts = np.diff(pieces.starts)
    before = np.zeros(len(pieces.lengths) + 1, np.uint64)
    np.cumsum(pieces.lengths, out=before[1:])
    inner = slice(pieces.starts[0], pieces.starts[-1])
    # Where in its object each piece starts, and so how much of it is wanted.
    offset = before[:-1][inner] - np.repeat(before[pieces.starts[:-1]], counts)
    limit = np.repeat(sizes, counts)
    left = np.where(limit > offset, limit - offset, np.uint64(0))
    lengths = pieces.lengths.copy()
    lengths[inner] = np.minimum(pieces.lengths[inner], left)
    return Pieces(pieces.addresses, lengths, pieces.starts)


class _Ranges(NamedTuple):
    """What is registered, sorted by address; never changed, only replaced. Shape (r,) each."""

    starts: U64
    nbytes: U64
    writable: npt.NDArray[np.bool_]
    owners: tuple[Any, ...]


_NOTHING = _Ranges(np.empty(0, np.uint64), np.empty(0, np.uint64), np.empty(0, bool), ())


class Registry:
    """Ranges of memory that zero-copy calls may use."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._ranges = _NOTHING
        self._list: tuple[_Ranges, list[int], list[int]] = (_NOTHING, [], [])

    def __len__(self) -> int:
        return len(self._ranges.owners)

    def add(self, address: int, nbytes: int, *, writable: bool = True, owner: Any = None) -> None:
        """Register a range; ``owner`` is kept alive until it is removed.

        Raises InvalidArgumentError for an impossible range and BufferAlreadyRegisteredError for
        one that overlaps a registered one; nothing is changed then.
        """
        if not (address > 0 and nbytes > 0 and address + nbytes <= ADDRESS_MAX):
            raise InvalidArgumentError(f"no memory can be at {address:#x}, {nbytes} bytes")
        with self._lock:
            old = self._ranges
            at = int(np.searchsorted(old.starts, np.uint64(address), "right"))
            after = at < len(old.starts) and int(old.starts[at]) < address + nbytes
            before = at > 0 and int(old.starts[at - 1]) + int(old.nbytes[at - 1]) > address
            if before or after:
                raise BufferAlreadyRegisteredError(
                    f"{nbytes} bytes at {address:#x} overlap a buffer that is registered"
                )
            self._ranges = _Ranges(
                np.insert(old.starts, at, np.uint64(address)),
                np.insert(old.nbytes, at, np.uint64(nbytes)),
                np.insert(old.writable, at, writable),
                (*old.owners[:at], owner, *old.owners[at:]),
            )

    def remove(self, address: int) -> None:
        """Take a range back by its first address; BufferNotRegisteredError if it is none."""
        with self._lock:
            old = self._ranges
            starts = old.starts.tolist()
            if address not in starts:
                raise BufferNotRegisteredError(f"no registered buffer starts at {address:#x}")
            found = starts.index(address)
            self._ranges = _Ranges(
                np.delete(old.starts, found),
                np.delete(old.nbytes, found),
                np.delete(old.writable, found),
                (*old.owners[:found], *old.owners[found + 1 :]),
            )

    def covers(self, address: int, nbytes: int) -> bool:
        """Tell whether one range of memory lies in a registered one."""
        if self._list[0] is not self._ranges:
            ranges = self._ranges
            self._list = ranges, ranges.starts.tolist(), ranges.nbytes.tolist()
        _, starts, sizes = self._list
        at = bisect_right(starts, address) - 1
        return at >= 0 and address - starts[at] + nbytes <= sizes[at]

    def inside(self, addresses: U64, lengths: U64) -> npt.NDArray[np.bool_]:
        """Tell for each piece of memory whether it lies in a registered range."""
        return _place_in(self._ranges, addresses, lengths)[1]

    def hold(self, pieces: Pieces, *, writable: bool) -> object:
        """Check that all pieces lie in registered (and writable) memory, and return what keeps
        buffers alive for as long as it is referenced.

        Raises BufferNotRegisteredError, or InvalidArgumentError for read-only memory.
        """
        ranges = self._ranges
        addresses, lengths = pieces.addresses, pieces.lengths
        if not lengths.all():
            addresses, lengths = addresses[lengths != 0], lengths[lengths != 0]
        if not len(addresses):
            return ranges
        at, inside = _place_in(ranges, addresses, lengths)
        if not inside.all():
            wrong = int(np.argmin(inside))
            raise BufferNotRegisteredError(
                f"{int(lengths[wrong])} bytes at {int(addresses[wrong]):#x} are not inside a "
                "registered buffer"
            )
        if writable and not ranges.writable[at].all():
            raise InvalidArgumentError("a registered buffer is read-only")
        return ranges


def _place_in(ranges: _Ranges, addresses: U64, lengths: U64) -> tuple[I64, npt.NDArray[np.bool_]]:
    """Return in which range each piece of memory begins, and whether all of it lies there."""
    at = np.searchsorted(ranges.starts, addresses, "right") - 1
    inside = at >= 0
    if inside.any():
        room = ranges.nbytes[at]
        inside &= lengths <= room - np.minimum(addresses - ranges.starts[at], room)
    return at, inside


def codes_of(count: int, code: int) -> I64:
    """Return ``count`` times the same code."""
    return np.full(count, code, np.int64)
