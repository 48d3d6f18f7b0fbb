"""The Codex trace over SWE-bench Pro, made again from its published moments.

610 conversations of about 33 turns, contexts that grow from 12,000 to 80,000 tokens (the longest
beyond 180,000) by 2,242 a turn, 131 input tokens to one output token, pauses of 5.2 s at the median
and 81.4 s at the 99th percentile, an ideal hit rate of 94.2 %. The moments do not fit one another
exactly (12,000 + 32 x 2,242 is 83,700): each is met within 3 %.
"""

from __future__ import annotations

import math
from statistics import NormalDist

import numpy as np
from numpy.typing import NDArray

from moonpool.workload.session import Session, Turn
from moonpool.workload.synth import CODEX, NORMAL_P99, Profile

CONVERSATIONS = 610
TURNS, GROWTH_TOKENS = 32.6, 2_200
TURNS_SHAPE, LENGTH_SHAPE = 6.0, 4.0
"""Of gamma distributions: with 4 the standard deviation is half of the mean."""

Values = NDArray[np.float64]


def codex(conversations: int, seed: int) -> list[Session]:
    """Return so many conversations (0: all 610), the same ones for the same seed."""
    random = np.random.default_rng(seed)
    count = conversations or CONVERSATIONS
    turns = np.maximum(2, np.round(_around(TURNS, TURNS_SHAPE, count, random))).astype(int)
    total = int(turns.sum())
    own = _around(CODEX.first_tokens - CODEX.shared_tokens, LENGTH_SHAPE, count, random)
    grown = _around(GROWTH_TOKENS, LENGTH_SHAPE, total, random)
    answers = _around(1.0, LENGTH_SHAPE, total, random)
    begins = np.cumsum(turns) - turns
    grown[begins] = own + CODEX.shared_tokens
    contexts = [np.cumsum(part) for part in np.split(grown, begins[1:])]
    answers *= np.concatenate(contexts).sum() / CODEX.input_to_output / answers.sum()
    pauses = _pauses(CODEX, total, random)
    return [
        _session(f"codex-{seed}-{n}", context, answers[at:], pauses[at:])
        for n, (at, context) in enumerate(zip(begins, contexts, strict=True))
    ]


def _session(name: str, contexts: Values, answers: Values, pauses: Values) -> Session:
    turns: list[Turn] = []
    least = 1
    for index, context in enumerate(contexts):
        input_tokens = max(least, round(float(context)))
        output_tokens = max(1, round(float(answers[index])))
        turns.append(Turn(input_tokens, output_tokens, float(pauses[index]) if index else 0.0))
        least = input_tokens + output_tokens + 1
    return Session(name, "codex", 1, tuple(turns), CODEX.shared_tokens)


def _around(mean: float, shape: float, count: int, random: np.random.Generator) -> Values:
    """Return gamma distributed values that have exactly this mean."""
    found = random.gamma(shape, 1.0 / shape, count)
    scaled: Values = found * (mean / found.mean())
    return scaled


def _pauses(profile: Profile, count: int, random: np.random.Generator) -> Values:
    """Return log-normal values, one in each of as many equally likely ranges: a sample of this
    size would miss the 99th percentile by some percent."""
    sigma = math.log(profile.gap_p99_s / profile.gap_p50_s) / NORMAL_P99
    shares = (random.permutation(count) + random.uniform(0.0, 1.0, count)) / count
    normal = NormalDist(math.log(profile.gap_p50_s), sigma)
    return np.exp([normal.inv_cdf(min(max(each, 1e-9), 1 - 1e-9)) for each in shares])
