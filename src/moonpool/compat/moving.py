"""Objects to and from memory that is named by address; what cannot be moved gets a code of its own.

Nothing outside registered memory is touched, whatever the caller says.
"""

from __future__ import annotations

import ctypes
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
import numpy.typing as npt

from moonpool.compat.base import wishes_of
from moonpool.compat.casting import Ragged
from moonpool.compat.codes import INVALID, NOT_FOUND, OK, TRANSFER, code_of, put_code
from moonpool.compat.connected import Connected
from moonpool.compat.replicate import ReplicateConfig, refused
from moonpool.errors import AlreadyExistsError, MoonpoolError
from moonpool.transport.base import I64, U64, Pieces

Mask = npt.NDArray[np.bool_]
_COUNT = np.int64


def flat(addresses: Sequence[int] | U64, sizes: Sequence[int] | U64) -> Pieces:
    """Return the pieces of objects that lie in one place each."""
    starts = np.arange(len(sizes) + 1, dtype=_COUNT)
    return Pieces(np.asarray(addresses, np.uint64), np.asarray(sizes, np.uint64), starts)


def together(addresses: Sequence[int], sizes: Sequence[int]) -> Pieces:
    """Return the pieces of one object that lies in several places."""
    found = flat(addresses, sizes)
    return Pieces(found.addresses, found.lengths, np.array([0, len(sizes)], _COUNT))


def aligned(pointers: Ragged, sizes: Ragged) -> tuple[Pieces, Mask]:
    """Return the pieces of objects whose places and sizes come in two lists of lists, and which
    objects have as many of the one as of the other; the others have no pieces."""
    even = pointers.counts == sizes.counts
    if even.all():
        return Pieces(pointers.flat, sizes.flat, pointers.starts), even
    left = np.repeat(even, pointers.counts)
    right = np.repeat(even, sizes.counts)
    starts = np.zeros(len(even) + 1, _COUNT)
    np.cumsum(np.where(even, pointers.counts, 0), out=starts[1:])
    return Pieces(pointers.flat[left], sizes.flat[right], starts), even


def chosen(pieces: Pieces, which: I64) -> Pieces:
    """Return the pieces of some of the objects."""
    counts = np.diff(pieces.starts)
    mask = np.zeros(len(counts), bool)
    mask[which] = True
    inside = np.repeat(mask, counts)
    starts = np.zeros(len(which) + 1, _COUNT)
    np.cumsum(counts[which], out=starts[1:])
    return Pieces(pieces.addresses[inside], pieces.lengths[inside], starts)


def usable(connected: Connected, pieces: Pieces) -> Mask:
    """Tell for each object whether all of its pieces lie in registered memory."""
    bad = ~connected.store.looking.registered(pieces.addresses, pieces.lengths) & (
        pieces.lengths > 0
    )
    if not bad.any():
        return np.ones(len(pieces.starts) - 1, bool)
    before = np.zeros(len(bad) + 1, _COUNT)
    np.cumsum(bad, out=before[1:])
    good: Mask = before[pieces.starts[1:]] == before[pieces.starts[:-1]]
    return good


def put_pieces(
    connected: Connected, keys: Sequence[str], pieces: Pieces, config: ReplicateConfig
) -> list[int]:
    """Put objects; return 0 or a code for each."""
    code = refused(config, len(keys), same_node=True)
    if code or not keys:
        return [code] * len(keys)
    sizes = pieces.sizes()
    good = usable(connected, pieces) & (sizes > 0)
    if "" in keys:
        good &= np.array([bool(key) for key in keys])

    def put(names: list[bytes], some: Pieces) -> I64:
        wishes = wishes_of(connected, config, keys)
        codes = connected.store.put_pieces(names, some, wishes=wishes)
        return np.array([put_code(code) for code in codes.tolist()], _COUNT)

    return _some(connected, keys, pieces, good, put)


def get_pieces(
    connected: Connected, keys: Sequence[str], pieces: Pieces, *, exact: bool = False
) -> list[int]:
    """Load objects into memory that is as large or larger; return a size or a code for each.
    ``exact``: larger memory is -800."""
    if not keys:
        return []
    good = usable(connected, pieces)
    missing = np.array([not key for key in keys])

    def get(names: list[bytes], some: Pieces) -> I64:
        sizes = np.zeros(len(names), np.uint64)
        lease = connected.leases.number()
        codes = connected.store.get_pieces(names, some, lease=lease, exact=exact, sizes=sizes)
        small = (codes == INVALID) & (sizes < some.sizes())
        codes[small] = TRANSFER
        return np.where(codes == OK, sizes.astype(_COUNT), codes)

    codes = np.array(_some(connected, keys, pieces, good & ~missing, get), _COUNT)
    codes[missing] = NOT_FOUND
    return [int(code) for code in codes.tolist()]


def _some(
    connected: Connected,
    keys: Sequence[str],
    pieces: Pieces,
    good: Mask,
    move: Callable[[list[bytes], Pieces], I64],
) -> list[int]:
    """Move the good objects; the others get -600."""
    codes = np.full(len(keys), INVALID, _COUNT)
    which = np.flatnonzero(good)
    if not which.size:
        return [INVALID] * len(keys)
    whole = which.size == len(keys)
    names = connected.keys.keys(keys if whole else [keys[i] for i in which.tolist()])
    try:
        codes[which] = move(names, pieces if whole else chosen(pieces, which))
    except (MoonpoolError, OSError) as error:
        codes[which] = code_of(error)
    return [int(code) for code in codes.tolist()]


def view_at(address: int, nbytes: int) -> memoryview:
    """Return registered memory as a view."""
    array: Any = (ctypes.c_ubyte * nbytes).from_address(address)
    return memoryview(array).cast("B")


def is_usable(connected: Connected, address: int, nbytes: int) -> bool:
    """Tell whether a range lies in registered memory."""
    return connected.store.looking.is_registered(address, nbytes)


def put_one(
    connected: Connected, key: str, address: int, nbytes: int, config: ReplicateConfig
) -> int:
    """Put one object; return 0 or a code."""
    code = refused(config, 1)
    if code:
        return code
    if not key or not is_usable(connected, address, nbytes):
        return INVALID
    try:
        wishes, view = wishes_of(connected, config, [key]), view_at(address, nbytes)
        connected.store.put(connected.keys.key(key), view, wishes=wishes)
    except AlreadyExistsError:
        return OK
    except (MoonpoolError, OSError) as error:
        return put_code(code_of(error))
    return OK


def get_one(connected: Connected, key: str, address: int, nbytes: int) -> int:
    """Load one object; return its size or a code."""
    if not key:
        return NOT_FOUND
    name, lease = connected.keys.key(key), connected.leases.number()
    try:
        if not nbytes or not is_usable(connected, address, nbytes):
            return INVALID if connected.store.exists(name) else NOT_FOUND
        return connected.store.get_into(name, view_at(address, nbytes), lease=lease)
    except (MoonpoolError, OSError) as error:
        return code_of(error)
