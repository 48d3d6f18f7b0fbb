"""OpenAI chats as JSON lines, hashed with a given tokenizer: a conversation's ``messages`` (each
answer in it is a request), or logged requests (``body`` as in a batch, or the request itself)."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import msgspec
import numpy as np
import xxhash

from moonpool.workload.lines import BAD_LINE, Lines, Problems
from moonpool.workload.request import Request, request_of

BLOCK_TOKENS = 16
MASK = (1 << 63) - 1

Encoder = Callable[[list[dict[str, Any]]], list[int]]
"""Messages of a chat to the token ids of the prompt that asks for the next answer."""


class _Body(msgspec.Struct):
    messages: list[dict[str, Any]]
    max_tokens: int | None = None
    max_completion_tokens: int | None = None


class _Line(msgspec.Struct):
    messages: list[dict[str, Any]] | None = None
    body: _Body | None = None
    timestamp: float | None = None
    created: float | None = None
    session_id: str | int = ""
    custom_id: str = ""
    max_tokens: int | None = None
    max_completion_tokens: int | None = None


_DECODER = msgspec.json.Decoder(_Line)


def read(
    path: Path, lines: Lines, problems: Problems, block_tokens: int, encode: Encoder
) -> Iterator[Request]:
    """Yield the requests; times in seconds, where a line has none it is its number."""
    for number, line in lines:
        try:
            found = list(_requests(_DECODER.decode(line), number, block_tokens, encode))
        except (*BAD_LINE, TypeError, KeyError) as error:
            problems.note(path, number, error)
        else:
            yield from found


def _requests(line: _Line, number: int, block_tokens: int, encode: Encoder) -> Iterator[Request]:
    messages = line.body.messages if line.body else line.messages
    if not messages:
        raise ValueError("no messages")
    given = line.timestamp if line.timestamp is not None else line.created
    time_s = float(number) if given is None else given
    name = str(line.session_id) or line.custom_id or str(number)
    answers = [place for place, each in enumerate(messages) if each.get("role") == "assistant"]
    if line.body or messages[-1].get("role") != "assistant":
        told = line.body or line
        wanted = told.max_completion_tokens or told.max_tokens or 1
        yield _request(time_s, encode(messages), wanted, block_tokens, name)
        return
    for place in answers:
        if place:
            prompt = encode(messages[:place])
            said = max(1, len(encode(messages[: place + 1])) - len(prompt))
            yield _request(time_s, prompt, said, block_tokens, name)


def _request(
    time_s: float, tokens: list[int], output_tokens: int, block_tokens: int, name: str
) -> Request:
    ids = block_ids(tokens, block_tokens)
    return request_of(time_s, (len(tokens), output_tokens), ids, block_tokens, session=name)


def block_ids(tokens: list[int], block_tokens: int) -> list[int]:
    """Return an id for each block, the last one full or not, that depends on all before it."""
    data = np.asarray(tokens, dtype=np.int64)
    digest, ids = 0, []
    for start in range(0, len(data), block_tokens):
        digest = xxhash.xxh3_64_intdigest(data[start : start + block_tokens].tobytes(), digest)
        ids.append(digest & MASK)
    return ids
