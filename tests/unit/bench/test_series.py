"""The arithmetic of benchmarks: medians, ratios pair by pair, failures in between."""

import pytest

from moonpool.bench.series import Series, alternate, speed_ratio
from moonpool.errors import TransferError


def test_the_ratio_is_taken_pair_by_pair() -> None:
    # The machine became twice as slow half-way: each pair still says 0.5.
    measured, limit = Series((2.0, 2.0, 4.0, 4.0)), Series((1.0, 1.0, 2.0, 2.0))
    assert speed_ratio(measured, limit) == pytest.approx(0.5)


def test_rates_are_of_the_median_run() -> None:
    assert Series((1.0, 2.0, 9.0)).gb_s(4_000_000_000) == pytest.approx(2.0)


def test_steps_take_turns_and_the_first_round_does_not_count() -> None:
    order: list[str] = []

    def step(name: str) -> float:
        order.append(name)
        return float(len(order))

    series = alternate([("a", lambda: step("a")), ("b", lambda: step("b"))], 2)
    assert order == ["a", "b"] * 3
    assert series["a"].seconds == (3.0, 5.0)
    assert series["b"].seconds == (4.0, 6.0)


def test_a_step_that_fails_is_left_out_and_the_others_go_on() -> None:
    calls: list[str] = []

    def fails() -> float:
        calls.append("fails")
        raise TransferError("lane full")

    def works() -> float:
        calls.append("works")
        return 1.0

    series = alternate([("fails", fails), ("works", works)], 3)
    assert calls == ["fails", "works", "works", "works", "works"]
    assert series["works"].seconds == (1.0, 1.0, 1.0)
    assert (series["fails"].seconds, series["fails"].failure) == ((), "lane full")
