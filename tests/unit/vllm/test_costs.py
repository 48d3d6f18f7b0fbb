"""Loading a hit, or computing it again."""

from __future__ import annotations

import pytest

from moonpool.vllm.costs import SAMPLES_MIN, TRY_AGAIN, Costs
from tests.unit.vllm.engine import BLOCK, SchedulerOnly
from tests.unit.vllm.fakes import BlockState, FakeRequest


def learned(token_s: float, load_s: float, tokens: int = 1000, samples: int = SAMPLES_MIN) -> Costs:
    costs = Costs()
    for at in range(samples + 1):
        costs.step(at * token_s * 500, {"a": 500})
    for _ in range(samples):
        costs.loaded(tokens, load_s)
    return costs


def test_fast_loads_are_worth_it() -> None:
    assert learned(token_s=0.001, load_s=0.2).worth_loading(1000)


def test_slow_loads_are_not() -> None:
    costs = learned(token_s=0.0001, load_s=2.0)
    assert not costs.worth_loading(1000)
    assert not costs.worth_loading(600)


def test_in_doubt_a_hit_is_loaded() -> None:
    slower = learned(token_s=0.001, load_s=2.9)
    assert slower.worth_loading(1000), "computing would not be much faster"
    assert learned(token_s=0.0, load_s=0.2).worth_loading(1000), "too short to matter"
    assert learned(0.0001, 2.0, samples=SAMPLES_MIN - 1).worth_loading(1000), "too little is known"
    assert learned(0.0001, 2.0).worth_loading(100_000), "nothing is known of this size"


def test_now_and_then_it_is_tried_again() -> None:
    costs = learned(token_s=0.0001, load_s=2.0)
    tries = [costs.worth_loading(1000) for _ in range(3 * TRY_AGAIN)]
    assert tries.count(True) == 3
    for _ in range(20):
        costs.loaded(1000, 0.01)
    assert costs.worth_loading(1000)


def test_an_idle_engine_is_not_taken_for_a_slow_one() -> None:
    costs = Costs()
    for at in range(20):
        costs.step(100.0 * at, {f"request-{at}": 500})
    for _ in range(20):
        costs.loaded(1000, 2.0)
    assert costs.worth_loading(1000), "no step was measured"


@pytest.mark.parametrize("wanted", [True, False])
def test_a_hit_that_loads_too_slowly_is_recomputed(wanted: bool) -> None:
    """Weakness 7: a cost model."""
    made = SchedulerOnly(cost_model=wanted)

    def offered(name: str, seconds: float) -> int:
        req = FakeRequest(name, range(40), BLOCK)
        made.fill(req, 10)
        made.side.on_new_request(req)
        tokens = made.side.matched_tokens(req, 0)
        assert made.side.matched_tokens(req, 0) == tokens
        if tokens:
            made.side.after_alloc(req, [[*range(1, 11)]], tokens)
            (job,) = made.side.take_loads()
            made.clock.now += seconds
            made.loaded(job)
        return tokens

    for _ in range(SAMPLES_MIN + 1):
        made.side.plan_saves({"other": 100}, BlockState({}))
        made.clock.now += 0.001
    hits = [offered(f"r{at}", 3.0) for at in range(SAMPLES_MIN + 4)]
    assert hits[:SAMPLES_MIN] == [40] * SAMPLES_MIN
    assert hits[SAMPLES_MIN:] == [0 if wanted else 40] * 4
    assert made.side.tally.take().get("slow_hits", 0) == (4 if wanted else 0)
