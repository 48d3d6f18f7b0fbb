"""A plan's figures (extra ``bench``)."""

from __future__ import annotations

import io
from typing import Any

import numpy as np

from moonpool.errors import ConfigError
from moonpool.planner.costs import STEP_S
from moonpool.planner.machines import LINKS
from moonpool.planner.plan import Plan, Site

TOKENS = np.unique(np.geomspace(64, 262_144, 80).astype(int))


def png(plan: Plan, site: Site, title: str) -> bytes:
    """Return the figure of a plan; raise ConfigError without matplotlib."""
    try:
        from matplotlib.figure import Figure
    except ImportError:
        raise ConfigError("figure: needs matplotlib; pip install 'moonpool[bench]'") from None
    figure = Figure(figsize=(12, 3.9), layout="constrained", dpi=110)
    figure.suptitle(title)
    curve, times, bars = figure.subplots(1, 3)
    _curve(curve, plan)
    _crossover(times, site)
    _ttft(bars, plan)
    out = io.BytesIO()
    figure.savefig(out, format="png")
    return out.getvalue()


def _curve(axes: Any, plan: Plan) -> None:
    sizes = [size for size, _ in plan.curve]
    axes.semilogx(sizes, [100 * rate for _, rate in plan.curve], color="tab:green")
    axes.axvline(plan.pool_gb, color="tab:red", linestyle="--", linewidth=1, label="planned")
    axes.axvline(plan.knee_gb, color="gray", linestyle=":", linewidth=1, label="knee")
    axes.set(title="Hit rate by pool size", xlabel="pool, GB", ylabel="hit rate, %")
    axes.set_ylim(0, 100)
    axes.legend()
    axes.grid(alpha=0.3)


def _crossover(axes: Any, site: Site) -> None:
    engine = site.engine
    compute = [engine.prefill_s(0, int(tokens)) - STEP_S for tokens in TOKENS]
    axes.loglog(TOKENS, compute, color="black", label="compute")
    ways = {"own host": engine.host_gb_s()}
    ways |= {name: link.gb_s * link.share for name, link in LINKS.items()}
    for name, gb_s in ways.items():
        axes.loglog(TOKENS, [engine.load_s(float(n), gb_s) for n in TOKENS], label=name)
    axes.set(title="Load or compute a prefix", xlabel="prefix, tokens", ylabel="seconds")
    axes.legend(fontsize=8)
    axes.grid(alpha=0.3)


def _ttft(axes: Any, plan: Plan) -> None:
    names = ["nothing\ncached", "own\ncaches", "with\nthe pool"]
    places = np.arange(len(names))
    p50 = [each.ttft_p50_s for each in plan.variants]
    p90 = [each.ttft_p90_s for each in plan.variants]
    for offset, values, label in ((-0.2, p50, "p50"), (0.2, p90, "p90")):
        found = axes.bar(places + offset, values, 0.4, label=label)
        axes.bar_label(found, fmt="%.2f", fontsize=8)
    axes.set_xticks(places, names)
    axes.set(title="TTFT, one request at a time", ylabel="seconds")
    axes.legend()
