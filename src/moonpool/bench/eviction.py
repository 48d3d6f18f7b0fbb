"""Hit rates of eviction policies on traces, beside the best that is possible.

The core's policies serve a trace's requests one after the other, in a pool of so many objects: each
request reads what is there of its prefix and puts the rest, in order. No bytes are moved, no time
passes, and nothing is evicted ahead of need.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any, Final

from moonpool.bench.eviction_load import Load, read_load
from moonpool.bench.eviction_pool import Pool
from moonpool.bench.optimum import optimum
from moonpool.core.eviction import DEFAULT, POLICIES
from moonpool.core.eviction.cost import DEPTH_EQUAL
from moonpool.core.sessions import Sessions

OPTIMUM: Final = "optimum"
SESSIONS: Final = "sessions"
"""The default policy, told when a conversation has ended."""
NAMES: Final = (*POLICIES, SESSIONS, OPTIMUM)


@dataclass(frozen=True, slots=True)
class Point:
    """What one policy hit on one trace in a pool of ``capacity`` objects.

    ``behind_gap_tokens`` were in the pool, but not reached: something before them was evicted.
    ``seconds_saved`` is the share of all time to compute, in which a token costs more the further
    behind it stands (see the policy ``cost``).
    """

    trace: str
    policy: str
    share: float
    capacity: int
    input_tokens: int
    hit_tokens: int
    behind_gap_tokens: int
    seconds_saved: float

    @property
    def hit_rate(self) -> float:
        """The share of input tokens that needed no computing."""
        return self.hit_tokens / self.input_tokens


@dataclass(frozen=True, slots=True)
class TraceFacts:
    """A trace, and what is hit where nothing is ever evicted."""

    trace: str
    requests: int
    objects: int
    accesses: int
    tokens_each: int
    input_tokens: int
    ceiling: float


@dataclass(frozen=True, slots=True)
class Report:
    """All points, trace by trace."""

    traces: list[TraceFacts]
    points: list[Point]

    def plain(self) -> dict[str, Any]:
        """Return it as JSON has it."""
        points = [{**asdict(each), "hit_rate": each.hit_rate} for each in self.points]
        return {"traces": [asdict(each) for each in self.traces], "points": points}


def run(
    paths: list[Path],
    policies: list[str],
    shares: list[float],
    say: Callable[[str], None] = lambda _text: None,
) -> Report:
    """Measure policies (of NAMES) in pools of these shares of each trace's objects; SESSIONS only
    where a trace knows conversations."""
    traces: list[TraceFacts] = []
    points: list[Point] = []
    for path in paths:
        load = read_load(path)
        facts = _facts(load)
        traces.append(facts)
        say(f"{load.name}: {facts.requests:,} requests, {facts.objects:,} objects")
        for policy in policies:
            if policy == SESSIONS and not load.knows_conversations:
                continue
            for share in shares:
                points.append(measure(load, policy, share))
                say(f"  {policy}, {share:.2%}: {points[-1].hit_rate:.2%}")
    return Report(traces, points)


def measure(load: Load, policy: str, share: float) -> Point:
    """Serve a trace under one policy in a pool of a share of its objects."""
    capacity = max(1, round(len(load.keys) * share))
    behind = 0
    if policy == OPTIMUM:
        hits = optimum([ask.objects for ask in load.asks], len(load.keys), capacity)
    else:
        told = Sessions() if policy == SESSIONS else None
        pool = Pool(load, DEFAULT if told is not None else policy, capacity, sessions=told)
        hits = [pool.request(ask) for ask in load.asks]
        behind = pool.behind_gap
    return _point(load, policy, (share, capacity), hits, behind)


def _point(load: Load, policy: str, size: tuple[float, int], hits: list[int], behind: int) -> Point:
    each = load.tokens_each
    tokens = sum(
        min(found * each, ask.input_tokens) for found, ask in zip(hits, load.asks, strict=True)
    )
    saved = sum(_seconds(found) for found in hits)
    total = sum(_seconds(len(ask.objects)) for ask in load.asks)
    share, capacity = size
    rest = behind * each, saved / total
    return Point(load.name, policy, share, capacity, load.input_tokens, tokens, *rest)


def _seconds(objects: int) -> float:
    """Return how long the first objects of a prefix take to compute, relatively."""
    return objects + objects * (objects - 1) / (2 * DEPTH_EQUAL)


def _facts(load: Load) -> TraceFacts:
    seen: set[int] = set()
    hits = 0
    for ask in load.asks:
        found = next((i for i, each in enumerate(ask.objects) if each not in seen), None)
        found = len(ask.objects) if found is None else found
        hits += min(found * load.tokens_each, ask.input_tokens)
        seen.update(ask.objects)
    return TraceFacts(
        load.name,
        len(load.asks),
        len(load.keys),
        load.accesses,
        load.tokens_each,
        load.input_tokens,
        hits / load.input_tokens,
    )
