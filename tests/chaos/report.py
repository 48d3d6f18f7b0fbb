"""What a run counted: as JSON, and as a table for people."""

from __future__ import annotations

import statistics
from collections import Counter, defaultdict
from dataclasses import dataclass, field
from typing import Any

from tests.chaos.tally import KINDS, OUTCOMES

BAD = ("wrong", "lost", "hangs", "leaks", "died", "other")
"""What may not be: wrong bytes; promised objects that are gone; calls past any deadline; space that
does not come back; processes that ended by themselves; errors that nothing explains."""


@dataclass
class Report:
    """Counts of all rounds so far; ``found`` says for each of BAD what it was."""

    seed: int
    seconds: float = 0.0
    rounds: int = 0
    acts: int = 0
    kept: int = 0
    checked: int = 0
    faults: Counter[str] = field(default_factory=Counter)
    operations: dict[str, Counter[str]] = field(
        default_factory=lambda: {kind: Counter() for kind in KINDS}
    )
    slowest_s: dict[str, float] = field(default_factory=lambda: defaultdict(float))
    settled_s: dict[str, list[float]] = field(default_factory=lambda: defaultdict(list))
    found: dict[str, list[str]] = field(default_factory=lambda: {kind: [] for kind in BAD})

    def add(self, counts: dict[str, dict[str, int]], slowest_s: dict[str, float]) -> None:
        """Add what one client counted."""
        for kind, outcomes in counts.items():
            self.operations[kind].update(outcomes)
        for kind, seconds in slowest_s.items():
            self.slowest_s[kind] = max(self.slowest_s[kind], seconds)

    def find(self, kind: str, texts: list[str]) -> None:
        """Note what may not be."""
        self.found[kind] += texts

    @property
    def good(self) -> bool:
        """Whether nothing was found."""
        return not any(self.found.values())

    def as_json(self) -> dict[str, Any]:
        """Return all of it as JSON knows it."""
        total = sum(sum(c.values()) for c in self.operations.values())
        return {
            "seed": self.seed,
            "seconds": round(self.seconds, 1),
            "rounds": self.rounds,
            "acts": self.acts,
            "operations_total": total,
            "operations": {k: dict(sorted(c.items())) for k, c in self.operations.items() if c},
            "slowest_s": {k: round(s, 2) for k, s in sorted(self.slowest_s.items())},
            "faults_total": sum(self.faults.values()),
            "faults": dict(sorted(self.faults.items())),
            "whole_again_s": {
                k: {
                    "times": len(v),
                    "median": round(statistics.median(v), 2),
                    "longest": round(max(v), 2),
                }
                for k, v in sorted(self.settled_s.items())
            },
            "kept_objects": self.kept,
            "kept_checks": self.checked,
            "found": {kind: len(texts) for kind, texts in self.found.items()},
            "findings": {kind: texts[:50] for kind, texts in self.found.items() if texts},
        }

    def table(self) -> str:
        """Return the tables."""
        found = self.as_json()
        used = [o for o in OUTCOMES if any(c[o] for c in self.operations.values())]
        rows = [["operation", *used, "slowest s"]]
        for kind, counts in self.operations.items():
            rows.append([kind, *(str(counts[o]) for o in used), f"{self.slowest_s[kind]:.2f}"])
        faults = [["fault", "times", "whole again after s: median", "longest"]]
        for kind, times in found["faults"].items():
            again = found["whole_again_s"].get(kind, {})
            took = [str(again.get(k, "")) for k in ("median", "longest")]
            faults.append([kind, str(times), *took])
        bad = [["found", "times"], *([kind, str(len(t))] for kind, t in self.found.items())]
        lines = [f"seed {self.seed}: {self.seconds:.0f} s, {self.rounds} rounds, {self.acts} acts"]
        lines += [f"{found['operations_total']} operations, {found['faults_total']} faults"]
        lines += [f"{self.kept} objects had to stay; {self.checked} times one was looked for"]
        texts = [f"{kind}: {text}" for kind, some in self.found.items() for text in some[:20]]
        return "\n".join([*lines, "", *_lined(rows), "", *_lined(faults), "", *_lined(bad), *texts])


def _lined(rows: list[list[str]]) -> list[str]:
    widths = [max(map(len, column)) for column in zip(*rows, strict=True)]
    return ["  ".join(cell.ljust(w) for cell, w in zip(row, widths, strict=True)) for row in rows]
