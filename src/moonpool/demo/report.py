"""The comparison as a table for people and as JSON for programs."""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import asdict, dataclass
from typing import Any

from rich.table import Table

from moonpool.demo.compare import Comparison, Summary

DIFFERENCES_SHOWN = 5


@dataclass(frozen=True, slots=True)
class Report:
    """What the demonstration found. ``workload`` describes what was replayed, in one line."""

    workload: str
    pool: Summary
    baseline: Summary
    comparison: Comparison
    seconds: dict[str, float]

    @property
    def well(self) -> bool:
        """Whether every request was answered, and the same in both runs."""
        return self.comparison.same and not (self.pool.errors or self.baseline.errors)

    def as_json(self) -> dict[str, Any]:
        """Return the report as plain values."""
        comparison = self.comparison
        return {
            "workload": self.workload,
            "requests": self.pool.requests,
            "outputs_identical": comparison.identical,
            "near_ties": comparison.near_ties,
            "outputs_missing": comparison.missing,
            "differences": [
                {
                    **asdict(difference),
                    "logprob_gap": _finite(difference.logprob_gap),
                    "near_tie": difference.near_tie,
                }
                for difference in comparison.differences
            ],
            "ttft_p50_ratio": _finite(self.ttft_ratio),
            "pool": _finite_values(asdict(self.pool)),
            "baseline": _finite_values(asdict(self.baseline)),
            "seconds": self.seconds,
        }

    @property
    def ttft_ratio(self) -> float:
        """How many times lower the median time to the first token is with the pool."""
        return _ratio(self.baseline.ttft_p50_s, self.pool.ttft_p50_s)


def _finite(value: float) -> float | None:
    return value if math.isfinite(value) else None


def _finite_values(values: dict[str, Any]) -> dict[str, Any]:
    return {name: _finite(value) for name, value in values.items()}


def _ratio(larger: float, smaller: float) -> float:
    return larger / smaller if smaller else math.nan


def _percent(value: float) -> str:
    return f"{100 * value:.1f} %"


def _seconds(value: float) -> str:
    return f"{value:.3f} s"


def _count(value: float) -> str:
    return f"{value:,.0f}"


def _rate(value: float) -> str:
    return f"{value:.1f}"


_ROWS: tuple[tuple[str, str, Callable[[float], str], str], ...] = (
    ("requests", "requests", _count, ""),
    ("hit rate, of all prompt tokens", "hit_rate", _percent, ""),
    ("  engine-local", "local_hit_rate", _percent, ""),
    ("  pool", "pool_hit_rate", _percent, ""),
    ("hits, of the tokens that could hit", "hit_of_possible", _percent, ""),
    ("TTFT p50", "ttft_p50_s", _seconds, "lower"),
    ("TTFT p99", "ttft_p99_s", _seconds, "lower"),
    ("end to end p50", "e2e_p50_s", _seconds, "lower"),
    ("output tokens a second", "output_tokens_per_s", _rate, "higher"),
)


def table(report: Report) -> Table:
    """Return the one table of the demonstration."""
    comparison = report.comparison
    grid = Table(title=report.workload, title_justify="left", caption_justify="left")
    grid.add_column("")
    for heading in ("vLLM alone", "with the pool", "better by"):
        grid.add_column(heading, justify="right")
    for label, name, shown, better in _ROWS:
        alone, pooled = getattr(report.baseline, name), getattr(report.pool, name)
        ratio = _ratio(alone, pooled) if better == "lower" else _ratio(pooled, alone)
        grid.add_row(label, shown(alone), shown(pooled), f"{ratio:.1f}x" if better else "")
    total = comparison.identical + len(comparison.differences) + comparison.missing
    grid.add_section()
    grid.add_row("outputs identical", "", f"{comparison.identical} of {total}", "")
    grid.add_row("  differ in a near tie", "", str(comparison.near_ties), "")
    others = len(comparison.differences) - comparison.near_ties + comparison.missing
    grid.add_row("  differ otherwise", "", str(others), "")
    grid.caption = "\n".join(_named(comparison)) or None
    return grid


def _named(comparison: Comparison) -> list[str]:
    """Return a line for each of the first differences."""
    lines = [
        f"{d.session} turn {d.turn}: token {d.position} is {d.token} or {d.other_token}, "
        f"logprobs {d.logprob_gap:.1e} apart{' (near tie)' if d.near_tie else ''}"
        for d in comparison.differences[:DIFFERENCES_SHOWN]
    ]
    left = len(comparison.differences) - len(lines)
    return [*lines, f"and {left} more"] if left else lines
