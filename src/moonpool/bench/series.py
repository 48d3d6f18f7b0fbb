"""Repeated measurements: medians, spread, ratios pair by pair."""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass

import numpy as np


@dataclass(frozen=True, slots=True)
class Series:
    """Seconds of the runs of one thing, in the order in which they were taken."""

    seconds: tuple[float, ...]

    @property
    def median_s(self) -> float:
        """The median, seconds."""
        return float(np.median(self.seconds))

    def percentile_s(self, percent: float) -> float:
        """Return a percentile, seconds."""
        return float(np.percentile(self.seconds, percent))

    def gb_s(self, nbytes: int) -> float:
        """Return the median rate for so many bytes a run, in 10^9 bytes a second."""
        return nbytes / self.median_s / 1e9

    def as_json(self) -> dict[str, float]:
        """Return what a report keeps of the series."""
        return {
            "runs": float(len(self.seconds)),
            "min_s": min(self.seconds),
            "p50_s": self.median_s,
            "p99_s": self.percentile_s(99),
            "max_s": max(self.seconds),
        }


def speed_ratio(measured: Series, limit: Series) -> float:
    """Return the median, over runs taken next to each other, of limit time over measured time."""
    pairs = zip(measured.seconds, limit.seconds, strict=True)
    return float(np.median([limit_s / measured_s for measured_s, limit_s in pairs]))


def alternate(steps: Sequence[tuple[str, Callable[[], float]]], runs: int) -> dict[str, Series]:
    """Run all steps in turn, ``runs`` times after one uncounted round; each returns its seconds."""
    for _, step in steps:
        step()
    taken: dict[str, list[float]] = {name: [] for name, _ in steps}
    for _ in range(runs):
        for name, step in steps:
            taken[name].append(step())
    return {name: Series(tuple(values)) for name, values in taken.items()}


def timed(action: Callable[[], object], calls: int) -> Series:
    """Return the seconds of each of so many calls, after a tenth as many to warm up."""
    for _ in range(max(1, calls // 10)):
        action()
    seconds = []
    for _ in range(calls):
        began = time.perf_counter()
        action()
        seconds.append(time.perf_counter() - began)
    return Series(tuple(seconds))
