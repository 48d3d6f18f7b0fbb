"""Mooncake's JSON lines (FAST'25), with what AIPerf adds to them (its ``mooncake_trace``).

``timestamp`` and ``delay`` are milliseconds. A line with a ``session_id`` may have a ``delay``
after the answer before instead of a timestamp, and lines may leave out ``hash_ids``.
"""

from __future__ import annotations

import contextlib
from collections.abc import Iterator
from pathlib import Path

import msgspec

from moonpool.workload.lines import BAD_LINE, Lines, Problems
from moonpool.workload.request import Request, Strangers, request_of

BLOCK_TOKENS = 512
SIZES = (512, 256, 128, 64, 32, 16, 8, 1024, 2048, 4096)
"""What blocks may have where nothing is said; the first that fits the first lines."""
LINES_LOOKED_AT = 100


class _Line(msgspec.Struct):
    input_length: int
    output_length: int = 0
    timestamp: float | None = None
    hash_ids: list[int] | None = None
    session_id: str | int = ""
    delay: float | None = None


_DECODER = msgspec.json.Decoder(_Line)


def size_of(lines: list[bytes]) -> int:
    """Return how many tokens the blocks of a trace have that begins with these lines.

    The format does not say; a prompt is as long as its blocks, but for the last of them.
    """
    seen = []
    for line in lines:
        with contextlib.suppress(*BAD_LINE):
            found = _DECODER.decode(line)
            if found.hash_ids:
                seen.append((found.input_length, len(found.hash_ids)))
    fitting = (
        size
        for size in SIZES
        if all(count in (-(-length // size), length // size) for length, count in seen)
    )
    return next(fitting, BLOCK_TOKENS)


def read(path: Path, lines: Lines, problems: Problems, block_tokens: int) -> Iterator[Request]:
    """Yield the requests of a trace."""
    reader = _Reader(block_tokens)
    for number, line in lines:
        try:
            request = reader.request(_DECODER.decode(line))
        except BAD_LINE as error:
            problems.note(path, number, error)
        else:
            yield request


class _Reader:
    def __init__(self, block_tokens: int) -> None:
        self._block_tokens = block_tokens
        self._strangers = Strangers(block_tokens)
        self._last_s = 0.0

    def request(self, line: _Line) -> Request:
        delay_s = None if line.delay is None else line.delay / 1000
        if line.timestamp is not None:
            time_s = line.timestamp / 1000
        elif line.session_id != "":
            # Only the answer before is known to be earlier: it stands where the trace put it.
            time_s = self._last_s + (delay_s or 0.0)
        else:
            raise ValueError("neither `timestamp` nor `session_id`")
        lengths = line.input_length, line.output_length
        session = str(line.session_id)
        if line.hash_ids is None:
            request = self._strangers.request_of(time_s, lengths, delay_s, session)
        else:
            block = self._block_tokens
            request = request_of(time_s, lengths, line.hash_ids, block, delay_s, session)
        self._last_s = time_s
        return request
