"""Recorded traces as traffic: conversations in closed loop, or requests at their own times."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path

from moonpool.errors import ConfigError
from moonpool.sim.events import Clock
from moonpool.sim.fleet.request import Request
from moonpool.sim.fleet.traffic import Conversations, Plan, Played
from moonpool.workload.session import Session
from moonpool.workload.traces import read_trace, sessions_of


class Names:
    """Names of engines' blocks, which need not fit a trace's: equal as far as all is equal."""

    def __init__(self, trace_tokens: int, block_tokens: int) -> None:
        self._trace, self._block = trace_tokens, block_tokens
        self._known: dict[tuple[int, tuple[int, ...]], int] = {}

    def keys(self, ids: list[int], tokens: int, scope: int = -1) -> list[int]:
        """Return the names of a prompt's full blocks. scope: below 0; equal blocks of different
        ones are not the same."""
        found, before, at = [], scope, 0
        for block in range(1, tokens // self._block + 1):
            upto = min(len(ids), -(-block * self._block // self._trace))
            step = before, tuple(ids[at:upto])
            before, at = self._known.setdefault(step, len(self._known)), upto
            found.append(before)
        return found


class Ideal:
    """What a cache that forgets nothing would have of each prompt, in blocks."""

    def __init__(self) -> None:
        self._seen: set[int] = set()

    def of(self, keys: list[int]) -> int:
        """Return how many leading blocks were asked for before, and note all of them."""
        hits = next((at for at, key in enumerate(keys) if key not in self._seen), len(keys))
        self._seen.update(keys[hits:])
        return hits


class Timed:
    """Requests at their own times."""

    def __init__(self, requests: list[tuple[float, Request]]) -> None:
        self._requests = requests

    def start(self, clock: Clock, submit: Callable[[Request], None], until_s: float) -> None:
        """Send them, none after ``until_s``."""
        for at, request in self._requests:
            if at < until_s:
                clock.at(at, lambda request=request: submit(request))  # type: ignore[misc]


class Recorded(Conversations):
    """Plays a trace's conversations, whose turns name all of their blocks."""

    def __init__(self, sessions: list[Session], block_tokens: int, plan: Plan) -> None:
        super().__init__(sessions, block_tokens, plan)
        self._names = Names(sessions[0].block_tokens, block_tokens)
        self._ideal = Ideal()
        self._scopes: dict[str, int] = {}

    def _requests(self, session: Session, number: int) -> Iterator[Played]:
        scope = self._scopes.setdefault(session.scope, -2 - len(self._scopes))
        for index, turn in enumerate(session.turns):
            assert turn.blocks is not None, "a recorded turn names its blocks"
            keys = self._names.keys(turn.blocks.tolist(), turn.input_tokens, scope)
            could = min(self._ideal.of(keys) * self._block, turn.input_tokens - 1)
            request = Request(
                session.name,
                index,
                keys,
                turn.input_tokens,
                turn.output_tokens,
                could_hit_tokens=could,
            )
            yield turn.gap_s, request


def recorded(
    path: Path, block_tokens: int, plan: Plan, context_tokens: int, speed: float = 1.0
) -> Recorded | Timed:
    """Return a trace's traffic: closed loop where it knows conversations, else its own times,
    ``speed`` times as fast. Longer prompts than ``context_tokens`` are left out."""
    groups = read_trace(path)
    first = next(groups)
    if first.conversation:
        sessions = [*sessions_of(first)]
        for group in groups:
            sessions += sessions_of(group)
        short = [
            Session(
                each.name,
                each.scope,
                each.block_tokens,
                tuple(t for t in each.turns if t.input_tokens + t.output_tokens <= context_tokens),
            )
            for each in sessions
        ]
        kept = [each for each in short if each.turns]
        if not kept:
            raise ConfigError(f"trace: {path}: no request of {context_tokens} tokens or fewer")
        return Recorded(kept, block_tokens, plan)
    names, ideal = Names(first.block_tokens, block_tokens), Ideal()
    found = []
    for asked in first.requests:
        if asked.input_tokens + asked.output_tokens > context_tokens:
            continue
        keys = names.keys(asked.blocks.tolist(), asked.input_tokens)
        could = min(ideal.of(keys) * block_tokens, asked.input_tokens - 1)
        tokens = asked.input_tokens, max(1, asked.output_tokens)
        request = Request(asked.session, 0, keys, *tokens, could_hit_tokens=could)
        found.append((asked.time_s / speed, request))
    return Timed(found)
