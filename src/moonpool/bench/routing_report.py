"""The comparison of policies as tables, and what is promised of ``prefix``."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

from moonpool.bench.routing import Row, rows_of

if TYPE_CHECKING:
    from rich.table import Table

HEADINGS = (
    "traffic", "policy", "TTFT p50, s", "p90, s", "p99, s", "hits", "possible", "busy",
)  # fmt: skip
P50_ALONE, P50_POOL = 3.0, 1.5
HIT_POINTS = 3.0
# Two runs of one policy differ by more than this at p99.
EQUAL = 1.0


@dataclass(frozen=True, slots=True)
class Bar:
    """A promise: the median over the seeds, the worst of them, and what is wanted."""

    what: str
    value: float
    worst: float
    wanted: str
    met: bool


def bars(rows: Sequence[Row]) -> list[Bar]:
    """Return how ``prefix`` stands on every trace, with a pool and without."""
    found: list[Bar] = []
    cases = {(row.trace, row.pool, row.load): row.where for row in rows}
    for (trace, pool, load), asked in cases.items():
        by_policy = rows_of(rows, trace, pool, load)
        where = f"{trace}, {'with a pool' if pool else 'no pool'}, {asked}"
        found += _bars(where, by_policy, P50_POOL if pool else P50_ALONE)
    return found


def _bars(where: str, rows: dict[str, Row], wanted: float) -> list[Bar]:
    found = []
    prefix = rows.get("prefix")
    if prefix is None:
        return []
    if (other := rows.get("round_robin")) is not None:
        ratios = _ratios(other, prefix, "ttft_p50_s")
        found.append(_at_least(f"{where}: TTFT p50, round_robin / prefix", ratios, wanted))
    if (other := rows.get("session")) is not None:
        ratios = _ratios(other, prefix, "ttft_p99_s")
        found.append(_at_least(f"{where}: TTFT p99, session / prefix", ratios, EQUAL))
    short = [100 * (run.possible_hit_rate - run.hit_rate) for run in prefix.runs]
    middle = sorted(short)[len(short) // 2]
    wanted_text = f"<= {HIT_POINTS:g} points"
    what = f"{where}: hit rate short of the possible"
    found.append(Bar(what, middle, max(short), wanted_text, middle <= HIT_POINTS))
    return found


def _ratios(other: Row, prefix: Row, name: str) -> list[float]:
    pairs = zip(other.runs, prefix.runs, strict=True)
    return sorted(getattr(theirs, name) / getattr(ours, name) for theirs, ours in pairs)


def _at_least(what: str, ratios: list[float], wanted: float) -> Bar:
    middle = ratios[len(ratios) // 2]
    return Bar(what, middle, ratios[0], f">= {wanted:g}", middle >= wanted)


def cells(row: Row) -> list[str]:
    """Return a row's figures as text: the median over the seeds, and the extremes."""
    where = f"{row.trace}, {'pool' if row.pool else 'no pool'}, "
    where += f"{row.load:.0%}" if row.load else f"{row.level:g} {row.unit}"
    name = f"{row.policy} ({row.variant})" if row.variant else row.policy
    times = [_spread(row, key, 1.0) for key in ("ttft_p50_s", "ttft_p90_s", "ttft_p99_s")]
    shares = [_spread(row, key, 100.0) for key in ("hit_rate", "possible_hit_rate", "busy")]
    return [where, name, *times, *(f"{share} %" for share in shares)]


def _spread(row: Row, name: str, scale: float) -> str:
    low, high = row.spread(name)
    middle = _figure(scale * row.median(name))
    if len(row.runs) < 2 or _figure(scale * low) == _figure(scale * high):
        return middle
    return f"{middle} ({_figure(scale * low)} to {_figure(scale * high)})"


def _figure(value: float) -> str:
    return f"{value:.1f}" if value >= 10 else f"{value:.2f}" if value >= 1 else f"{value:.3f}"


def table(rows: Sequence[Row]) -> Table:
    """Return all rows as a table for people."""
    from rich.table import Table

    shown = Table(*HEADINGS)
    for heading in range(2, len(HEADINGS)):
        shown.columns[heading].justify = "right"
    before = ""
    for row in rows:
        where, *rest = cells(row)
        if before and where != before:
            shown.add_section()
        shown.add_row(where if where != before else "", *rest)
        before = where
    return shown


def bars_table(found: Sequence[Bar]) -> Table:
    """Return the promises as a table for people."""
    from rich.table import Table

    shown = Table("promised of prefix", "median", "worst seed", "wanted", "met")
    for bar in found:
        met = "yes" if bar.met else "NO"
        shown.add_row(bar.what, f"{bar.value:.2f}", f"{bar.worst:.2f}", bar.wanted, met)
    return shown


def markdown(rows: Sequence[Row]) -> str:
    """Return the rows and the promises as Markdown."""
    lines = [f"| {' | '.join(HEADINGS)} |", "|---|---" + "|--:" * (len(HEADINGS) - 2) + "|"]
    lines += [f"| {' | '.join(cells(row))} |" for row in rows]
    lines += ["", "| promised of `prefix` | median | worst seed | wanted | met |"]
    lines.append("|---|--:|--:|--:|---|")
    for bar in bars(rows):
        met = "yes" if bar.met else "**no**"
        lines.append(f"| {bar.what} | {bar.value:.2f} | {bar.worst:.2f} | {bar.wanted} | {met} |")
    return "\n".join(lines)
