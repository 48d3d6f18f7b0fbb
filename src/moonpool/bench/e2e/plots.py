"""Figures of a run, drawn from its JSON (extra ``bench``)."""

from __future__ import annotations

import io
from collections.abc import Sequence
from typing import Any

from moonpool.errors import ConfigError

SIZE = (6.2, 3.9)
FIRST, WHOLE, NEXT = "Time to first token", "End to end", "Time for a token after the first"
SOURCES = (("hbm", "engines' own cache", "tab:blue"), ("pool", "pool", "tab:green"),
           ("recomputed", "recomputed", "tab:red"))  # fmt: skip

Run = tuple[str, Any]
"""A label, and a run's JSON."""


def require() -> None:
    """Raise ConfigError unless figures can be drawn."""
    import importlib.util

    if importlib.util.find_spec("matplotlib") is None:
        raise ConfigError("html: needs matplotlib; pip install 'moonpool[bench]'")


def figures(runs: Sequence[Run]) -> list[tuple[str, Any]]:
    """Return matplotlib figures with a title for each; several runs share their axes."""
    drawn = [
        (FIRST, _cumulative(runs, "ttft_s", FIRST, "TTFT, s")),
        (WHOLE, _cumulative(runs, "e2e_s", WHOLE, "intended time to last token, s")),
        (NEXT, _cumulative(runs, "tpot_s", NEXT, "TPOT, s")),
        ("Where prompts' KV came from", _sources(runs)),
        ("What a miss costs", _misses(runs)),
        ("Over time", _over_time(runs)),
    ]
    return [(title, figure) for title, figure in drawn if figure is not None]


def rendered(figure: Any, form: str) -> bytes:
    """Return a figure as ``svg`` or ``png``."""
    import matplotlib as mpl

    out = io.BytesIO()
    # The same run gives the same bytes.
    with mpl.rc_context({"svg.hashsalt": "moonpool"}):
        figure.savefig(out, format=form, metadata={"Date": None} if form == "svg" else None)
    return out.getvalue()


def _new(title: str, across: str, up: str) -> tuple[Any, Any]:
    from matplotlib.figure import Figure

    figure = Figure(figsize=SIZE, layout="constrained", dpi=110)
    axes = figure.subplots()
    axes.set(title=title, xlabel=across, ylabel=up)
    axes.grid(alpha=0.3)
    return figure, axes


def _answered(found: Any) -> list[Any]:
    return [each for each in found["requests"] if not each["error"]]


def _cumulative(runs: Sequence[Run], name: str, title: str, label: str) -> Any:
    figure, axes = _new(title, label, "requests that took at most so long, %")
    shown = False
    for name_of_run, found in runs:
        values = sorted(each[name] for each in _answered(found) if each[name] is not None)
        if not values:
            continue
        shown = True
        shares = [100 * (at + 1) / len(values) for at in range(len(values))]
        axes.step([values[0], *values], [0.0, *shares], where="post", label=name_of_run)
    if not shown:
        return None
    axes.set_xscale("log")
    axes.set_ylim(0, 101)
    for share in (50, 99):
        axes.axhline(share, color="gray", linestyle=":", linewidth=1)
    axes.legend(loc="lower right")
    return figure


def _sources(runs: Sequence[Run]) -> Any:
    figure, axes = _new("Prompt tokens by source", "prompt tokens, %", "")
    for at, (_, found) in enumerate(runs):
        hits, left = found["hits"], 0.0
        if hits["queries"]:
            for name, shown, colour in SOURCES:
                share = 100 * (hits[name] or 0.0) / hits["queries"]
                axes.barh(at, share, left=left, color=colour, label=shown if at == 0 else None)
                if share >= 6:
                    axes.text(left + share / 2, at, f"{share:.1f}", ha="center", va="center",
                              color="white")  # fmt: skip
                left += share
        elif hits["hit_rate"] is not None:
            axes.barh(at, 100 * hits["hit_rate"], color="tab:gray", label="hit, by the answers")
        ideal = 100 * hits["ideal_rate"]
        axes.plot([ideal, ideal], [at - 0.45, at + 0.45], color="black", linestyle="--",
                  label="ideal hit rate" if at == 0 else None)  # fmt: skip
    axes.set_yticks(range(len(runs)), [title for title, _ in runs])
    axes.set_xlim(0, 100)
    axes.set_ylim(-0.6, len(runs) - 0.4)
    axes.invert_yaxis()
    figure.legend(loc="outside lower center", ncols=4, fontsize=8)
    return figure


def _misses(runs: Sequence[Run]) -> Any:
    figure, axes = _new("TTFT by computed tokens", "prompt tokens computed", "TTFT, s")
    shown = False
    for title, found in runs:
        told = [each for each in _answered(found) if each["cached_tokens"] is not None]
        if not told:
            continue
        shown = True
        across = [each["prompt_tokens"] - each["cached_tokens"] for each in told]
        axes.scatter(across, [each["ttft_s"] for each in told], s=12, alpha=0.6, label=title)
    if not shown:
        return None
    axes.set_yscale("log")
    axes.set_xlim(left=0)
    axes.legend()
    return figure


def _over_time(runs: Sequence[Run]) -> Any:
    figure, axes = _new("TTFT over time", "intended time since the run began, s", "TTFT, s")
    shown = False
    for title, found in runs:
        good = _answered(found)
        shown = shown or bool(good)
        times = [each["intended_s"] for each in good]
        axes.scatter(times, [each["ttft_s"] for each in good], s=12, alpha=0.6, label=title)
        failed = [each["intended_s"] for each in found["requests"] if each["error"]]
        if failed and good:
            low = min(each["ttft_s"] for each in good)
            axes.scatter(failed, [low] * len(failed), marker="x", color="black", label="failed")
    if not shown:
        return None
    axes.set_yscale("log")
    axes.set_xlim(left=0)
    axes.legend()
    return figure
