"""Traces of requests, read whatever their format (docs/workloads.md lists them).

All may be gzipped (``.gz``). A line that does not hold what its format says ends the reading with
a TraceError that names file and line, or is left out and counted (Problems).
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from itertools import chain, islice
from pathlib import Path

import msgspec

from moonpool.workload.formats import bailian, chat, claude, mooncake, tables
from moonpool.workload.lines import Lines, Problems, TraceError, lines_of
from moonpool.workload.request import Group, Request
from moonpool.workload.session import Session, Turn
from moonpool.workload.threads import Threads

__all__ = [
    "FORMATS",
    "Group",
    "Problems",
    "Request",
    "TraceError",
    "hit_tokens",
    "read_trace",
    "sessions_of",
]

_Reader = Callable[[Path, Lines, Problems, int], Iterator[Request]]
_FLAT: dict[str, tuple[_Reader, int]] = {
    "mooncake": (mooncake.read, mooncake.BLOCK_TOKENS),
    "bailian": (bailian.read, bailian.BLOCK_TOKENS),
    "burst-gpt": (tables.read_burst, tables.BLOCK_TOKENS),
    "azure": (tables.read_azure, tables.BLOCK_TOKENS),
}
FORMATS = (*_FLAT, "claude-code", "chat")


def read_trace(
    path: Path,
    problems: Problems | None = None,
    *,
    form: str = "",
    block_tokens: int = 0,
    encode: chat.Encoder | None = None,
) -> Iterator[Group]:
    """Yield the groups of a trace, one line in memory at a time; raise TraceError.

    form: one of FORMATS, "" finds it out. block_tokens: the size of its blocks where that is not
    the format's usual one. encode: the tokenizer that chats need.
    """
    problems = problems or Problems()
    lines = lines_of(path)
    try:
        number, first = next(lines)
    except StopIteration:
        raise TraceError(f"{path}: no requests in it") from None
    form = form or _form_of(first)
    lines = _chain(number, first, lines)
    if form == "claude-code":
        yield from claude.read(path, lines, problems)
        return
    if form == "chat":
        if encode is None:
            raise TraceError(f"{path}: chats need a tokenizer; allowed: --tokenizer DIR")
        block_tokens = block_tokens or chat.BLOCK_TOKENS
        requests = chat.read(path, lines, problems, block_tokens, encode)
    elif form in _FLAT:
        reader, usual = _FLAT[form]
        if form == "mooncake" and not block_tokens:
            head = list(islice(lines, mooncake.LINES_LOOKED_AT))
            usual = mooncake.size_of([line for _, line in head])
            lines = chain(head, lines)
        block_tokens = block_tokens or usual
        requests = reader(path, lines, problems, block_tokens)
    else:
        raise TraceError(f"format: {form!r} is not known; allowed: {', '.join(FORMATS)}")
    yield Group(path.name, block_tokens, requests, conversation=False)


def _form_of(first: bytes) -> str:
    """Return the format that a first line looks like; the most common one if it is broken."""
    if not first.lstrip().startswith(b"{"):
        columns = tables.columns_of(first)
        if "contexttokens" in columns:
            return "azure"
        return "burst-gpt" if "request tokens" in columns else "mooncake"
    try:
        names = set(msgspec.json.decode(first, type=dict[str, msgspec.Raw]))
    except msgspec.MsgspecError:
        return "claude-code" if b'"requests"' in first else "mooncake"
    if "requests" in names:
        return "claude-code"
    if "messages" in names or "body" in names:
        return "chat"
    return "bailian" if "chat_id" in names else "mooncake"


def _chain(number: int, first: bytes, rest: Lines) -> Lines:
    yield number, first
    yield from rest


def hit_tokens(request: Request, block_tokens: int, seen: set[int]) -> int:
    """Return how many leading prompt tokens lie in blocks seen before, and add its blocks."""
    hits = 0
    ids: list[int] = request.blocks.tolist()
    for block in ids:
        if block not in seen:
            break
        hits += 1
    seen.update(ids)
    return min(hits * block_tokens, request.input_tokens)


def sessions_of(group: Group) -> Iterator[Session]:
    """Yield the conversations of a group, found by Threads where it does not name them."""
    if group.conversation:
        yield _session(group, group.scope, list(group.requests))
        return
    threads = Threads(group.block_tokens)
    found: dict[str, list[Request]] = {}
    for request in group.requests:
        found.setdefault(threads.name_of(request), []).append(request)
    for name, requests in found.items():
        yield _session(group, f"{group.scope}/{name}", requests)


def _session(group: Group, name: str, requests: list[Request]) -> Session:
    turns: list[Turn] = []
    before_s = requests[0].time_s
    for request in requests:
        gap_s = request.think_s if request.think_s is not None else request.time_s - before_s
        before_s = request.time_s
        turns.append(
            Turn(
                input_tokens=min(request.input_tokens, len(request.blocks) * group.block_tokens),
                output_tokens=max(1, request.output_tokens),
                gap_s=max(0.0, gap_s if turns else 0.0),
                blocks=request.blocks,
            )
        )
    return Session(name, group.scope, group.block_tokens, tuple(turns))
