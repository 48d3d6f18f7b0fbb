"""What every format of a trace is read into."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

import numpy as np

from moonpool.workload.session import Blocks

TOKENS_MAX = 1 << 40


@dataclass(frozen=True, slots=True, eq=False)
class Request:
    """One request of a trace. ``time_s`` counts from the start of its trace or conversation.

    session: name of its conversation, "" where the trace does not say. known: whether the trace
    says what the prompt is made of; without that, ``blocks`` are of this request alone.
    """

    time_s: float
    input_tokens: int
    output_tokens: int
    blocks: Blocks
    think_s: float | None = None
    session: str = ""
    known: bool = True


@dataclass(frozen=True, slots=True, eq=False)
class Group:
    """Requests whose block ids share a scope, in order of time: a conversation or a whole trace."""

    scope: str
    block_tokens: int
    requests: Iterator[Request]
    conversation: bool


def request_of(
    time_s: float,
    lengths: tuple[int, int],
    ids: Sequence[int],
    block_tokens: int,
    think_s: float | None = None,
    session: str = "",
) -> Request:
    """Return a request whose blocks are named; raise ValueError for what cannot be.

    lengths: tokens of the prompt and of the answer.
    """
    input_tokens, output_tokens = _checked(time_s, lengths)
    # Some traces name a last block that is not full, some leave it out.
    if not ids or len(ids) * block_tokens < input_tokens - block_tokens:
        raise ValueError(f"{len(ids)} blocks of {block_tokens} tokens for {input_tokens} tokens")
    if (len(ids) - 1) * block_tokens >= input_tokens:
        raise ValueError(f"{len(ids)} blocks of {block_tokens} tokens for only {input_tokens}")
    blocks = np.asarray(ids, dtype=np.int64)
    return Request(time_s, input_tokens, output_tokens, blocks, think_s, session)


class Strangers:
    """Makes requests of traces that give lengths alone: each block is a new one."""

    def __init__(self, block_tokens: int) -> None:
        self._block_tokens = block_tokens
        self._next = -1

    def request_of(
        self,
        time_s: float,
        lengths: tuple[int, int],
        think_s: float | None = None,
        session: str = "",
    ) -> Request:
        """Return a request that shares nothing; raise ValueError for what cannot be."""
        input_tokens, output_tokens = _checked(time_s, lengths)
        count = -(-input_tokens // self._block_tokens)
        blocks = np.arange(self._next, self._next - count, -1, dtype=np.int64)
        self._next -= count
        return Request(time_s, input_tokens, output_tokens, blocks, think_s, session, known=False)


def _checked(time_s: float, lengths: tuple[int, int]) -> tuple[int, int]:
    input_tokens, output_tokens = lengths
    if not 1 <= input_tokens <= TOKENS_MAX or not 0 <= output_tokens <= TOKENS_MAX:
        raise ValueError(f"a request of {input_tokens} input and {output_tokens} output tokens")
    if not np.isfinite(time_s):
        raise ValueError(f"a request at {time_s} s")
    return input_tokens, output_tokens
