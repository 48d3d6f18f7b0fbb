"""Conversations as data: how long each prompt is, what of it was said before, and when it comes.

A workload holds lengths, never text. Token ids are made from names alone, so that two processes
given the same workload send the same prompts.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from functools import lru_cache

import numpy as np
import xxhash
from numpy.typing import NDArray

Blocks = NDArray[np.int64]
"""Block ids of a prompt, first to last; equal ids in one scope stand for equal tokens."""


@dataclass(frozen=True, slots=True, eq=False)
class Turn:
    """One request of a conversation.

    ``gap_s`` is the time between the answer before and this request. ``blocks`` names the tokens
    of the whole prompt; without it the prompt is the conversation so far plus fresh tokens.
    """

    input_tokens: int
    output_tokens: int
    gap_s: float = 0.0
    blocks: Blocks | None = None


@dataclass(frozen=True, slots=True, eq=False)
class Session:
    """One conversation: turns that come strictly one after the other.

    ``scope`` is the name space of block ids. The first ``shared_tokens`` of a prompt without
    blocks are those that every session of the same scope begins with.
    """

    name: str
    scope: str
    block_tokens: int
    turns: tuple[Turn, ...]
    shared_tokens: int = 0

    @property
    def input_tokens(self) -> int:
        """Tokens of all prompts together."""
        return sum(turn.input_tokens for turn in self.turns)

    @property
    def output_tokens(self) -> int:
        """Tokens of all answers together."""
        return sum(turn.output_tokens for turn in self.turns)


@lru_cache(maxsize=65536)
def tokens_of(name: str, count: int, vocabulary: int) -> tuple[int, ...]:
    """Return ``count`` token ids in [0, vocabulary) that depend on nothing but the arguments."""
    random = np.random.default_rng(xxhash.xxh3_64_intdigest(name.encode()))
    return tuple(random.integers(0, vocabulary, count).tolist())


class PromptBuilder:
    """Makes the prompts of one session, turn by turn.

    ``history`` is what the conversation holds before the turn: the previous prompt and its
    answer. It is ignored where the turn names all its blocks.
    """

    def __init__(self, session: Session, vocabulary: int) -> None:
        self._session = session
        self._vocabulary = vocabulary

    def prompt(self, index: int, history: list[int]) -> list[int]:
        """Return the token ids of turn ``index``; as long as its ``input_tokens`` or longer."""
        turn = self._session.turns[index]
        if turn.blocks is not None:
            return self._from_blocks(turn.blocks, turn.input_tokens)
        prompt = list(history) if history else list(self._shared())
        fresh = max(1, turn.input_tokens - len(prompt))
        prompt.extend(tokens_of(f"{self._session.name}/{index}", fresh, self._vocabulary))
        return prompt

    def _shared(self) -> tuple[int, ...]:
        session = self._session
        return tokens_of(f"{session.scope}/shared", session.shared_tokens, self._vocabulary)

    def _from_blocks(self, blocks: Blocks, length: int) -> list[int]:
        session = self._session
        prompt: list[int] = []
        for block in blocks.tolist():
            prompt.extend(
                tokens_of(f"{session.scope}/{block}", session.block_tokens, self._vocabulary)
            )
        return prompt[:length]


def scaled(session: Session, block_tokens: int) -> Session:
    """Return the session with each block cut to ``block_tokens``: same sharing, shorter prompts.

    Answers shrink by the same factor. Only for sessions whose turns name their blocks.
    """
    factor = block_tokens / session.block_tokens
    turns = tuple(_scaled_turn(turn, block_tokens, factor) for turn in session.turns)
    return Session(session.name, session.scope, block_tokens, turns)


def _scaled_turn(turn: Turn, block_tokens: int, factor: float) -> Turn:
    assert turn.blocks is not None, "a turn without blocks is scaled when it is synthesised"
    ceiling = len(turn.blocks) * block_tokens
    return Turn(
        input_tokens=max(1, min(ceiling, round(turn.input_tokens * factor))),
        output_tokens=max(1, round(turn.output_tokens * factor)),
        gap_s=turn.gap_s,
        blocks=turn.blocks,
    )


def lengths(sessions: list[Session]) -> Iterator[int]:
    """Yield the prompt length of every turn."""
    for session in sessions:
        yield from (turn.input_tokens for turn in session.turns)
