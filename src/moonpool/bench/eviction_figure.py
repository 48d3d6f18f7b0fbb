"""The curves of ``moonpool bench eviction``: hit rate against the pool's size."""

from __future__ import annotations

from pathlib import Path
from typing import Any, Final

from moonpool.bench.eviction import NAMES, OPTIMUM, SESSIONS, Report, TraceFacts
from moonpool.errors import ConfigError

# Colours that differ in lightness too; the optimum is drawn apart from all of them.
STYLES: Final = {
    "lru": ("#999999", "s", "-"),
    "leaf-lru": ("#0072b2", "o", "-"),
    "s3fifo": ("#d55e00", "^", "-"),
    "arc": ("#009e73", "v", "-"),
    "cost": ("#cc79a7", "D", "-"),
    SESSIONS: ("#0072b2", "o", ":"),
    OPTIMUM: ("#000000", "", "--"),
}

CEILING: Final = "nothing evicted"


def draw(report: Report, path: Path) -> None:
    """Write the figure as PNG; raise ConfigError where matplotlib is missing."""
    try:
        from matplotlib.figure import Figure
    except ImportError:
        raise ConfigError("png: needs matplotlib; pip install 'moonpool[bench]'") from None
    figure = Figure(figsize=(4.2 * len(report.traces), 4.0), layout="constrained")
    panels = figure.subplots(1, len(report.traces), squeeze=False)[0]
    for panel, facts in zip(panels, report.traces, strict=True):
        _panel(panel, report, facts)
    panels[0].set_ylabel("prompt tokens hit, %")
    found = {
        label: line
        for panel in panels
        for line, label in zip(*panel.get_legend_handles_labels(), strict=True)
    }
    labels = [*(name for name in NAMES if name in found), CEILING]
    lines = [found[label] for label in labels]
    figure.legend(lines, labels, loc="outside lower center", ncols=len(labels), frameon=False)
    try:
        figure.savefig(path, dpi=110, format="png")
    except OSError as error:
        raise ConfigError(f"png: {path} cannot be written: {error.strerror}") from None


def _panel(panel: Any, report: Report, facts: TraceFacts) -> None:
    mine = [each for each in report.points if each.trace == facts.trace]
    shares = sorted({each.share for each in mine})
    for policy in dict.fromkeys(each.policy for each in mine):
        colour, marker, line = STYLES[policy]
        points = sorted((each.share, each.hit_rate) for each in mine if each.policy == policy)
        x, y = [share for share, _ in points], [100 * rate for _, rate in points]
        panel.plot(x, y, line, color=colour, marker=marker, markersize=4.5, label=policy)
    ceiling = 100 * facts.ceiling
    panel.axhline(ceiling, color="#555555", linewidth=0.8, linestyle=":", label=CEILING)
    panel.set_xscale("log", base=2)
    panel.set_xticks(shares, [f"{100 * share:.3g}" for share in shares])
    panel.minorticks_off()
    panel.set_ylim(0, None)
    panel.grid(alpha=0.3)
    panel.set_title(facts.trace.removesuffix(".gz").removesuffix(".jsonl"), fontsize=10)
    panel.set_xlabel("room, % of the trace's objects")
