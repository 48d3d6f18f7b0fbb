"""The simulated pool keeps its promises, and one that does not is found out."""

from __future__ import annotations

import gc
import os
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.sim.world.mutations import MUTATIONS, Mutation, mutated
from tests.sim.world.simulation import simulate


@pytest.fixture(scope="module", autouse=True)
def late_garbage() -> Iterator[None]:
    """What killed processes leave is collected here, where nobody is told of it."""
    gc.disable()
    yield
    hook, sys.unraisablehook = sys.unraisablehook, lambda _what: None
    gc.collect()
    sys.unraisablehook = hook
    gc.enable()


@pytest.mark.parametrize("seed", range(20))
def test_a_pool_keeps_its_promises(seed: int) -> None:
    result = simulate(seed)
    assert not result.error
    assert result.count["calls"] > 0


@pytest.mark.timeout(600)
@pytest.mark.parametrize("mutation", MUTATIONS, ids=lambda each: each.name)
def test_a_fault_in_the_product_is_found(mutation: Mutation) -> None:
    with mutated(mutation):
        assert any(simulate(seed, mutation.shape).error for seed in range(mutation.seeds))


@pytest.mark.timeout(600)
def test_a_seed_replays_exactly_in_another_process() -> None:
    lines = []
    for order in ("0", "1"):
        ran = subprocess.run(
            [sys.executable, "-m", "tests.sim.world", "--seeds", "1", "--first", "11"],
            cwd=Path(__file__).parents[2],
            env={**os.environ, "PYTHONHASHSEED": order},
            capture_output=True,
            text=True,
            check=True,
        )
        lines.append(ran.stdout.splitlines())
    assert lines[0] == lines[1]
    assert len(lines[0]) > 20
