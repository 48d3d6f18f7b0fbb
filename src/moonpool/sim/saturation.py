"""How much a simulated cluster can take at most."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace

from moonpool.sim.cluster import Cluster, simulate
from moonpool.sim.workload import SimWorkload, Timed

GROWTH = 1.5
LEVELS_MAX = 16


@dataclass(frozen=True, slots=True)
class Saturation:
    """rate: the most requests a second that were answered. curve: levels of the workload with the
    requests a second that were answered at each, rising."""

    rate: float
    curve: tuple[tuple[float, float], ...]

    def level(self, share: float, workload: SimWorkload) -> float:
        """Return the level that asks for a share of the rate."""
        wanted = share * self.rate
        if isinstance(workload, Timed):
            return wanted * workload.length_s / len(workload.asks)
        low, low_rate = 0.0, 0.0
        for level, rate in self.curve:
            if rate >= wanted:
                return low + (level - low) * (wanted - low_rate) / (rate - low_rate)
            low, low_rate = level, rate
        return low


def saturate(
    cluster: Cluster,
    workload: SimWorkload,
    told: Callable[[float, float], None] = lambda level, rate: None,
) -> Saturation:
    """Ask for more and more until no more is answered; told: each level and its rate."""
    found: dict[float, float] = {}

    def rate(level: float) -> float:
        if level not in found:
            found[level] = answered(cluster, workload, level)
            told(level, found[level])
        return found[level]

    level = workload.first_level
    while len(found) < LEVELS_MAX and rate(level) >= max(found.values()):
        level *= GROWTH
    best = max(found, key=found.__getitem__)
    for factor in (GROWTH**-0.5, GROWTH**0.5):
        rate(best * factor)
    best = max(found, key=found.__getitem__)
    rising: list[tuple[float, float]] = []
    for point in sorted(found.items()):
        if point[0] <= best and (not rising or point[1] > rising[-1][1]):
            rising.append(point)
    return Saturation(found[best], tuple(rising))


def answered(cluster: Cluster, workload: SimWorkload, level: float, seed: int = 0) -> float:
    """Return how many requests a second are answered at a level."""
    warm_s, length_s = workload.window(level)
    sized = replace(cluster, warm_s=warm_s, length_s=length_s)
    outcome = simulate(sized, workload.traffic(level, seed))
    ends = warm_s + length_s
    return sum(warm_s <= job.end_s < ends for job in outcome.every) / length_s
