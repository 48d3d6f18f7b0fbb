"""Checks of what a request says, cheap enough for every item of a batch."""

from __future__ import annotations

from moonpool.core.keys import KEY_BYTES_MAX, NAMESPACE_BYTES_MAX

U64_MAX = (1 << 64) - 1
SIZE_MAX = 1 << 50
KEY_INLINE_BYTES_MAX = 112
"""Longer keys get room of their own behind the payload."""


def is_packed(key: bytes) -> bool:
    """Tell whether bytes are a packed key."""
    if not key:
        return False
    name_bytes = len(key) - key[0] - 1
    return key[0] <= NAMESPACE_BYTES_MAX and 0 < name_bytes <= KEY_BYTES_MAX


def space_needed(key: bytes, size: int) -> int:
    """Return the bytes that an object takes in a segment, before rounding."""
    return size if len(key) <= KEY_INLINE_BYTES_MAX else size + len(key)
