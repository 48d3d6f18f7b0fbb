"""Cached-token counts of a split request: what was cached before it, not what it brought along.

The decoding engine counts all that it was handed as cached. What the client wants to know is what
need not be computed, and that the prefilling engine counts.
"""

from __future__ import annotations

import re

# Inside a JSON string the quotation marks would have backslashes before them.
_CACHED = re.compile(rb'(?<!\\)"cached_tokens"\s{0,8}:\s{0,8}(\d{1,9})(?=[\s,}])')
_NAME = b'"cached_tokens"'
# What is matched is never longer.
HELD_BYTES = 48


class CachedTokens:
    """Puts a count in the place of the decoding engine's, in the passing bytes of an answer.

    Lengths stay as they are. Up to HELD_BYTES are held back, but never a whole line. ``cached``
    is None while nobody has counted: then nothing is taken to have been cached.
    """

    def __init__(self) -> None:
        self.cached: int | None = None
        self._held = b""

    def feed(self, chunk: bytes) -> bytes:
        """Take the next bytes; return what can go on."""
        text = self._changed(self._held + chunk)
        end = max(text.rfind(b"\n") + 1, len(text) - HELD_BYTES)
        if text[end - 1 : end] == b"\\":
            end -= 1
        self._held = text[end:]
        return text[:end]

    def end(self) -> bytes:
        """Return what was held back."""
        text, self._held = self._held, b""
        return text

    def _changed(self, text: bytes) -> bytes:
        return _CACHED.sub(self._instead, text) if _NAME in text else text

    def _instead(self, found: re.Match[bytes]) -> bytes:
        before = min(int(found[1]), self.cached or 0)
        return found[0][: found.start(1) - found.start()] + b"%*d" % (len(found[1]), before)
