"""Readers of request traces: Mooncake's JSON lines and Claude Code conversations.

Both may be gzipped (``.gz``). A line that does not hold what the format says ends the reading
with a TraceError that names file and line.
"""

from __future__ import annotations

import gzip
import zlib
from collections.abc import Iterator
from dataclasses import dataclass
from io import BufferedIOBase
from pathlib import Path

import msgspec
import numpy as np

from moonpool.errors import ConfigError
from moonpool.workload.session import Blocks, Session, Turn

MOONCAKE_BLOCK_TOKENS = 512
BAD_LINE = (msgspec.MsgspecError, UnicodeDecodeError, ValueError, OverflowError)
LINE_BYTES_MAX = 256 << 20
NESTING_MAX = 16


class TraceError(ConfigError):
    """A trace that cannot be read; the message names file and line."""


@dataclass(frozen=True, slots=True, eq=False)
class Request:
    """One request of a trace. ``time_s`` counts from the start of its trace or conversation."""

    time_s: float
    input_tokens: int
    output_tokens: int
    blocks: Blocks
    think_s: float | None = None


@dataclass(frozen=True, slots=True, eq=False)
class Group:
    """Requests whose block ids share a scope, in order of time: a conversation or a whole trace."""

    scope: str
    block_tokens: int
    requests: Iterator[Request]
    conversation: bool


class _MooncakeLine(msgspec.Struct):
    timestamp: float
    input_length: int
    output_length: int
    hash_ids: list[int]


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


_Lines = Iterator[tuple[int, bytes]]
"""Numbers of lines, from 1, and their bytes."""
_LINE = msgspec.json.Decoder(_MooncakeLine)
_CONVERSATION = msgspec.json.Decoder(_Conversation)


def read_trace(path: Path) -> Iterator[Group]:
    """Yield the groups of a trace, one line in memory at a time; raise TraceError."""
    lines = _lines(path)
    try:
        number, first = next(lines)
    except StopIteration:
        raise TraceError(f"{path}: no requests in it") from None
    if b'"requests"' in first:
        yield from _conversations(path, _chain(number, first, lines))
    else:
        requests = _mooncake(path, _chain(number, first, lines))
        yield Group(path.name, MOONCAKE_BLOCK_TOKENS, requests, conversation=False)


def _chain(number: int, first: bytes, rest: Iterator[tuple[int, bytes]]) -> _Lines:
    yield number, first
    yield from rest


def _lines(path: Path) -> _Lines:
    number = 0
    try:
        with _open(path) as file:
            while line := file.readline(LINE_BYTES_MAX):
                number += 1
                if line.strip():
                    yield number, line
    except (OSError, EOFError, zlib.error) as error:
        where = f"{path}:{number + 1}" if number else str(path)
        reason = error.strerror if isinstance(error, OSError) and error.strerror else error
        raise TraceError(f"{where}: {reason}") from None


def _open(path: Path) -> BufferedIOBase:
    return gzip.open(path) if path.suffix == ".gz" else path.open("rb")


def _mooncake(path: Path, lines: _Lines) -> Iterator[Request]:
    for number, line in lines:
        try:
            entry = _LINE.decode(line)
            request = _request(
                entry.timestamp / 1000,
                (entry.input_length, entry.output_length),
                entry.hash_ids,
                MOONCAKE_BLOCK_TOKENS,
            )
        except BAD_LINE as error:
            raise TraceError(f"{path}:{number}: {error}") from None
        yield request


def _conversations(path: Path, lines: _Lines) -> Iterator[Group]:
    for number, line in lines:
        try:
            conversation = _CONVERSATION.decode(line)
            if conversation.block_size < 1:
                raise ValueError(f"block_size {conversation.block_size}; 1 or more is allowed")
            requests = list(_flatten(conversation.requests, conversation.block_size, 0))
        except BAD_LINE as error:
            raise TraceError(f"{path}:{number}: {error}") from None
        if requests:
            yield Group(conversation.id, conversation.block_size, iter(requests), True)


def _flatten(entries: list[_Entry], block_tokens: int, depth: int) -> Iterator[Request]:
    """Yield an agent's requests in the file's order, those of its subagents at their place."""
    if depth > NESTING_MAX:
        raise ValueError(f"subagents nested deeper than {NESTING_MAX}")
    for entry in entries:
        if entry.requests is not None:
            yield from _flatten(entry.requests, block_tokens, depth + 1)
        else:
            lengths = (entry.input, entry.output)
            yield _request(entry.t, lengths, entry.hash_ids, block_tokens, entry.think_time)


def _request(
    time_s: float,
    lengths: tuple[int, int],
    ids: list[int],
    block_tokens: int,
    think_s: float | None = None,
) -> Request:
    input_tokens, output_tokens = lengths
    if input_tokens < 1 or output_tokens < 0:
        raise ValueError(f"a request of {input_tokens} input and {output_tokens} output tokens")
    # Some traces name a last block that is not full, some leave it out.
    if not ids or len(ids) * block_tokens < input_tokens - block_tokens:
        raise ValueError(f"{len(ids)} blocks of {block_tokens} tokens for {input_tokens} tokens")
    blocks = np.asarray(ids, dtype=np.int64)
    return Request(time_s, input_tokens, output_tokens, blocks, think_s)


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
    """Yield the conversations of a group.

    A group that is a whole trace says nothing of conversations: a request continues the one
    whose last prompt it repeats up to that prompt's last full block.
    """
    if group.conversation:
        yield _session(group, group.scope, list(group.requests))
        return
    for place, requests in enumerate(_threads(group)):
        yield _session(group, f"{group.scope}/{place}", requests)


def _threads(group: Group) -> list[list[Request]]:
    threads: list[list[Request]] = []
    ends: dict[int, int] = {}
    for request in group.requests:
        ids: list[int] = request.blocks.tolist()
        full = request.input_tokens // group.block_tokens
        known = (ends.pop(block) for block in reversed(ids[:full]) if block in ends)
        thread = next(known, None)
        if thread is None:
            thread = len(threads)
            threads.append([])
        threads[thread].append(request)
        if full:
            ends[ids[full - 1]] = thread
    return threads


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
