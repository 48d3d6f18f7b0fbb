"""Seeded runs with disks. A failing seed replays exactly."""

from __future__ import annotations

from collections import Counter

import pytest

from tests.sim.disks import DiskSimulation
from tests.sim.simulator import Shape


@pytest.mark.parametrize("first", range(0, 60, 10))
def test_pools_with_disks_never_yield_wrong_bytes_nor_lose_space(first: int) -> None:
    seen: Counter[str] = Counter()
    for seed in range(first, first + 10):
        simulation = DiskSimulation(seed, Shape(nodes=5, clients=5, steps=1500))
        simulation.run(1500)
        simulation.wind_down()
        seen.update(simulation.count)
    # Otherwise the test would prove nothing.
    wanted = ["reads", "shelved", "promoted", "announced to disk", "node_crashes", "master_crashes"]
    assert all(seen[what] for what in wanted), seen


def test_a_seed_replays_exactly() -> None:
    counts = []
    for _ in range(2):
        simulation = DiskSimulation(7, Shape(nodes=5, clients=5, steps=800))
        simulation.run(800)
        simulation.wind_down()
        counts.append(simulation.count)
    assert counts[0] == counts[1]
