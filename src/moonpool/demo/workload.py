"""What the demonstration replays: synthesised conversations, or a trace cut to a CPU's size."""

from __future__ import annotations

from dataclasses import dataclass, replace
from itertools import chain, islice
from pathlib import Path

from moonpool.errors import ConfigError
from moonpool.workload.session import Session, lengths, scaled
from moonpool.workload.synth import CODEX, shortened, synthesise
from moonpool.workload.traces import read_trace, sessions_of

TURNS_MIN = 3
"""Conversations of a trace that are shorter show nothing of reuse and are passed over."""
CANDIDATES = 4
"""So many times more conversations than are wanted are looked at."""
TYPICAL_SHARE = 0.6


@dataclass(frozen=True, slots=True)
class Size:
    """How much is replayed. ``factor`` shortens synthesised conversations; ``context_tokens`` is
    the longest prompt that a trace is cut to. Pauses between turns are the trace's own, cut at
    ``gap_limit_s``, so that a run ends. Conversations begin ``start_spacing_s`` apart: agents do
    not all start at once."""

    conversations: int = 9
    turns: int = 8
    factor: float = 0.2
    context_tokens: int = 7_000
    gap_limit_s: float = 15.0
    start_spacing_s: float = 1.0


FULL = Size()
QUICK = Size(
    conversations=4,
    turns=3,
    factor=0.08,
    context_tokens=1_500,
    gap_limit_s=0.5,
    start_spacing_s=0.25,
)


@dataclass(frozen=True, slots=True)
class Workload:
    """Conversations and one line that says what they are."""

    sessions: list[Session]
    about: str
    start_spacing_s: float

    @property
    def requests(self) -> int:
        """How many requests the conversations make."""
        return sum(len(session.turns) for session in self.sessions)

    @property
    def context_tokens(self) -> int:
        """Tokens of the longest prompt with its answer."""
        turns = chain.from_iterable(session.turns for session in self.sessions)
        return max(turn.input_tokens + turn.output_tokens for turn in turns)

    @property
    def working_set_tokens(self) -> int:
        """Tokens of all conversations at their ends: what a cache must hold to lose nothing."""
        return sum(
            max(turn.input_tokens + turn.output_tokens for turn in session.turns)
            for session in self.sessions
        )


def synthetic(size: Size, seed: int) -> Workload:
    """Return conversations with the moments of the Codex trace, ``size.factor`` times as long."""
    short = shortened(CODEX, size.factor, size.turns)
    sessions = synthesise(short, size.conversations, seed)
    sessions = [_with_gaps(session, size) for session in sessions]
    about = _about(f"Codex-like, lengths x {size.factor:g}", sessions)
    return Workload(sessions, about, size.start_spacing_s)


def from_trace(path: Path, size: Size) -> Workload:
    """Return conversations of a trace, cut to ``size``; raise ConfigError.

    Each of the trace's blocks becomes a smaller one, so that what was shared stays shared. It is
    cut so far that the median conversation ends well within ``size.context_tokens``; those that
    would still be longer are passed over.
    """
    every = chain.from_iterable(sessions_of(group) for group in read_trace(path))
    long_enough = (session for session in every if len(session.turns) >= TURNS_MIN)
    cut = [
        replace(session, turns=session.turns[: size.turns])
        for session in islice(long_enough, CANDIDATES * size.conversations)
    ]
    if not cut:
        raise ConfigError(f"trace: {path} has no conversation of {TURNS_MIN} turns or more")
    longest = sorted(max(lengths([session])) for session in cut)
    typical, before = longest[len(longest) // 2], cut[0].block_tokens
    after = max(1, min(before, int(before * TYPICAL_SHARE * size.context_tokens / typical)))
    fitting = (
        session
        for session in (scaled(session, after) for session in cut)
        if max(lengths([session])) <= size.context_tokens
    )
    chosen = [_with_gaps(session, size) for session in islice(fitting, size.conversations)]
    if not chosen:
        raise ConfigError(f"trace: {path}: prompts of {typical} tokens cannot be cut to a CPU")
    source = f"{path.name}, blocks of {before} tokens cut to {after}"
    return Workload(chosen, _about(source, chosen), size.start_spacing_s)


def _with_gaps(session: Session, size: Size) -> Session:
    turns = tuple(replace(turn, gap_s=min(size.gap_limit_s, turn.gap_s)) for turn in session.turns)
    return replace(session, turns=turns)


def _about(source: str, sessions: list[Session]) -> str:
    inputs = list(lengths(sessions))
    firsts = sum(session.turns[0].input_tokens for session in sessions) / len(sessions)
    lasts = sum(session.turns[-1].input_tokens for session in sessions) / len(sessions)
    outputs = sum(session.output_tokens for session in sessions)
    return (
        f"{source}: {len(sessions)} conversations, {len(inputs)} requests, prompts from "
        f"{firsts:,.0f} to {lasts:,.0f} tokens, {sum(inputs):,} prompt tokens in all, "
        f"{outputs / len(inputs):.0f} output tokens a request"
    )
