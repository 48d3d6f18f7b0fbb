"""What a trace is like: lengths, growth, pauses, reuse, and what a cache would have to hold."""

from __future__ import annotations

import heapq
from array import array
from collections import OrderedDict
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field

import numpy as np

from moonpool.workload.request import Group, Request
from moonpool.workload.reuse import Distances, Touches
from moonpool.workload.spread import Spread, spread_of
from moonpool.workload.threads import Threads

SESSIONS_MAX = 1 << 21
"""Conversations that may go on; the one idle for longest counts as ended beyond."""
POINTS = 200
TURNS_SHOWN = 400
SIZES = 64


@dataclass(frozen=True, slots=True)
class Stats:
    """Figures of a trace; lengths in tokens, times in seconds.

    hit_tokens: in blocks seen before in their scope, had nothing ever been forgotten; of requests
    whose contents are known, as known_input_tokens. reuse: percentiles of the distances, in
    tokens. curve: (size of a pool in tokens, hits in it as a share of the input tokens).
    working_set: (time, distinct tokens so far). by_turn: for the n-th turn (from 1) how many
    conversations have it and the spread of their prompts.
    """

    requests: int
    sessions: int
    input_tokens: int
    output_tokens: int
    known_input_tokens: int
    hit_tokens: int
    duration_s: float
    prompt: Spread
    answer: Spread
    turns: Spread
    growth: Spread
    pause_s: Spread
    distinct_tokens: int
    block_tokens: int
    reuse: dict[str, int] = field(default_factory=dict)
    curve: list[tuple[int, float]] = field(default_factory=list)
    working_set: list[tuple[float, int]] = field(default_factory=list)
    by_turn: list[tuple[int, int, Spread]] = field(default_factory=list)

    @property
    def hit_rate(self) -> float | None:
        """Hits as a share of the input; None where the trace does not say what prompts hold."""
        return self.hit_tokens / self.known_input_tokens if self.known_input_tokens else None

    @property
    def input_to_output(self) -> float | None:
        """Input tokens to one output token."""
        return self.input_tokens / self.output_tokens if self.output_tokens else None


@dataclass(slots=True)
class _Open:
    """A conversation that may go on."""

    turns: int = 0
    context_tokens: int = 0
    time_s: float = 0.0


def stats_of(groups: Iterable[Group]) -> Stats:
    """Count a trace, its requests in order of time.

    A trace of one group is streamed; conversations are read whole, to be put in order.
    """
    counter = _Counter()
    for group, request in by_time(groups):
        counter.add(group, request)
    return counter.stats()


def by_time(groups: Iterable[Group]) -> Iterator[tuple[Group, Request]]:
    """Yield a trace's requests in order of time; one of a single group is streamed."""
    streams = []
    for group in groups:
        requests = group.requests
        if group.conversation:
            requests = iter(sorted(requests, key=lambda each: each.time_s))
        streams.append(_with(group, requests))
    if len(streams) == 1:
        return streams[0]
    return heapq.merge(*streams, key=lambda pair: pair[1].time_s)


def _with(group: Group, requests: Iterable[Request]) -> Iterator[tuple[Group, Request]]:
    return ((group, request) for request in requests)


class _Counter:
    def __init__(self) -> None:
        self._touches = Touches()
        self._threads: dict[str, Threads] = {}
        self._open: OrderedDict[str, _Open] = OrderedDict()
        self._prompts, self._answers, self._turns = array("q"), array("q"), array("q")
        self._growth, self._pauses = array("q"), array("d")
        self._times, self._distinct = array("d"), array("q")
        self._by_turn: list[array[int]] = []
        self._known = self._hits = self._block_tokens = self._sessions = 0

    def add(self, group: Group, request: Request) -> None:
        """Count a request, not earlier than those before it."""
        self._block_tokens = max(self._block_tokens, group.block_tokens)
        self._prompts.append(request.input_tokens)
        self._answers.append(request.output_tokens)
        self._times.append(request.time_s)
        if request.known:
            head = self._touches.add(group.scope, request.blocks.tolist())
            self._known += request.input_tokens
            self._hits += min(head * group.block_tokens, request.input_tokens)
        self._distinct.append(self._touches.distinct)
        self._converse(group, request)

    def _converse(self, group: Group, request: Request) -> None:
        name = self._name_of(group, request)
        session = self._open.get(name)
        if session is None:
            self._sessions += 1
            session = self._open[name] = _Open()
            if len(self._open) > SESSIONS_MAX:
                self._turns.append(self._open.popitem(last=False)[1].turns)
        else:
            self._growth.append(request.input_tokens - session.context_tokens)
            gap_s = request.time_s - session.time_s
            pause_s = gap_s if request.think_s is None else request.think_s
            self._pauses.append(max(0.0, pause_s))
        session.turns += 1
        session.context_tokens, session.time_s = request.input_tokens, request.time_s
        self._open.move_to_end(name)
        if session.turns <= TURNS_SHOWN:
            if session.turns > len(self._by_turn):
                self._by_turn.append(array("q"))
            self._by_turn[session.turns - 1].append(request.input_tokens)

    def _name_of(self, group: Group, request: Request) -> str:
        if request.session or not group.conversation:
            if group.scope not in self._threads:
                self._threads[group.scope] = Threads(group.block_tokens)
            return f"{group.scope}/{self._threads[group.scope].name_of(request)}"
        return group.scope

    def stats(self) -> Stats:
        """Return the figures."""
        turns = array("q", self._turns)
        turns.extend(each.turns for each in self._open.values())
        distances, block = self._touches.distances(), self._block_tokens
        distinct = self._touches.distinct * block
        times = np.asarray(self._times)
        return Stats(
            requests=len(self._prompts),
            sessions=self._sessions,
            input_tokens=sum(self._prompts),
            output_tokens=sum(self._answers),
            known_input_tokens=self._known,
            hit_tokens=self._hits,
            duration_s=float(times.max() - times.min()) if len(times) else 0.0,
            prompt=spread_of(self._prompts),
            answer=spread_of(self._answers),
            turns=spread_of(turns),
            growth=spread_of(self._growth),
            pause_s=spread_of(self._pauses),
            distinct_tokens=distinct,
            block_tokens=block,
            reuse={f"p{q}": distances.quantile(q / 100) * block for q in (50, 90, 99)},
            curve=_curve(distances, distinct, block, self._known),
            working_set=self._working_set(times),
            by_turn=[(n, len(each), spread_of(each)) for n, each in enumerate(self._by_turn, 1)],
        )

    def _working_set(self, times: np.ndarray) -> list[tuple[float, int]]:
        if not len(times):
            return []
        places = np.unique(np.linspace(0, len(times) - 1, POINTS).astype(int))
        return [(float(times[n]), self._distinct[n] * self._block_tokens) for n in places]


def _curve(
    distances: Distances, distinct_tokens: int, block: int, input_tokens: int
) -> list[tuple[int, float]]:
    """Return hit rates at sizes from a thousandth of what there is to all of it."""
    if not input_tokens:
        return []
    blocks = distinct_tokens // block
    sizes = sorted({max(1, int(blocks * 10 ** (3 * n / SIZES - 3))) for n in range(SIZES + 1)})
    return [(size * block, distances.hits(size) * block / input_tokens) for size in sizes]
