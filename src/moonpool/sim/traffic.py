"""What is asked of the simulated cluster: conversations in closed loop, or a trace's own times."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from itertools import chain
from pathlib import Path
from typing import Protocol

import numpy as np

from moonpool.sim.events import Clock
from moonpool.sim.job import Job
from moonpool.workload.session import Session
from moonpool.workload.traces import Group, Request, read_trace, sessions_of

GAP_MAX_S = 300.0
SPREAD_S = 3.0
SCOPE_BITS = 40
Submit = Callable[[Job], None]


@dataclass(frozen=True, slots=True)
class Ask:
    """One request of a workload, before it is sent. gap_s: since the answer before."""

    keys: list[int]
    prompt_tokens: int
    output_tokens: int
    gap_s: float = 0.0
    time_s: float = 0.0
    session: str = ""


class Traffic(Protocol):
    """Sends jobs until it is told to stop."""

    block_tokens: int

    def start(self, clock: Clock, submit: Submit, until_s: float) -> None:
        """Send jobs from now on, none after ``until_s``."""


@dataclass(slots=True)
class Agents:
    """So many agents at work, each on one conversation after another, each turn after the answer
    to the last one and the conversation's own pause. They begin somewhere within one.

    Every conversation is played under a name of its own, so none repeats another's prompts.
    """

    conversations: list[list[Ask]]
    block_tokens: int
    agents: int
    seed: int = 0
    begin_s: float = 120.0

    def start(self, clock: Clock, submit: Submit, until_s: float) -> None:
        """See Traffic."""
        chance = np.random.default_rng(self.seed)
        for agent in range(self.agents):
            own = np.random.default_rng((self.seed, agent))
            asks = self._asks(agent, own)
            self._next(clock, submit, until_s, asks, float(chance.uniform(0, self.begin_s)))

    def _asks(self, agent: int, chance: np.random.Generator) -> Iterator[Ask]:
        played = 0
        while True:
            asks = self.conversations[int(chance.integers(len(self.conversations)))]
            scope = (agent * 4096 + played + 1) << SCOPE_BITS
            first = int(chance.integers(len(asks))) if not played else 0
            for ask in asks[first:]:
                keys = [key + scope for key in ask.keys]
                yield replace(ask, keys=keys, session=f"{agent}-{played}")
            played += 1

    def _next(
        self, clock: Clock, submit: Submit, until_s: float, asks: Iterator[Ask], gap_s: float = -1.0
    ) -> None:
        ask = next(asks)

        def send() -> None:
            if clock.now_s < until_s:
                job = _job(ask, clock.now_s)
                job.on_end.append(lambda: self._next(clock, submit, until_s, asks))
                submit(job)

        clock.after(gap_s if gap_s >= 0 else ask.gap_s, send)


@dataclass(slots=True)
class Replay:
    """A trace at its own times, ``speed`` times as fast, from somewhere within it on and around.

    Recorded times are multiples of a few seconds; within those requests are spread by chance.
    """

    asks: list[Ask]
    block_tokens: int
    speed: float
    seed: int = 0

    def start(self, clock: Clock, submit: Submit, until_s: float) -> None:
        """See Traffic."""
        chance = np.random.default_rng(self.seed)
        length = self.asks[-1].time_s + SPREAD_S
        begin = float(chance.uniform(0, length)) if self.seed else 0.0
        for ask in self.asks:
            spread = float(chance.uniform(0, SPREAD_S))
            due_s = ((ask.time_s + spread - begin) % length) / self.speed
            if due_s < until_s:
                clock.at(due_s, lambda ask=ask: submit(_job(ask, clock.now_s)))  # type: ignore[misc]


def _job(ask: Ask, now_s: float) -> Job:
    return Job(ask.session, ask.keys, ask.prompt_tokens, ask.output_tokens, now_s)


def conversations(path: Path, block_tokens: int, context_tokens: int) -> list[list[Ask]]:
    """Return a trace's conversations in blocks of ``block_tokens``, a multiple of its own.

    Turns longer than ``context_tokens`` are left out; pauses are cut at GAP_MAX_S.
    """
    sessions = chain.from_iterable(sessions_of(group) for group in read_trace(path))
    found = [_asks(session, block_tokens, context_tokens) for session in sessions]
    return [asks for asks in found if asks]


def _asks(session: Session, block_tokens: int, context_tokens: int) -> list[Ask]:
    asks = []
    for turn in session.turns:
        if turn.input_tokens + turn.output_tokens > context_tokens or turn.blocks is None:
            continue
        full = turn.input_tokens // block_tokens
        stride = block_tokens // session.block_tokens
        keys = turn.blocks[stride - 1 :: stride][:full].tolist()
        gap_s = min(turn.gap_s, GAP_MAX_S)
        asks.append(Ask(keys, turn.input_tokens, turn.output_tokens, gap_s))
    return asks


def timed(path: Path, context_tokens: int) -> tuple[list[Ask], int]:
    """Return a trace's requests with their times and threads, and how long its blocks are."""
    asks: list[Ask] = []
    block_tokens = 0
    for group in read_trace(path):
        block_tokens = group.block_tokens
        requests = list(group.requests)
        names = _threads(replace(group, requests=iter(requests)))
        asks += [
            _timed(request, block_tokens, names[id(request.blocks)])
            for request in requests
            if request.input_tokens + request.output_tokens <= context_tokens
        ]
    return sorted(asks, key=lambda ask: ask.time_s), block_tokens


def _timed(request: Request, block_tokens: int, session: str) -> Ask:
    keys = request.blocks[: request.input_tokens // block_tokens].tolist()
    output = max(1, request.output_tokens)
    return Ask(keys, request.input_tokens, output, time_s=request.time_s, session=session)


def _threads(group: Group) -> dict[int, str]:
    """Return the conversation of each request, by its block array."""
    return {
        id(turn.blocks): session.name for session in sessions_of(group) for turn in session.turns
    }
