"""Two runs beside one another."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import msgspec

from moonpool.bench.e2e import rows
from moonpool.bench.e2e.report import FORMAT
from moonpool.errors import ConfigError

FILE_BYTES_MAX = 1 << 30
COLUMNS = ("better by",)
SAME = ("trace", "requests", "prompt_tokens", "output_tokens", "block_tokens")
PERCENTILES = ("p50", "p90", "p95", "p99", "mean")

_Shown = Callable[[float | None], str]


def read(path: Path) -> Any:
    """Return what a run has written; raise ConfigError."""
    try:
        if path.stat().st_size > FILE_BYTES_MAX:
            raise ConfigError(f"compare: {path} is too large for a run's JSON")
        found = msgspec.json.decode(path.read_bytes())
    except OSError as error:
        raise ConfigError(f"compare: {path}: {error.strerror or error}") from None
    except (msgspec.MsgspecError, UnicodeDecodeError) as error:
        raise ConfigError(f"compare: {path} is not JSON: {error}") from None
    if not isinstance(found, dict) or found.get("format") != FORMAT:
        raise ConfigError(f"compare: {path} was not written by bench e2e --json ({FORMAT})")
    try:
        # All that tables read; whatever else is in the file does not matter.
        rows.heading(found), rows.time_rows(found), rows.facts(found), rows.hit_rows(found)
    except (LookupError, TypeError, ValueError, AttributeError) as error:
        raise ConfigError(f"compare: {path} lacks something: {error!r}") from None
    return found


def labels(first: Path, second: Path, left: Any, right: Any) -> tuple[str, str]:
    """Return names for two runs that tell them apart."""
    one, other = left["label"] or first.stem, right["label"] or second.stem
    return (one, other) if one != other else (f"A: {one}", f"B: {other}")


def warning(left: Any, right: Any) -> str:
    """Return what stands in the way of comparing two runs; "" where nothing does."""
    different = [name for name in SAME if left["workload"].get(name) != right["workload"].get(name)]
    if left["options"].get("mode") != right["options"].get("mode"):
        different.append("mode")
    return f"the runs differ in what they sent: {', '.join(different)}" if different else ""


def ratio_rows(left: Any, right: Any) -> list[list[str]]:
    """Return a row for each figure: both values, and how many times the second one is better."""
    found: list[list[str]] = []
    for name, shown in rows.TIMES:
        for key in PERCENTILES:
            one, other = left["figures"][name][key], right["figures"][name][key]
            found.append(_row(f"{shown} {key}", one, other, rows.seconds, lower=True))
    for shown, name in (
        ("requests a second", "requests_per_s"),
        ("prompt tokens a second", "prompt_tokens_per_s"),
        ("output tokens a second", "output_tokens_per_s"),
    ):
        one, other = left["figures"][name], right["figures"][name]
        found.append(_row(shown, one, other, lambda value: f"{value:,.2f}", lower=False))
    for shown, name in (
        ("hit rate", "hit_rate"),
        ("  engines' own cache (HBM)", "hbm_rate"),
        ("  pool", "pool_rate"),
        ("  ideal", "ideal_rate"),
    ):
        one, other = left["hits"][name], right["hits"][name]
        points = "" if one is None or other is None else f"{100 * (other - one):+.1f} points"
        found.append([shown, rows.percent(one), rows.percent(other), points])
    for shown, name in (("requests answered", "answered"), ("unfinished", "unfinished")):
        found.append([shown, *(f"{each['figures'][name]:,}" for each in (left, right)), ""])
    failed = [sum(each["figures"]["failures"].values()) for each in (left, right)]
    found.append(["failed", *(f"{count:,}" for count in failed), ""])
    return found


def ratio(one: float | None, other: float | None, *, lower: bool) -> float | None:
    """Return how many times better the second is; None where that cannot be said."""
    if not one or not other:
        return None
    return one / other if lower else other / one


def _row(
    name: str, one: float | None, other: float | None, shown: _Shown, *, lower: bool
) -> list[str]:
    better = ratio(one, other, lower=lower)
    return [name, shown(one), shown(other), "-" if better is None else f"{better:.2f}x"]
