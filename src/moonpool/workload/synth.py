"""Synthesise agentic coding conversations from the published moments of a Codex trace.

The trace itself (610 conversations over SWE-bench Pro) cannot be had; its moments can: about 33
turns, contexts that grow from 12K to 80K tokens by 2,242 tokens a turn, 131 input tokens to one
output token, and gaps between turns of 5.2 s at the median and 81.4 s at the 99th percentile.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, replace

import numpy as np

from moonpool.workload.session import Session, Turn

NORMAL_P99 = 2.326
"""The 99th percentile of the standard normal distribution."""


@dataclass(frozen=True, slots=True)
class Profile:
    """Moments of a workload; lengths in tokens, all of them means.

    ``shared_tokens`` of the first prompt (system prompt and tools) are common to all
    conversations. Gaps between turns are log-normal.
    """

    turns: int = 33
    first_tokens: int = 12_000
    shared_tokens: int = 4_000
    growth_tokens: int = 2_242
    input_to_output: float = 131.0
    gap_p50_s: float = 5.2
    gap_p99_s: float = 81.4

    @property
    def output_tokens(self) -> int:
        """Mean tokens of an answer, from the ratio and the mean prompt."""
        mean_input = self.first_tokens + self.growth_tokens * (self.turns - 1) / 2
        return max(1, round(mean_input / self.input_to_output))


CODEX = Profile()


def shortened(profile: Profile, factor: float, turns: int) -> Profile:
    """Return the profile with lengths ``factor`` times as long, cut after ``turns``.

    The ratio of input to output is kept for the shorter conversation; gaps stay as they are.
    """
    return replace(
        profile,
        turns=turns,
        first_tokens=max(2, round(profile.first_tokens * factor)),
        shared_tokens=round(profile.shared_tokens * factor),
        growth_tokens=max(2, round(profile.growth_tokens * factor)),
    )


def synthesise(profile: Profile, conversations: int, seed: int) -> list[Session]:
    """Return conversations whose lengths and gaps scatter around the profile's moments."""
    random = np.random.default_rng(seed)
    return [_session(profile, f"codex-{seed}-{place}", random) for place in range(conversations)]


def _session(profile: Profile, name: str, random: np.random.Generator) -> Session:
    own_tokens = profile.first_tokens - profile.shared_tokens
    # Gamma with shape 4: positive, skewed to the right, half the mean as standard deviation.
    context = profile.shared_tokens + _around(own_tokens, random)
    turns: list[Turn] = []
    for index in range(profile.turns):
        if index:
            grown = _around(profile.growth_tokens, random)
            context += max(grown, turns[-1].output_tokens + 1)
        output_tokens = _around(profile.output_tokens, random)
        turns.append(Turn(context, output_tokens, _gap(profile, random) if index else 0.0))
    return Session(name, "codex", 1, tuple(turns), profile.shared_tokens)


def _around(mean: float, random: np.random.Generator) -> int:
    return max(1, round(random.gamma(4.0, mean / 4.0)))


def _gap(profile: Profile, random: np.random.Generator) -> float:
    sigma = math.log(profile.gap_p99_s / profile.gap_p50_s) / NORMAL_P99
    return float(random.lognormal(math.log(profile.gap_p50_s), sigma))
