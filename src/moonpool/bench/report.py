"""What a benchmark says: rows, as a table for people and as JSON."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import asdict, dataclass, field, replace
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from rich.table import Table

from moonpool.bench.series import Series, speed_ratio

FOOTNOTES = {
    "Mooncake": "Mooncake: the real wheel; the segment is another process's, so its bytes go over "
    "TCP (a client that owns the segment, or one attached by setup_dummy, copies like memcpy)",
    "Mooncake, tuned": "tuned: with its defaults, batches of many pieces end in code -800 after "
    "60 s; connection pool on, queues of 65,535, slices of 1 MiB, 60 s for admission",
}


@dataclass(frozen=True, slots=True)
class Row:
    """A figure (``value`` is a median, low and high are the extremes), and what it is held
    against. ``met`` is None where nothing is asked; ``note`` says why a figure is missing."""

    section: str
    what: str
    value: float | None = None
    unit: str = ""
    low: float | None = None
    high: float | None = None
    against: str = ""
    against_value: float | None = None
    ratio: float | None = None
    bar: str = ""
    met: bool | None = None
    note: str = ""
    seconds: dict[str, list[float]] = field(default_factory=dict)

    def beside(
        self,
        against: str,
        value: float,
        ratio: float,
        *,
        bar: str = "",
        met: bool | None = None,
        note: str = "",
    ) -> Row:
        """Return the row held against something."""
        return replace(
            self,
            against=against,
            against_value=value,
            ratio=ratio,
            bar=bar,
            met=met,
            note=note or self.note,
        )


@dataclass(frozen=True, slots=True)
class Limit:
    """What a figure is held against: the other's series, and the ratio wanted at least."""

    name: str
    series: Series
    at_least: float | None = None


def rate_row(section: str, what: str, series: Series, nbytes: int, limit: Limit | None) -> Row:
    """Return the row of a rate in 10^9 bytes a second."""
    if series.failure:
        return _failed(section, what, series.failure, limit)
    row = Row(
        section,
        what,
        series.gb_s(nbytes),
        "GB/s",
        nbytes / max(series.seconds) / 1e9,
        nbytes / min(series.seconds) / 1e9,
        seconds={"measured": list(series.seconds)},
    )
    if limit is None or limit.series.failure:
        return _beside_nothing(row, limit)
    return held(row, series, limit, limit.series.gb_s(nbytes))


def time_row(section: str, what: str, series: Series, limit: Limit | None) -> Row:
    """Return the row of the median time of a call, us."""
    if series.failure:
        return _failed(section, what, series.failure, limit)
    p10, p50, p90 = (series.percentile_s(q) * 1e6 for q in (10, 50, 90))
    row = Row(section, what, p50, "us", p10, p90, seconds={"measured": list(series.seconds)})
    if limit is None or limit.series.failure:
        return _beside_nothing(row, limit)
    return held(row, series, limit, limit.series.median_s * 1e6)


def held(row: Row, series: Series, limit: Limit, figure: float) -> Row:
    """Return a row of ``series`` held against a limit whose figure is given."""
    ratio = speed_ratio(series, limit.series)
    bar, met = "", None
    if limit.at_least is not None:
        bar, met = f">= {limit.at_least:g}", ratio >= limit.at_least
    row = row.beside(limit.name, figure, ratio, bar=bar, met=met)
    return replace(row, seconds={**row.seconds, "against": list(limit.series.seconds)})


def missing(section: str, what: str, why: str, *, against: str = "", bar: str = "") -> Row:
    """Return the row of what could not be measured."""
    return Row(section, what, against=against, bar=bar, note=why)


def _beside_nothing(row: Row, limit: Limit | None) -> Row:
    if limit is None:
        return row
    bar = "" if limit.at_least is None else f">= {limit.at_least:g}"
    return replace(row, against=limit.name, bar=bar, note=limit.series.failure)


def _failed(section: str, what: str, why: str, limit: Limit | None) -> Row:
    against = "" if limit is None else limit.name
    bar = "" if limit is None or limit.at_least is None else f">= {limit.at_least:g}"
    return missing(section, what, why, against=against, bar=bar)


