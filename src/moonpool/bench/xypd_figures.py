"""What a run of many requests comes to."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from itertools import pairwise

from moonpool.demo.compare import percentile
from moonpool.workload.replay import Answer, Run


@dataclass(frozen=True, slots=True)
class Spread:
    """Percentiles, seconds; not a number where there was nothing."""

    p50: float
    p90: float
    p99: float


@dataclass(frozen=True, slots=True)
class Figures:
    """One run. ttft: to the first token. tpot: time for each token after it, of a request. itl:
    between two tokens. e2e: to the last token. hit_rate: share of prompt tokens that the serving
    engine did not compute; could_hit_rate: that one cache for all would have had."""

    requests: int
    errors: int
    wall_s: float
    prompt_tokens: int
    output_tokens: int
    requests_per_s: float
    output_tokens_per_s: float
    total_tokens_per_s: float
    hit_rate: float
    could_hit_rate: float
    ttft_s: Spread
    tpot_s: Spread
    itl_s: Spread
    e2e_s: Spread


def figures(run: Run) -> Figures:
    """Return the figures of a run."""
    good = [answer for answer in run.answers if not answer.error]
    prompt = sum(answer.prompt_tokens for answer in good)
    output = sum(len(answer.choices) for answer in good)
    return Figures(
        requests=len(run.answers),
        errors=len(run.answers) - len(good),
        wall_s=run.wall_s,
        prompt_tokens=prompt,
        output_tokens=output,
        requests_per_s=_share(len(good), run.wall_s),
        output_tokens_per_s=_share(output, run.wall_s),
        total_tokens_per_s=_share(prompt + output, run.wall_s),
        hit_rate=_share(sum(answer.cached_tokens for answer in good), prompt),
        could_hit_rate=_share(sum(answer.could_hit_tokens for answer in good), prompt),
        ttft_s=spread([answer.ttft_s for answer in good]),
        tpot_s=spread([s for answer in good if not math.isnan(s := tpot_s(answer))]),
        itl_s=spread([gap for answer in good for gap in gaps_s(answer)]),
        e2e_s=spread([answer.e2e_s for answer in good]),
    )


def spread(values: Sequence[float]) -> Spread:
    """Return the percentiles that are reported."""
    return Spread(*(percentile(values, share) for share in (0.5, 0.9, 0.99)))


def tpot_s(answer: Answer) -> float:
    """Return the mean time for a token after the first; not a number for answers of one token."""
    times = answer.token_s
    return (times[-1] - times[0]) / (len(times) - 1) if len(times) > 1 else math.nan


def gaps_s(answer: Answer) -> list[float]:
    """Return the times between tokens; those that came together are 0 apart."""
    times = answer.token_s
    return [after - before for before, after in pairwise(times)]


def _share(part: float, whole: float) -> float:
    return part / whole if whole else 0.0
