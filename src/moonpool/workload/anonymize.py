"""Names of blocks and conversations that say nothing to whoever has not the key."""

from __future__ import annotations

import hashlib
import hmac
from functools import lru_cache

ID_BITS = 62
"""Other tools read ids as signed 64-bit numbers."""


class Keyed:
    """A Renamer by HMAC-SHA256: the same key gives the same names, in any run and file.

    Without the key nobody can tell whether a known prompt is in the trace. Lengths and times are
    not hidden.
    """

    def __init__(self, key: bytes) -> None:
        if len(key) < 16:
            raise ValueError(f"a key of {len(key)} bytes; 16 or more are allowed")
        self._key = key
        self.block = lru_cache(1 << 20)(self._block)

    def _block(self, scope: str, block: int) -> int:
        return int.from_bytes(self._digest(f"{scope}\0{block}")[:8]) >> (64 - ID_BITS)

    def session(self, scope: str, name: str) -> str:
        """See Renamer."""
        return self._digest(f"{scope}\0{name}\0session").hex()[:16] if name else ""

    def _digest(self, text: str) -> bytes:
        return hmac.digest(self._key, text.encode(), hashlib.sha256)
