"""The model of the time to first token."""

from __future__ import annotations

import random

import pytest

from moonpool.router.latency import FLOOR, PRIOR, LatencyModel, Work


def _truth(work: Work) -> float:
    return 0.05 + work.prefill_tokens / 8000 + work.load_tokens / 200_000 + work.running * 0.002


def test_rates_are_learned_from_answers() -> None:
    model, chance = LatencyModel(), random.Random(1)
    for _ in range(300):
        work = Work(chance.randrange(20_000), chance.randrange(30_000), chance.randrange(30))
        model.observe(work, _truth(work) * chance.uniform(0.95, 1.05))
    for work in (Work(500), Work(10_000), Work(1000, 20_000), Work(3000, 5000, 20)):
        assert model.predict(work) == pytest.approx(_truth(work), rel=0.15)


def test_long_prompts_other_hosts_and_queues_have_their_own_rates() -> None:
    model, chance = LatencyModel(), random.Random(4)

    def truth(work: Work) -> float:
        pairs = work.prefill_tokens * (work.context_tokens + work.prefill_tokens / 2)
        near = (work.load_tokens - work.far_tokens) / 300_000
        return 0.04 + 2.4e-5 * work.prefill_tokens + 8.4e-10 * pairs + near + (
            work.far_tokens / 80_000 + 0.9 * work.wait_s
        )  # fmt: skip

    for _ in range(400):
        load = chance.choice((0, chance.randrange(100_000)))
        work = Work(
            prefill_tokens=round(10 ** chance.uniform(2.0, 4.7)),
            load_tokens=load,
            context_tokens=chance.randrange(100_000),
            wait_s=chance.choice((0.0, chance.uniform(0, 3))),
            far_tokens=chance.choice((0, load)),
        )
        model.observe(work, truth(work) * chance.uniform(0.95, 1.05))
    for work in (
        Work(80_000),
        Work(600, 0, 0, 120_000),
        Work(600, 50_000),
        Work(600, 50_000, far_tokens=50_000),
        Work(600, wait_s=5.0),
    ):
        assert model.predict(work) == pytest.approx(truth(work), rel=0.3)


def test_a_change_of_speed_is_followed() -> None:
    model, chance = LatencyModel(), random.Random(2)
    for share in (1.0, 3.0):
        for _ in range(200):
            work = Work(chance.randrange(1000, 20_000))
            model.observe(work, share * _truth(work))
    assert model.predict(Work(10_000)) == pytest.approx(3 * _truth(Work(10_000)), rel=0.15)


def test_what_was_never_seen_stays_with_the_prior() -> None:
    model = LatencyModel()
    for _ in range(50):
        model.observe(Work(4000), 0.5)
    assert model.weights[2] == pytest.approx(PRIOR[2])


def test_no_cost_is_ever_learned_as_a_gain() -> None:
    model = LatencyModel()
    for tokens in range(0, 20_000, 500):
        model.observe(Work(tokens), 1.0 - tokens / 40_000)
    assert model.weights[1] >= FLOOR * PRIOR[1]
    assert model.predict(Work(20_000)) > model.predict(Work(100))


def test_an_instance_that_is_never_asked_is_taken_for_one_of_the_fleet() -> None:
    fleet = LatencyModel()
    slow, other = LatencyModel(fleet), LatencyModel(fleet)
    for _ in range(20):
        fleet.observe(Work(1000), 0.1)
        slow.observe(Work(1000), 5.0)
    believed = [slow.predict(Work(1000))]
    for _ in range(2000):
        fleet.observe(Work(1000), 0.1)
        other.observe(Work(1000), 0.1)
    believed.append(slow.predict(Work(1000)))
    assert believed[0] > 1.0
    assert believed[1] < 0.3
    assert LatencyModel(fleet).predict(Work(1000)) == pytest.approx(0.1, rel=0.1)


@pytest.mark.parametrize("seconds", [-1.0, float("nan"), float("inf"), 1e9])
def test_nonsense_is_left_out(seconds: float) -> None:
    model = LatencyModel()
    model.observe(Work(1000), seconds)
    assert model.samples == 0
    assert model.weights == PRIOR
