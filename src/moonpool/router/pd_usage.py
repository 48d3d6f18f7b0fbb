"""Cached-token counts of a split request: what was cached before it, not what it brought along.

The decoding engine counts all that it was handed as cached. What the client wants to know is what
need not be computed, and that the prefilling engine counts.
"""

from __future__ import annotations

import re

# Inside a JSON string the quotation marks would have backslashes before them.
_CACHED = re.compile(rb'(?<![\\])"cached_tokens"\s*:\s*(\d{1,9})(?=\s*[,}])')
_NAME = b'"cached_tokens"'
# No event of a stream is that long; what is goes on as it is.
HELD_MAX = 1 << 20


class CachedTokens:
    """Puts a count in the place of the decoding engine's, in the passing bytes of an answer.

    Bytes are held back only to the end of a line (of a whole answer, to its end). ``cached`` is
    None while nobody has counted: then nothing is taken to have been cached.
    """

    def __init__(self, *, stream: bool) -> None:
        self.cached: int | None = None
        self._stream = stream
        self._held = b""

    def feed(self, chunk: bytes) -> bytes:
        """Take the next bytes; return what can go on."""
        text = self._held + chunk
        end = text.rfind(b"\n") + 1 if self._stream else 0
        if len(text) - end > HELD_MAX:
            end = len(text)
        self._held = text[end:]
        return self._changed(text[:end])

    def end(self) -> bytes:
        """Return what was held back."""
        text, self._held = self._held, b""
        return self._changed(text)

    def _changed(self, text: bytes) -> bytes:
        if _NAME not in text:
            return text
        return _CACHED.sub(self._instead, text)

    def _instead(self, found: re.Match[bytes]) -> bytes:
        before = min(int(found[1]), self.cached or 0)
        return b'"cached_tokens":%d' % before
