"""Workloads made here, by name: what ``moonpool trace synth`` writes."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace

import numpy as np

from moonpool.workload.codex import codex
from moonpool.workload.request import Group, Request
from moonpool.workload.session import Session, Turn
from moonpool.workload.synth import CODEX, synthesise

BLOCK_TOKENS = 64
FORK_AGENTS = 43
FORK_TOKENS = 40_000
ARRIVALS_S = 1.0
SECONDS_A_TOKEN = 0.02
"""What an answer is taken to last where a workload is written with times of its own."""


@dataclass(frozen=True, slots=True)
class Scaling:
    """The workload of the published scaling run: conversations that differ in nothing but their
    tokens. Lengths in tokens."""

    common_tokens: int = 20_000
    first_tokens: int = 10_000
    turn_tokens: int = 2_048
    output_tokens: int = 900
    turns: int = 30


def scaling(conversations: int, seed: int, shape: Scaling | None = None) -> list[Session]:
    """Return the conversations of the scaling run: 75 for each 12 GPUs."""
    shape = shape or Scaling()
    turns = []
    context = shape.common_tokens + shape.first_tokens
    for _ in range(shape.turns):
        turns.append(Turn(context, shape.output_tokens))
        context += shape.output_tokens + shape.turn_tokens
    return [
        Session(f"scaling-{seed}-{n}", "scaling", 1, tuple(turns), shape.common_tokens)
        for n in range(conversations or 75)
    ]


def chat(conversations: int, seed: int) -> list[Session]:
    """Return short chats of people: a few turns of some hundred tokens, long pauses."""
    random = np.random.default_rng(seed)
    found = []
    for n in range(conversations or 1_000):
        turns: list[Turn] = []
        context = 500
        for turn in range(1 + int(random.geometric(0.28))):
            context += int(random.lognormal(4.6, 1.0)) + 1
            answer = int(random.lognormal(5.4, 0.7)) + 1
            turns.append(Turn(context, answer, float(random.lognormal(3.4, 0.9)) if turn else 0.0))
            context += answer
        found.append(Session(f"chat-{seed}-{n}", "chat", 1, tuple(turns), 500))
    return found


def forks(conversations: int, seed: int) -> list[Session]:
    """Return agents that each hand the same 40,000 tokens to 43 subagents at once."""
    found = []
    for n in range(conversations or 4):
        scope = f"forks-{seed}-{n}"
        parent = Session(scope, scope, 1, (Turn(FORK_TOKENS, 600),), FORK_TOKENS)
        found.append(parent)
        for index, each in enumerate(synthesise(CODEX, FORK_AGENTS, seed * 1_000 + n)):
            turns = [
                replace(turn, input_tokens=turn.input_tokens - CODEX.shared_tokens + FORK_TOKENS)
                for turn in each.turns[:6]
            ]
            turns[0] = replace(turns[0], gap_s=600 * SECONDS_A_TOKEN)
            found.append(Session(f"{scope}/{index}", scope, 1, tuple(turns), FORK_TOKENS))
    return found


Maker = Callable[[int, int], list[Session]]
"""Conversations (0: as many as usual) and a seed to a workload."""
WORKLOADS: dict[str, Maker] = {"codex": codex, "scaling": scaling, "chat": chat, "forks": forks}


def groups_of(
    sessions: list[Session], seed: int, block_tokens: int = BLOCK_TOKENS
) -> Iterator[Group]:
    """Yield the conversations as groups of a trace, one after the other.

    Conversations of one scope begin within ARRIVALS_S of one another on average; a turn comes its
    gap after an answer of SECONDS_A_TOKEN a token. Full blocks are named, and those that every
    conversation of a scope begins with have the same names.
    """
    random = np.random.default_rng(seed)
    begin_s = 0.0
    for place, session in enumerate(sessions):
        begin_s += float(random.exponential(ARRIVALS_S))
        requests = _requests(session, place + 1, begin_s, block_tokens)
        yield Group(session.scope, block_tokens, requests, conversation=False)


def _requests(
    session: Session, number: int, begin_s: float, block_tokens: int
) -> Iterator[Request]:
    """A conversation only grows, so a block is named by who it is of and where it stands."""
    now_s = begin_s
    shared = session.shared_tokens // block_tokens
    for index, turn in enumerate(session.turns):
        now_s += turn.gap_s
        think_s = turn.gap_s if index else None
        blocks = np.arange(-(-turn.input_tokens // block_tokens), dtype=np.int64)
        blocks[shared:] += number << 32
        # One that is not full yet is not the one that it will be.
        if turn.input_tokens % block_tokens:
            blocks[-1] = -(number << 32) - turn.input_tokens
        yield Request(now_s, turn.input_tokens, turn.output_tokens, blocks, think_s, session.name)
        now_s += turn.output_tokens * SECONDS_A_TOKEN
