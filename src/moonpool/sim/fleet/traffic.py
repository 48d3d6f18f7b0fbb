"""What is asked of a fleet: conversations in closed loop, or requests at their own times."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass

import numpy as np

from moonpool.sim.events import Clock
from moonpool.sim.fleet.request import Request
from moonpool.workload.session import Session

NUMBER_BITS = 24
SCOPE_KEYS = 1 << 52
Submit = Callable[[Request], None]
Played = tuple[float, Request]
"""A request of a conversation, and the pause before it."""


@dataclass(frozen=True, slots=True)
class Plan:
    """So many agents, each on one conversation after another, in order; a turn comes its pause
    after the answer before. They begin within ``begin_s``. repeat: begin again with other tokens
    when all have been played. think: what pauses are multiplied with."""

    agents: int
    begin_s: float = 60.0
    repeat: bool = False
    seed: int = 0
    think: float = 1.0


class Conversations:
    """Plays conversations that only grow, and begin with the same tokens if their scope says so."""

    def __init__(self, sessions: Sequence[Session], block_tokens: int, plan: Plan) -> None:
        self.drained_s = -1.0
        """When the last conversation was begun."""
        self._sessions, self._block, self._plan = sessions, block_tokens, plan
        self._taken = 0
        self._began: dict[str, int] = {}

    def start(self, clock: Clock, submit: Submit, until_s: float) -> None:
        """Send requests from now on, none after ``until_s``."""
        chance = np.random.default_rng(self._plan.seed)
        for begin_s in np.sort(chance.uniform(0.0, self._plan.begin_s, self._plan.agents)):
            clock.at(float(begin_s), lambda: self._next_session(clock, submit, until_s))

    def _next_session(self, clock: Clock, submit: Submit, until_s: float) -> None:
        if self._taken >= len(self._sessions) and not self._plan.repeat:
            return
        session = self._sessions[self._taken % len(self._sessions)]
        self._taken += 1
        if self._taken == len(self._sessions) and not self._plan.repeat:
            self.drained_s = clock.now_s
        requests = self._requests(session, self._taken)
        self._next_turn(clock, submit, until_s, requests)

    def _next_turn(
        self, clock: Clock, submit: Submit, until_s: float, requests: Iterator[Played]
    ) -> None:
        found = next(requests, None)
        if found is None:
            self._next_session(clock, submit, until_s)
            return
        gap_s, request = found
        request.then = lambda: self._next_turn(clock, submit, until_s, requests)

        def send() -> None:
            if clock.now_s < until_s:
                submit(request)

        clock.after(gap_s * self._plan.think, send)

    def _requests(self, session: Session, number: int) -> Iterator[Played]:
        block, base = self._block, number << NUMBER_BITS
        shared = session.shared_tokens // block
        known = shared if session.scope in self._began else 0
        # What is common to a scope is a run of its own; runs below 0 are those.
        scope = self._began.setdefault(session.scope, -1 - len(self._began))
        keys: list[int] = []
        for index, turn in enumerate(session.turns):
            full = turn.input_tokens // block
            at = len(keys)
            keys += range(at - scope * SCOPE_KEYS, min(full, shared) - scope * SCOPE_KEYS)
            keys += range(base + len(keys), base + full)
            could = min(min(known, full) * block, turn.input_tokens - 1)
            known = max(known, full)
            yield (
                turn.gap_s,
                Request(
                    session.name,
                    index,
                    keys[:full],
                    turn.input_tokens,
                    turn.output_tokens,
                    runs=((scope, min(full, shared)), (number, max(0, full - shared))),
                    could_hit_tokens=could,
                ),
            )
