"""Alibaba's Bailian traces (JSON lines): chats whose turns name the turn before.

``timestamp`` is in seconds; ``hash_ids`` are blocks of 16 tokens.
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Iterator
from pathlib import Path

import msgspec

from moonpool.workload.lines import BAD_LINE, Lines, Problems
from moonpool.workload.request import Request, request_of

BLOCK_TOKENS = 16
CHATS_MAX = 1 << 20
"""So many turns may be continued; the oldest ones are forgotten."""


class _Line(msgspec.Struct):
    chat_id: int
    timestamp: float
    input_length: int
    output_length: int
    hash_ids: list[int]
    parent_chat_id: int = -1


_DECODER = msgspec.json.Decoder(_Line)


def read(path: Path, lines: Lines, problems: Problems, block_tokens: int) -> Iterator[Request]:
    """Yield the requests of a trace; the name of a session is its first turn's ``chat_id``."""
    firsts: OrderedDict[int, int] = OrderedDict()
    for number, line in lines:
        try:
            found = _DECODER.decode(line)
            first = firsts.get(found.parent_chat_id, found.chat_id)
            lengths = found.input_length, found.output_length
            request = request_of(
                found.timestamp, lengths, found.hash_ids, block_tokens, session=str(first)
            )
        except BAD_LINE as error:
            problems.note(path, number, error)
            continue
        firsts[found.chat_id] = first
        if len(firsts) > CHATS_MAX:
            firsts.popitem(last=False)
        yield request
