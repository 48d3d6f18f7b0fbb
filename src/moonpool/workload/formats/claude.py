"""Claude Code conversations (weka's format): a JSON document a line, subagents nested in it."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import msgspec

from moonpool.workload.lines import BAD_LINE, Lines, Problems
from moonpool.workload.request import Group, Request, request_of

NESTING_MAX = 16


class _Entry(msgspec.Struct):
    t: float = 0.0
    input: int = msgspec.field(default=0, name="in")
    output: int = msgspec.field(default=0, name="out")
    hash_ids: list[int] = []
    think_time: float | None = None
    requests: list[_Entry] | None = None


class _Conversation(msgspec.Struct):
    id: str
    block_size: int
    requests: list[_Entry]


_DECODER = msgspec.json.Decoder(_Conversation)


def read(path: Path, lines: Lines, problems: Problems) -> Iterator[Group]:
    """Yield the conversations, one in memory at a time."""
    for number, line in lines:
        try:
            found = _DECODER.decode(line)
            if found.block_size < 1:
                raise ValueError(f"block_size {found.block_size}; 1 or more is allowed")
            requests = list(_flatten(found.requests, found.block_size, found.id, 0))
        except BAD_LINE as error:
            problems.note(path, number, error)
            continue
        if requests:
            yield Group(found.id, found.block_size, iter(requests), conversation=True)


def _flatten(entries: list[_Entry], block_tokens: int, name: str, depth: int) -> Iterator[Request]:
    """Yield an agent's requests in the file's order, those of its subagents at their place."""
    if depth > NESTING_MAX:
        raise ValueError(f"subagents nested deeper than {NESTING_MAX}")
    for place, entry in enumerate(entries):
        if entry.requests is not None:
            inner = f"{name}/{place}"
            yield from _flatten(entry.requests, block_tokens, inner, depth + 1)
        else:
            lengths = (entry.input, entry.output)
            ids, think_s = entry.hash_ids, entry.think_time
            yield request_of(entry.t, lengths, ids, block_tokens, think_s, name)
