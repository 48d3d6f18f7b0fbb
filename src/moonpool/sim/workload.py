"""A trace as traffic of any intensity: so many agents, or its own times, faster or slower."""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property
from pathlib import Path

from moonpool.errors import ConfigError
from moonpool.sim.traffic import Agents, Ask, Replay, Traffic, conversations, timed
from moonpool.workload.traces import read_trace

AGENTS_WARM_S, AGENTS_LENGTH_S = 600.0, 1200.0
WARM_SHARE = 0.25
OBJECT_TOKENS = 256


@dataclass(slots=True, eq=False)
class Conversations:
    """A trace of conversations, played by ``level`` agents at a time, in closed loop."""

    name: str
    block_tokens: int
    asks: list[list[Ask]]
    first_level = 32.0
    unit = "agents"

    def traffic(self, level: float, seed: int) -> Traffic:
        """Return the traffic of so many agents."""
        return Agents(self.asks, self.block_tokens, round(level), seed)

    def window(self, level: float) -> tuple[float, float]:
        """Return how long to warm up, and how long to measure, in seconds."""
        return AGENTS_WARM_S, AGENTS_LENGTH_S


@dataclass(eq=False)
class Timed:
    """A trace of requests with times, replayed ``level`` times as fast, in open loop."""

    name: str
    block_tokens: int
    asks: list[Ask]
    first_level = 1.0
    unit = "times the trace's pace"

    @cached_property
    def length_s(self) -> float:
        """How long the trace is."""
        return self.asks[-1].time_s

    def traffic(self, level: float, seed: int) -> Traffic:
        """Return the trace at so many times its pace."""
        return Replay(self.asks, self.block_tokens, level, seed)

    def window(self, level: float) -> tuple[float, float]:
        """Return how long to warm up, and how long to measure, in seconds."""
        length_s = self.length_s / level
        return WARM_SHARE * length_s, (1 - WARM_SHARE) * length_s


SimWorkload = Conversations | Timed


def read(path: Path, context_tokens: int, block_tokens: int = OBJECT_TOKENS) -> SimWorkload:
    """Return a trace's requests up to ``context_tokens``; raise ConfigError.

    block_tokens: how finely conversations are compared; a multiple of the trace's own blocks.
    """
    name = path.name.partition(".")[0]
    first = next(read_trace(path))
    if not first.conversation:
        asks, own_tokens = timed(path, context_tokens)
        found: SimWorkload = Timed(name, own_tokens, asks)
    else:
        stride = max(1, block_tokens // first.block_tokens)
        block_tokens = stride * first.block_tokens
        found = Conversations(name, block_tokens, conversations(path, block_tokens, context_tokens))
    if not found.asks:
        raise ConfigError(f"trace: {path}: no request of {context_tokens} tokens or fewer")
    return found
