"""The splits side by side, for people and as JSON."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import asdict
from typing import TYPE_CHECKING, Any

from moonpool.bench.xypd import Outcome
from moonpool.bench.xypd_figures import Spread

if TYPE_CHECKING:
    from rich.table import Table

TIMES = (("TTFT", "ttft_s"), ("TPOT", "tpot_s"), ("ITL", "itl_s"), ("E2E", "e2e_s"))
PERCENTILES = ("p50", "p90", "p99")
HEADINGS = (
    "engines", *(f"{name} p50 / p90 / p99, s" for name, _ in TIMES), "requests/s",
    "output tokens/s", "hit rate", "could hit", "errors", "other outputs",
)  # fmt: skip


def different(outcome: Outcome) -> int:
    """Return how many answers are not those of the first case, near ties aside."""
    found = outcome.comparison
    return len(found.differences) - found.near_ties + found.missing


def well(outcomes: Sequence[Outcome]) -> bool:
    """Return whether everything was answered, and everywhere the same."""
    return all(not each.figures.errors and not different(each) for each in outcomes)


def cells(outcome: Outcome) -> list[str]:
    """Return one line of the table."""
    found = outcome.figures
    times = [_spread(getattr(found, name)) for _, name in TIMES]
    return [
        outcome.label,
        *times,
        f"{found.requests_per_s:.2f}",
        f"{found.output_tokens_per_s:.1f}",
        f"{found.hit_rate:.1%}",
        f"{found.could_hit_rate:.1%}",
        f"{found.errors} of {found.requests}",
        str(different(outcome)),
    ]


def _spread(spread: Spread) -> str:
    return " / ".join("-" if math.isnan(x) else f"{x:.3f}" for x in asdict(spread).values())


def table(outcomes: Sequence[Outcome]) -> Table:
    """Return the table for people."""
    from rich.table import Table

    shown = Table(*HEADINGS)
    for column in shown.columns[1:]:
        column.justify = "right"
    for outcome in outcomes:
        shown.add_row(*cells(outcome))
    return shown


def markdown(outcomes: Sequence[Outcome]) -> str:
    """Return the table for a document."""
    lines = [f"| {' | '.join(HEADINGS)} |", "|---" + "|--:" * (len(HEADINGS) - 1) + "|"]
    lines += [f"| {' | '.join(cells(outcome))} |" for outcome in outcomes]
    return "\n".join(lines)


def as_json(outcomes: Sequence[Outcome], about: str) -> dict[str, Any]:
    """Return everything but the tokens as plain values."""
    return {
        "workload": about,
        "well": well(outcomes),
        "configs": [
            {
                "config": each.label,
                "split": each.split,
                "policy": each.policy,
                **_finite(asdict(each.figures)),
                "outputs_identical": each.comparison.identical,
                "near_ties": each.comparison.near_ties,
                "outputs_different": different(each),
                "requests_log": [
                    {
                        "session": answer.session,
                        "turn": answer.turn,
                        "prompt_tokens": answer.prompt_tokens,
                        "cached_tokens": answer.cached_tokens,
                        "output_tokens": len(answer.choices),
                        "ttft_s": answer.ttft_s,
                        "e2e_s": answer.e2e_s,
                        "error": answer.error,
                    }
                    for answer in each.answers
                ],
            }
            for each in outcomes
        ],
    }


def _finite(value: Any) -> Any:
    if isinstance(value, dict):
        return {name: _finite(each) for name, each in value.items()}
    return None if isinstance(value, float) and not math.isfinite(value) else value
