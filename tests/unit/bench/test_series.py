"""The arithmetic of benchmarks, and the layout of the batch workload."""

import numpy as np
import pytest

from moonpool.bench.series import Series, alternate, speed_ratio, timed
from moonpool.bench.store import Workload, scattered


def test_the_ratio_is_taken_pair_by_pair() -> None:
    # The machine became twice as slow half-way: each pair still says 0.5.
    measured, limit = Series((2.0, 2.0, 4.0, 4.0)), Series((1.0, 1.0, 2.0, 2.0))
    assert speed_ratio(measured, limit) == pytest.approx(0.5)


def test_rates_are_of_the_median_run() -> None:
    assert Series((1.0, 2.0, 9.0)).gb_s(4_000_000_000) == pytest.approx(2.0)


def test_steps_take_turns_and_the_first_round_does_not_count() -> None:
    order: list[str] = []

    def step(name: str, seconds: float) -> float:
        order.append(name)
        return seconds

    series = alternate([("a", lambda: step("a", 1.0)), ("b", lambda: step("b", 2.0))], 2)
    assert order == ["a", "b"] * 3
    assert series["a"].seconds == (1.0, 1.0)
    assert series["b"].seconds == (2.0, 2.0)


def test_every_call_is_timed() -> None:
    calls: list[int] = []
    assert len(timed(lambda: calls.append(1), 20).seconds) == 20
    assert len(calls) == 22


@pytest.mark.parametrize("pieces", [1, 3, 61])
def test_pieces_cover_the_memory_once(pieces: int) -> None:
    workload = Workload(objects=5, object_bytes=4096, pieces=pieces)
    memory = np.zeros(workload.nbytes, np.uint8)
    spread = scattered(memory, workload, seed=3)
    assert spread.sizes().tolist() == [4096] * 5
    begin = spread.addresses - np.uint64(memory.ctypes.data)
    seen = np.zeros(workload.nbytes, np.int64)
    for at, length in zip(begin.tolist(), spread.lengths.tolist(), strict=True):
        seen[at : at + length] += 1
    assert (seen == 1).all()
