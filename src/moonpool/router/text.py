"""Prompts known as text only: chunks of the request's own JSON instead of an engine's blocks.

An approximation: the same prefix written in other JSON is not recognised, and tokens are counted
by the length of text, at a ratio that answers teach.
"""

from __future__ import annotations

from typing import Any

import xxhash

from moonpool.router.openai import Fields
from moonpool.router.prompt import NO_PROMPT, Prompt

CHUNK_BYTES = 256
CHUNKS_MAX = 16_384
BYTES_PER_TOKEN = 4.0
FORGET = 0.05
# In the order in which chat templates write them.
_HEADS = ("tools", "system", "instructions")
_CONTENT = {
    "/v1/chat/completions": "messages",
    "/v1/messages": "messages",
    "/v1/completions": "prompt",
    "/v1/responses": "input",
}


class TextPrompts:
    """Makes prompts of text, and learns how many bytes a token takes."""

    def __init__(self) -> None:
        self.bytes_per_token = BYTES_PER_TOKEN

    def prompt(self, path: str, fields: Fields) -> Prompt:
        """Return the prompt of a request; an empty one for what has no prefix to reuse."""
        name = _CONTENT.get(path)
        content = fields.raw(name) if name else b""
        if not content:
            return NO_PROMPT
        # The last brackets of a list or text are not part of a longer one.
        content = content.rstrip(b']}" \n\r\t')
        seed = b"\0".join(fields.raw(each) for each in ("model", "cache_salt", *_HEADS))
        size = len(content) + sum(len(fields.raw(each)) for each in _HEADS)
        keys = chunk_keys(content, xxhash.xxh3_64_intdigest(seed))
        ratio = self.bytes_per_token
        return Prompt(keys, size / ratio, CHUNK_BYTES / ratio)

    def learn(self, prompt: Prompt, prompt_tokens: int) -> None:
        """Note how many tokens an engine counted for a prompt that was made here."""
        if prompt_tokens >= 32 and prompt.tokens and not prompt.exact:
            seen = prompt.tokens * self.bytes_per_token / prompt_tokens
            self.bytes_per_token += FORGET * (min(max(seen, 1.0), 16.0) - self.bytes_per_token)


def chunk_keys(content: bytes, seed: int) -> list[int]:
    """Return a chained key for every full chunk."""
    keys, digest = [], xxhash.xxh3_64_intdigest
    last = min(len(content) - CHUNK_BYTES, (CHUNKS_MAX - 1) * CHUNK_BYTES)
    for first in range(0, last + 1, CHUNK_BYTES):
        seed = digest(content[first : first + CHUNK_BYTES], seed)
        keys.append(seed)
    return keys


def session_of(path: str, fields: Fields) -> str:
    """Return what names a conversation from inside: its head up to the first user's message."""
    name = _CONTENT.get(path)
    if name is None:
        return ""
    content = fields.get(name)
    if isinstance(content, list):
        head = content[: 1 + next((at for at, each in enumerate(content) if _is_user(each)), 0)]
        if head and isinstance(head[0], int):
            head = content[:256]
        return f"{fields.raw('model')!r}{head!r}"[:65_536]
    return f"{fields.raw('model')!r}{content[:1024]!r}" if isinstance(content, str) else ""


def _is_user(message: Any) -> bool:
    return isinstance(message, dict) and message.get("role", "user") == "user"
