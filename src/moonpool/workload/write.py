"""Writes traces as Mooncake's JSON lines, in order of time, whatever they were read from."""

from __future__ import annotations

import contextlib
import gzip
import heapq
import os
import tempfile
from collections.abc import Iterable, Iterator
from io import BufferedRandom
from pathlib import Path
from typing import Protocol

import msgspec
import xxhash

from moonpool.trace_line import Line
from moonpool.workload.formats.mooncake import BLOCK_TOKENS
from moonpool.workload.request import Group, Request
from moonpool.workload.session import Blocks

RUN_LINES = 100_000
"""Sorted in memory at a time; longer traces go through temporary files."""


class Sink(Protocol):
    """What can be written to."""

    def write(self, data: bytes, /) -> int:
        """Write bytes; return how many."""


class Renamer(Protocol):
    """Gives blocks and conversations the names they have in what is written."""

    def block(self, scope: str, block: int) -> int:
        """Return a block's id, unique over all scopes."""

    def session(self, scope: str, name: str) -> str:
        """Return a conversation's name; "" leaves it out."""


class Numbers:
    """Numbers blocks in the order in which they come, as Mooncake's traces do."""

    def __init__(self) -> None:
        self._ids: dict[tuple[str, int], int] = {}

    def block(self, scope: str, block: int) -> int:
        """See Renamer."""
        return self._ids.setdefault((scope, block), len(self._ids))

    def session(self, scope: str, name: str) -> str:
        """See Renamer."""
        return f"{scope}/{name}" if name and name != scope else scope if name else ""


def lines_of(
    groups: Iterable[Group], renamer: Renamer, block_tokens: int = BLOCK_TOKENS
) -> Iterator[Line]:
    """Yield the requests of a trace as lines with blocks of so many tokens, in no order.

    Smaller blocks that divide these are joined; others are kept.
    """
    for group in groups:
        stride = stride_of(group.block_tokens, block_tokens)
        for request in group.requests:
            yield _line(group, request, renamer, stride)


def stride_of(own: int, wanted: int) -> int:
    """Return how many blocks of ``own`` tokens are joined for blocks of about ``wanted``."""
    return wanted // own if wanted % own == 0 else 1


def _line(group: Group, request: Request, renamer: Renamer, stride: int) -> Line:
    ids = _joined(request.blocks, stride)
    conversation = group.scope if group.conversation else ""
    return Line(
        round(request.time_s * 1000),
        request.input_tokens,
        request.output_tokens,
        [renamer.block(group.scope, each) for each in ids] if request.known else None,
        renamer.session(group.scope, request.session or conversation),
        None if request.think_s is None else round(request.think_s * 1000, 3),
    )


def _joined(blocks: Blocks, stride: int) -> list[int]:
    if stride == 1:
        found: list[int] = blocks.tolist()
        return found
    starts = range(0, len(blocks), stride)
    return [xxhash.xxh3_64_intdigest(blocks[n : n + stride].tobytes()) for n in starts]


def write(lines: Iterable[Line], out: Sink) -> int:
    """Write lines in order of time; return how many. Memory is bounded, not disk."""
    encoder = msgspec.json.Encoder()
    count = 0
    with contextlib.ExitStack() as stack:
        runs: list[Iterator[tuple[int, bytes]]] = []
        batch: list[tuple[int, bytes]] = []
        for line in lines:
            batch.append((line.timestamp, encoder.encode(line)))
            count += 1
            if len(batch) == RUN_LINES:
                file = stack.enter_context(tempfile.TemporaryFile())
                runs.append(_spilled(batch, file))
                batch = []
        batch.sort(key=_when)
        for _, line_bytes in heapq.merge(*runs, batch, key=_when):
            out.write(line_bytes + b"\n")
    return count


def written(lines: Iterable[Line], path: Path) -> int:
    """Write a file, gzipped where it ends in ``.gz``; return how many lines. It appears when it
    is whole."""
    whole = path.with_name(f".{path.name}.{os.getpid()}")
    try:
        with gzip.open(whole, "wb") if path.suffix == ".gz" else whole.open("wb") as out:
            count = write(lines, out)
        whole.replace(path)
    finally:
        whole.unlink(missing_ok=True)
    return count


def _spilled(batch: list[tuple[int, bytes]], file: BufferedRandom) -> Iterator[tuple[int, bytes]]:
    for when, line in sorted(batch, key=_when):
        file.write(b"%d %s\n" % (when, line))
    file.seek(0)
    return _read(file)


def _read(file: BufferedRandom) -> Iterator[tuple[int, bytes]]:
    for each in file:
        when, _, line = each.rstrip(b"\n").partition(b" ")
        yield int(when), line


def _when(pair: tuple[int, bytes]) -> int:
    return pair[0]
