"""Distributions in a few figures."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np


@dataclass(frozen=True, slots=True)
class Spread:
    """How values are spread; all 0 where there are none."""

    count: int = 0
    mean: float = 0.0
    p50: float = 0.0
    p90: float = 0.0
    p99: float = 0.0
    max: float = 0.0


def spread_of(values: Sequence[float]) -> Spread:
    """Return the spread of values."""
    if not len(values):
        return Spread()
    found = np.asarray(values, dtype=np.float64)
    p50, p90, p99 = np.percentile(found, (50, 90, 99))
    return Spread(len(found), *(float(each) for each in (found.mean(), p50, p90, p99, found.max())))
