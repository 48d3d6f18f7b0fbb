"""Figures of a trace's statistics, as PNG or SVG (extra ``bench``)."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from moonpool.errors import ConfigError
from moonpool.workload.stats import Stats

SUFFIXES = (".png", ".svg")
LEAST_CONVERSATIONS = 3
"""A turn that fewer conversations reach is not drawn."""


def draw(stats: Stats, title: str, path: Path) -> None:
    """Write the figure of a trace; raise ConfigError without matplotlib, or for another suffix.

    Context by turn, what a cache of each size would hit, and the distinct tokens over time.
    """
    if path.suffix not in SUFFIXES:
        raise ConfigError(f"figure: {path} is not allowed; allowed: {', '.join(SUFFIXES)}")
    try:
        from matplotlib.figure import Figure
    except ImportError:
        raise ConfigError("figure: needs matplotlib; pip install 'moonpool[bench]'") from None
    figure = Figure(figsize=(12, 3.8), layout="constrained", dpi=110)
    figure.suptitle(title)
    growth, curve, over_time = figure.subplots(1, 3)
    _growth(growth, stats)
    _curve(curve, stats)
    _working_set(over_time, stats)
    try:
        figure.savefig(path)
    except OSError as error:
        raise ConfigError(f"figure: {path}: {error.strerror or error}") from None


def _growth(axes: Any, stats: Stats) -> None:
    shown = [row for row in stats.by_turn if row[1] >= LEAST_CONVERSATIONS] or stats.by_turn
    turns = [row[0] for row in shown]
    for name, style in (("p90", "--"), ("p50", "-"), ("mean", ":")):
        values = [getattr(row[2], name) / 1000 for row in shown]
        axes.plot(
            turns, values, style, color="tab:blue", label=name, marker="." if len(turns) < 2 else ""
        )
    axes.set(
        title="Context growth", xlabel="turn of a conversation", ylabel="prompt, thousand tokens"
    )
    axes.set_ylim(bottom=0)
    axes.legend()
    axes.grid(alpha=0.3)


def _curve(axes: Any, stats: Stats) -> None:
    axes.set(title="Hits by pool size", xlabel="pool, million tokens", ylabel="hit rate, %")
    axes.set_ylim(0, 100)
    axes.grid(alpha=0.3)
    if not stats.curve:
        axes.text(0.5, 0.5, "contents not known", ha="center", transform=axes.transAxes)
        return
    sizes = [size / 1e6 for size, _ in stats.curve]
    axes.semilogx(sizes, [100 * share for _, share in stats.curve], color="tab:green")
    axes.axhline(100 * (stats.hit_rate or 0.0), color="gray", linestyle="--", linewidth=1)
    axes.annotate("nothing forgotten", (sizes[0], 100 * (stats.hit_rate or 0.0)), va="bottom")


def _working_set(axes: Any, stats: Stats) -> None:
    hours = [time_s / 3600 for time_s, _ in stats.working_set]
    axes.plot(hours, [tokens / 1e6 for _, tokens in stats.working_set], color="tab:orange")
    axes.set(title="Distinct tokens so far", xlabel="time, hours", ylabel="million tokens")
    axes.set_ylim(bottom=0)
    axes.grid(alpha=0.3)
