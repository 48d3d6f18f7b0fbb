"""The published runs beside the simulated ones, as tables and as a figure."""

from __future__ import annotations

import io
from typing import Any

from moonpool.errors import ConfigError
from moonpool.sim.fleet.seed import (
    PUBLISHED,
    PUBLISHED_SCALING_HIT_RATE,
    SESSIONS,
    SeedFigures,
)

RATIO_SHARE = 0.25
HIT_POINTS = 0.02
NAMES = {
    "throughput_ratio": "throughput, times",
    "ttft_p50_ratio": "TTFT p50, times lower",
    "e2e_ratio": "end to end p50, times lower",
    "hit_rate_baseline": "hit rate without the pool",
    "hit_rate_pool": "hit rate with the pool",
}
Row = list[str]


def met(name: str, predicted: float) -> bool:
    """Return whether a prediction is as near as wanted: 25 % of a ratio, 2 points of a hit rate."""
    published = PUBLISHED[name]
    if name.endswith("ratio"):
        return abs(predicted - published) <= RATIO_SHARE * published
    return abs(predicted - published) <= HIT_POINTS


def _text(name: str, value: float) -> str:
    return f"{value:.1f}" if name.endswith("ratio") else f"{value:.1%}"


def comparison(found: SeedFigures) -> list[Row]:
    """Return a row for each published figure: published, simulated, how far, within the bar."""
    ratios = found.pair.ratios()
    rows = []
    for name, published in PUBLISHED.items():
        value = ratios[name]
        off = (
            f"{value / published - 1:+.0%}"
            if name.endswith("ratio")
            else f"{100 * (value - published):+.1f} points"
        )
        within = "yes" if met(name, value) else "no"
        rows.append([NAMES[name], _text(name, published), _text(name, value), off, within])
    return rows


def by_sessions(found: SeedFigures) -> list[Row]:
    """Return a row for each number of sessions: ratios, and what they are ratios of."""
    rows = []
    for each in found.pairs:
        ratios, base, pool = each.ratios(), each.baseline, each.pool
        rows.append(
            [
                str(each.sessions),
                *(_text(name, ratios[name]) for name in list(PUBLISHED)[:3]),
                f"{base.requests_s:.2f} / {pool.requests_s:.2f}",
                f"{base.ttft_s.p50:.1f} / {pool.ttft_s.p50:.2f}",
                f"{base.e2e_s.p50:.1f} / {pool.e2e_s.p50:.2f}",
                f"{base.hit_rate:.1%} / {pool.hit_rate:.1%}",
            ]
        )
    return rows


SESSION_HEADINGS = [
    "sessions",
    "throughput, times",
    "TTFT p50, times",
    "E2E p50, times",
    "requests/s",
    "TTFT p50, s",
    "E2E p50, s",
    "hit rate",
]
SCALING_HEADINGS = ["GPUs", "sessions", "requests/s", "of linear", "hit rate", "TTFT p50, s"]


def scaling_rows(found: SeedFigures) -> list[Row]:
    """Return a row for each number of GPUs."""
    least = min(found.scaling)
    each_gpu = found.scaling[least].requests_s / least
    return [
        [
            str(gpus),
            str(SESSIONS * gpus // least),
            f"{each.requests_s:.2f}",
            f"{each.requests_s / gpus / each_gpu:.1%}",
            f"{each.hit_rate:.1%}",
            f"{each.ttft_s.p50:.2f}",
        ]
        for gpus, each in found.scaling.items()
    ]


def figure(found: SeedFigures) -> bytes:
    """Return a PNG: ratios by the number of sessions, and throughput by GPUs."""
    try:
        from matplotlib.figure import Figure
    except ImportError:
        raise ConfigError("a figure needs matplotlib; install moonpool[bench]") from None
    canvas = Figure(figsize=(11, 4.2), layout="constrained")
    left, right = canvas.subplots(1, 2)
    _draw_ratios(left, found)
    _draw_scaling(right, found)
    held = io.BytesIO()
    canvas.savefig(held, format="png", dpi=120)
    return held.getvalue()


def _draw_ratios(axes: Any, found: SeedFigures) -> None:
    sessions = [each.sessions for each in found.pairs]
    colours = {"throughput_ratio": "C0", "ttft_p50_ratio": "C3", "e2e_ratio": "C2"}
    for name, colour in colours.items():
        values = [each.ratios()[name] for each in found.pairs]
        axes.plot(sessions, values, "o-", color=colour, label=NAMES[name])
        axes.axhline(PUBLISHED[name], color=colour, linestyle=":")
    axes.axvline(SESSIONS, color="0.7", linewidth=1)
    axes.set_yscale("log")
    axes.set_yticks([2, 5, 10, 20, 50, 100, 200], ["2", "5", "10", "20", "50", "100", "200"])
    axes.minorticks_off()
    axes.set_xlabel("conversations at work on 12 GPUs")
    axes.set_ylabel("better with the pool, times")
    axes.set_title("Codex on 1P1D; dotted: published")
    axes.legend(fontsize=8)
    axes.grid(alpha=0.3)


def _draw_scaling(axes: Any, found: SeedFigures) -> None:
    gpus = list(found.scaling)
    rates = [each.requests_s for each in found.scaling.values()]
    axes.plot([0, gpus[-1]], [0, rates[0] / gpus[0] * gpus[-1]], "--", color="0.6", label="linear")
    axes.plot(gpus, rates, "o-", color="C0", label="simulated, round robin")
    for count, each in found.scaling.items():
        text = f"{each.hit_rate:.1%}"
        axes.annotate(text, (count, each.requests_s), (4, -12), textcoords="offset points")
    axes.set_xlabel("GPUs")
    axes.set_ylabel("requests a second")
    axes.set_title(f"Scaling run, hit rates (published: over {PUBLISHED_SCALING_HIT_RATE:.0%})")
    axes.set_xlim(0, 1.12 * gpus[-1])
    axes.set_ylim(0)
    axes.legend(fontsize=8)
    axes.grid(alpha=0.3)
