"""Token counts at the end of an answer, read in passing."""

from __future__ import annotations

import re
from dataclasses import dataclass

TAIL_BYTES = 4096
# Inside a JSON string the quotation mark would have a backslash before it.
_PROMPT = re.compile(rb'[{,]\s*"(?:prompt_tokens|input_tokens)"\s*:\s*(\d{1,9})\b')
# In Anthropic's form the counts of a cache are no part of input_tokens.
_BESIDE = re.compile(rb'[{,]\s*"cache_(read|creation)_input_tokens"\s*:\s*(\d{1,9})\b')
_OUTPUT = re.compile(rb'[{,]\s*"(?:completion_tokens|output_tokens)"\s*:\s*(\d{1,9})\b')
_EVENT = b"data: {"
_CACHED = re.compile(rb'[{,]\s*"cached_tokens"\s*:\s*(\d{1,9})\b')


@dataclass(frozen=True, slots=True)
class Usage:
    """What an engine counted; None where it does not say."""

    prompt_tokens: int
    cached_tokens: int | None
    output_tokens: int | None = None


class Tail:
    """Keeps the last bytes of an answer. ``events``: how many events of a stream it has seen."""

    __slots__ = ("_bytes", "events")

    def __init__(self) -> None:
        self._bytes = b""
        self.events = 0

    def feed(self, chunk: bytes) -> None:
        """Take the next bytes of the answer."""
        # Also one that two reads share.
        seam = self._bytes[1 - len(_EVENT) :] + chunk[: len(_EVENT) - 1]
        self.events += chunk.count(_EVENT) + seam.count(_EVENT)
        if len(chunk) >= TAIL_BYTES:
            self._bytes = chunk[-TAIL_BYTES:]
        else:
            self._bytes = (self._bytes + chunk)[-TAIL_BYTES:]

    def usage(self) -> Usage | None:
        """Return the last counts that the tail holds."""
        prompts = _PROMPT.findall(self._bytes)
        if not prompts:
            return None
        cached = _CACHED.findall(self._bytes)
        outputs = _OUTPUT.findall(self._bytes)
        output = int(outputs[-1]) if outputs else None
        beside = {kind: int(count) for kind, count in _BESIDE.findall(self._bytes)}
        if beside:
            read = beside.get(b"read", 0)
            return Usage(int(prompts[-1]) + sum(beside.values()), read, output)
        return Usage(int(prompts[-1]), int(cached[-1]) if cached else None, output)
