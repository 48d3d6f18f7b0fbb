"""Cached-token counts of a split request in Anthropic's form: no part of the other counts."""

from __future__ import annotations

from typing import Any

import msgspec

INPUT, READ = "input_tokens", "cache_read_input_tokens"
MESSAGE_COUNTS = (INPUT, "cache_creation_input_tokens", READ)
_NAME = b'"cache_read_input_tokens"'
_DATA = b"data: "
# No event of a stream is that long, nor should an answer be; what is goes on as it is.
HELD_BYTES = 4 << 20
_decode = msgspec.json.Decoder()


class MessageTokens:
    """As CachedTokens, for answers of ``/v1/messages``: ``prompt`` is how the prefilling engine
    counted the prompt, empty while it has not; then all of it is input. Lengths change; lines are
    held back to their ends, whole answers to theirs.
    """

    def __init__(self, *, stream: bool) -> None:
        self.prompt: dict[str, int] = {}
        self._stream = stream
        self._held = b""

    def feed(self, chunk: bytes) -> bytes:
        """Take the next bytes; return what can go on."""
        text = self._held + chunk
        end = text.rfind(b"\n") + 1 if self._stream else 0
        if len(text) - end > HELD_BYTES:
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
        if not self._stream:
            return self._object(text)
        lines = text.split(b"\n")
        return b"\n".join(self._line(line) if _NAME in line else line for line in lines)

    def _line(self, line: bytes) -> bytes:
        if not line.startswith(_DATA):
            return line
        return _DATA + self._object(line.removeprefix(_DATA))

    def _object(self, text: bytes) -> bytes:
        try:
            found = _decode.decode(text)
        except (msgspec.DecodeError, UnicodeDecodeError, RecursionError):
            return text
        message = found.get("message") if isinstance(found, dict) else None
        changed = [self._merge(each) for each in (found, message) if isinstance(each, dict)]
        return msgspec.json.encode(found) if any(changed) else text

    def _merge(self, holder: dict[str, Any]) -> bool:
        usage = holder.get("usage")
        if not isinstance(usage, dict):
            return False
        read, rest = usage.get(READ), usage.get(INPUT)
        if type(read) is not int or type(rest) is not int:
            return False
        if self.prompt.get(READ, 0) > read:
            # It has computed the prompt for itself after all.
            return False
        counts = self.prompt or {INPUT: rest + read}
        for name in MESSAGE_COUNTS:
            usage.pop(name, None)
        usage |= counts
        return True
