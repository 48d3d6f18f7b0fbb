"""What a key's object holds: every byte follows from the key, and no two keys share a page."""

from __future__ import annotations

import hashlib
from typing import Any

import numpy as np
import numpy.typing as npt

SIZES = (1, 100, 4096, 5000, 16_384, 40_000, 65_536, 70_001, 131_072)
SIZE_MAX = max(SIZES)


def size_of(key: bytes) -> int:
    """Return the size of a key's object in bytes."""
    return SIZES[hashlib.blake2b(key, digest_size=2).digest()[0] % len(SIZES)]


def content_of(key: bytes) -> npt.NDArray[np.uint8]:
    """Return a key's bytes, shape (size_of(key),)."""
    seed = int.from_bytes(hashlib.blake2b(key, digest_size=16).digest(), "little")
    words = np.random.SFC64(seed).random_raw(-(-size_of(key) // 8))
    return np.asarray(words, np.uint64).view(np.uint8)[: size_of(key)]


def is_right(key: bytes, found: npt.NDArray[Any] | bytes) -> bool:
    """Tell whether bytes that were read for a key are the key's, every one of them."""
    read = np.frombuffer(found, np.uint8)
    return bool(np.array_equal(read, content_of(key)))