def table(rows: Sequence[Row]) -> Table:
    """Return the rows as a table for people."""
    from rich.table import Table

    shown = Table("what", "measured", "spread", "held against", "ratio", "bar", "met")
    for number in (1, 2, 4):
        shown.columns[number].justify = "right"
    section = ""
    for row in rows:
        if section and row.section != section:
            shown.add_section()
        section = row.section
        if row.value is None:
            shown.add_row(row.what, "-", "", row.against, "", row.bar, f"not measured: {row.note}")
            continue
        against = row.against
        if row.against_value is not None:
            against += f" ({figure(row.against_value)} {row.unit})"
        shown.add_row(
            row.what + (f"\n  {row.note}" if row.note else ""),
            f"{figure(row.value)} {row.unit}",
            "" if row.low is None or row.high is None else f"{figure(row.low)}-{figure(row.high)}",
            against,
            "" if row.ratio is None else figure(row.ratio),
            row.bar,
            "" if row.met is None else ("yes" if row.met else "NO"),
        )
    return shown


def markdown(rows: Sequence[Row]) -> str:
    """Return the rows as a Markdown table."""
    lines = [
        "| what | measured (spread) | held against | ratio | bar | met |",
        "|---|--:|---|--:|--:|---|",
    ]
    for row in rows:
        measured, against, met = "", row.against, ""
        if row.value is not None:
            measured = f"{figure(row.value)} {row.unit}{_spread(row)}"
        if row.against_value is not None:
            against += f": {figure(row.against_value)} {row.unit}"
        if row.met is not None:
            met = "yes" if row.met else "**no**"
        elif row.note and (row.value is None or row.bar):
            met = f"not measured: {row.note}"
        note = f" ({row.note})" if row.note and not met.startswith("not measured") else ""
        ratio = "" if row.ratio is None else figure(row.ratio)
        lines.append(f"| {row.what}{note} | {measured} | {against} | {ratio} | {row.bar} | {met} |")
    return "\n".join(lines)


def _spread(row: Row) -> str:
    if row.low is None or row.high is None:
        return ""
    return f" ({figure(row.low)} to {figure(row.high)})"


def matrix_table(rows: Sequence[Row]) -> Table:
    """Return rows whose ``what`` is ``<cell>: <verb>`` with a line for each cell."""
    from rich.table import Table

    verbs = list(dict.fromkeys(row.what.rpartition(": ")[2] for row in rows))
    shown = Table("", *verbs)
    cells: dict[str, dict[str, list[str]]] = {}
    for row in rows:
        cell, _, verb = row.what.rpartition(": ")
        found = cells.setdefault(cell, {}).setdefault(verb, [])
        if not found:
            found.append("-" if row.value is None else f"{figure(row.value)} {row.unit}")
        if row.ratio is not None:
            found.append(f"{figure(row.ratio)}x {row.against.partition(',')[0]}")
        elif row.note:
            found.append(f"{row.against or 'moonpool'} failed")
    for cell, of_verbs in cells.items():
        shown.add_row(cell, *(", ".join(of_verbs.get(verb, [])) for verb in verbs))
    return shown


def footnotes(rows: Sequence[Row]) -> list[str]:
    """Return what has to be known of those that are compared with."""
    return [text for name, text in FOOTNOTES.items() if any(name in row.against for row in rows)]


def figure(value: float) -> str:
    """Return a number with three figures that count."""
    if abs(value) >= 100:
        return f"{value:,.0f}"
    return f"{value:.1f}" if abs(value) >= 10 else f"{value:.2f}"


def line(row: Row) -> str:
    """Return a row as one line, for those who wait."""
    if row.value is None:
        return f"{row.what}: not measured: {row.note}"
    ratio = "" if row.ratio is None else f", {figure(row.ratio)} x {row.against}"
    mark = "" if row.met is None else f" (bar {row.bar}: {'met' if row.met else 'NOT met'})"
    return f"{row.what}: {figure(row.value)} {row.unit}{ratio}{mark}"


def as_dicts(rows: Sequence[Row]) -> list[dict[str, Any]]:
    """Return the rows for JSON."""
    return [asdict(row) for row in rows]


def from_dicts(found: Sequence[dict[str, Any]]) -> list[Row]:
    """Return the rows of a JSON file."""
    return [Row(**each) for each in found]
