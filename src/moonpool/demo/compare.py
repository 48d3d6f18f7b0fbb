"""Arithmetic of the comparison: percentiles, hit rates, and whether two answers are the same."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

from moonpool.demo.engine import CacheCounters
from moonpool.workload.replay import Answer, Choice, Run

NEAR_TIE_LOGPROB = 1e-3
"""Two candidates this close may change places when sums are rounded in another order."""


@dataclass(frozen=True, slots=True)
class Summary:
    """One run in figures. Rates are shares of the prompt tokens; times are seconds.

    ``hit_of_possible`` is the share of ``could_hit`` tokens that were not computed again.
    """

    requests: int
    errors: int
    prompt_tokens: int
    output_tokens: int
    hit_rate: float
    local_hit_rate: float
    pool_hit_rate: float
    could_hit_rate: float
    hit_of_possible: float
    ttft_p50_s: float
    ttft_p90_s: float
    ttft_p99_s: float
    e2e_p50_s: float
    output_tokens_per_s: float
    wall_s: float
    preemptions: int


@dataclass(frozen=True, slots=True)
class Difference:
    """Where the answers of two runs to the same prompt part, and how close the candidates were.

    ``logprob_gap`` is the larger of both runs' distances between the two candidates; infinite
    where a run did not have both among its two best.
    """

    session: str
    turn: int
    position: int
    token: int
    other_token: int
    logprob_gap: float

    @property
    def near_tie(self) -> bool:
        """Whether rounding alone explains the difference."""
        return self.logprob_gap <= NEAR_TIE_LOGPROB


@dataclass(frozen=True, slots=True)
class Comparison:
    """The answers of two runs side by side. ``missing`` were answered in one run only."""

    identical: int
    differences: tuple[Difference, ...]
    missing: int

    @property
    def near_ties(self) -> int:
        """Differences that rounding explains."""
        return sum(difference.near_tie for difference in self.differences)

    @property
    def same(self) -> bool:
        """Whether every answer is the same, near ties aside."""
        return not self.missing and self.near_ties == len(self.differences)


def percentile(values: Sequence[float], share: float) -> float:
    """Return the smallest value that at least ``share`` of the values do not exceed (nearest
    rank); not a number for no values."""
    if not values:
        return math.nan
    return sorted(values)[max(0, math.ceil(share * len(values)) - 1)]


def summarise(run: Run, counters: CacheCounters) -> Summary:
    """Return the figures of a run and of its engines' counters over the same time."""
    good = [answer for answer in run.answers if not answer.error]
    ttfts = [answer.ttft_s for answer in good]
    prompt_tokens = sum(answer.prompt_tokens for answer in good)
    output_tokens = sum(len(answer.choices) for answer in good)
    could_hit = sum(answer.could_hit_tokens for answer in good)
    did_hit = sum(min(answer.cached_tokens, answer.could_hit_tokens) for answer in good)
    return Summary(
        requests=len(run.answers),
        errors=len(run.answers) - len(good),
        prompt_tokens=prompt_tokens,
        output_tokens=output_tokens,
        hit_rate=_share(counters.local_hits + counters.pool_hits, counters.queries),
        local_hit_rate=_share(counters.local_hits, counters.queries),
        pool_hit_rate=_share(counters.pool_hits, counters.queries),
        could_hit_rate=_share(could_hit, prompt_tokens),
        hit_of_possible=_share(did_hit, could_hit),
        ttft_p50_s=percentile(ttfts, 0.5),
        ttft_p90_s=percentile(ttfts, 0.9),
        ttft_p99_s=percentile(ttfts, 0.99),
        e2e_p50_s=percentile([answer.e2e_s for answer in good], 0.5),
        output_tokens_per_s=_share(output_tokens, run.wall_s),
        wall_s=run.wall_s,
        preemptions=round(counters.preemptions),
    )


def _share(part: float, whole: float) -> float:
    return part / whole if whole else 0.0


def compare(run: Run, other: Run) -> Comparison:
    """Compare two runs of the same prompts, answer by answer."""
    answers = {answer.key: answer for answer in run.answers if not answer.error}
    others = {answer.key: answer for answer in other.answers if not answer.error}
    both = answers.keys() & others.keys()
    found = [first_difference(answers[key], others[key]) for key in sorted(both)]
    differences = tuple(difference for difference in found if difference is not None)
    missing = len({answer.key for answer in (*run.answers, *other.answers)}) - len(both)
    return Comparison(len(both) - len(differences), differences, missing)


def first_difference(answer: Answer, other: Answer) -> Difference | None:
    """Return where two answers part, None when they are the same."""
    for position, (mine, theirs) in enumerate(zip(answer.choices, other.choices, strict=False)):
        if mine.token != theirs.token:
            gap = max(_gap(mine, theirs.token), _gap(theirs, mine.token))
            return Difference(*answer.key, position, mine.token, theirs.token, gap)
    if len(answer.choices) != len(other.choices):
        shorter = min(len(answer.choices), len(other.choices))
        return Difference(*answer.key, shorter, -1, -1, math.inf)
    return None


def _gap(choice: Choice, candidate: int) -> float:
    if choice.rival != candidate:
        return math.inf
    return abs(choice.logprob - choice.rival_logprob)
