"""Which objects of the pool cover which blocks of a prefix. Pure functions, no state.

An object covers ``stride`` blocks and is named by the digest of its last block: block hashes are
chained, so that digest names the whole prefix. A *tail* object starts at the last object boundary
and ends at any later block. All positions are block counts from the start of the prefix.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence

import numpy as np
import numpy.typing as npt

from moonpool.core.keys import DIGEST_BYTES, Key, pack

I32 = npt.NDArray[np.int32]

CLAIMS_MAX = 64
"""Objects of a request that an engine says it computes, at most."""
NO_PARENT = bytes(DIGEST_BYTES)


def digest_of(block_hash: bytes) -> bytes:
    """Return the name of the block whose hash vLLM computed (32 bytes, or 16 with xxhash)."""
    return block_hash[:DIGEST_BYTES]


def pack_digests(block_hashes: Iterable[bytes]) -> bytes:
    """Return the digests of consecutive blocks, 16 bytes each, as a lookup takes them."""
    return b"".join([block_hash[:DIGEST_BYTES] for block_hash in block_hashes])


def floor(blocks: int, stride: int) -> int:
    """Return the last object boundary at or before ``blocks``."""
    return blocks - blocks % stride


def ends_between(first: int, last: int, stride: int) -> I32:
    """Return the ends of the objects that cover blocks [first, last), in order.

    Every object boundary after ``first`` up to ``last``, then ``last`` itself if a tail is left.
    """
    full = np.arange(floor(first, stride) + stride, last + 1, stride, dtype=np.int32)
    if last > first and last % stride:
        return np.append(full, np.int32(last))
    return full


def starts_of(ends: I32, stride: int) -> I32:
    """Return the block at which each object begins: the boundary before its end."""
    return np.asarray((ends - 1) // stride * stride, dtype=np.int32)


def names_at(block_hashes: Sequence[bytes], ends: I32) -> bytes:
    """Return the packed digests that name the objects ending at ``ends``."""
    return b"".join([digest_of(block_hashes[end - 1]) for end in ends.tolist()])


def split_names(names: bytes) -> list[bytes]:
    """Return the digests of a packed run of them."""
    return [names[at : at + DIGEST_BYTES] for at in range(0, len(names), DIGEST_BYTES)]


def mark(name: bytes, part: int) -> bytes:
    """Return what an object of a part is remembered by: its name, which all parts share, and the
    part's number unless it is the first."""
    return name + bytes((part,)) if part else name


def keys_of(namespace: bytes, names: bytes) -> list[Key]:
    """Return the packed keys of packed digests."""
    return [pack(name, namespace) for name in split_names(names)]


def parent_names_at(block_hashes: Sequence[bytes], ends: I32, stride: int) -> bytes:
    """Return the packed digests of the objects that those ending at ``ends`` continue.

    An object at the start of the prefix continues nothing: 16 zero bytes stand there.
    """
    return b"".join(
        [
            digest_of(block_hashes[start - 1]) if start else NO_PARENT
            for start in starts_of(ends, stride).tolist()
        ]
    )


def parents_of(namespace: bytes, parent_names: bytes) -> list[Key | None]:
    """Return the packed keys of packed parent digests; None where there is no parent."""
    return [
        None if name == NO_PARENT else pack(name, namespace) for name in split_names(parent_names)
    ]
