"""Repeated measurements: medians, spread, ratios pair by pair."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

import numpy as np

from moonpool.errors import MoonpoolError


@dataclass(frozen=True, slots=True)
class Series:
    """Seconds of the runs of one thing, in the order in which they were taken; or, where one of
    them failed, none and the reason."""

    seconds: tuple[float, ...]
    failure: str = ""

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


def speed_ratio(measured: Series, limit: Series) -> float:
    """Return the median, over runs taken next to each other, of limit time over measured time."""
    pairs = zip(measured.seconds, limit.seconds, strict=True)
    return float(np.median([limit_s / measured_s for measured_s, limit_s in pairs]))


def alternate(steps: Sequence[tuple[str, Callable[[], float]]], runs: int) -> dict[str, Series]:
    """Run all steps in turn, ``runs`` times after one uncounted round; each returns its seconds.

    A step that raises MoonpoolError is not run again: its series is the reason.
    """
    taken: dict[str, list[float]] = {name: [] for name, _ in steps}
    failures: dict[str, str] = {}
    for _ in range(runs + 1):
        for name, step in steps:
            if name in failures:
                continue
            try:
                taken[name].append(step())
            except MoonpoolError as error:
                failures[name] = str(error)
    return {
        name: Series((), failures[name]) if name in failures else Series(tuple(values[1:]))
        for name, values in taken.items()
    }
