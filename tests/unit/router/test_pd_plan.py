"""When one engine does both halves, and which ones do one each."""

from __future__ import annotations

import json
from typing import Any

import pytest

from moonpool.router.index import PrefixIndex
from moonpool.router.instance import Instance, Plan
from moonpool.router.members import Members, named
from moonpool.router.metrics import RouterMetrics
from moonpool.router.openai import Fields
from moonpool.router.options import Options
from moonpool.router.pd_plan import Planner, Tried, bypass_because
from moonpool.router.policy import Policy, create
from moonpool.router.prompt import Prompt, RoutedRequest

BLOCK = 16
BOUND = 2048


def _plan(prefill_tokens: float, predicted_s: float) -> Plan:
    return Plan(Instance("http://x"), prefill_tokens=prefill_tokens, predicted_s=predicted_s)


@pytest.mark.parametrize(
    ("left", "direct_s", "ahead_s", "tokens", "expected"),
    [
        (256, 9.0, 0.1, 100_000, "short"),
        (257, 9.0, 0.1, 100_000, ""),
        (2000, 0.5, 0.6, 100_000, "covered"),
        (2000, 0.9, 0.6, 100_000, ""),
        (2000, 0.5, 0.6, 3_000, ""),
        (3000, 0.5, 0.6, 100_000, ""),
        (50_000, 5.0, 20.0, 50_000, "queue"),
        (50_000, 5.0, 10.0, 50_000, ""),
    ],
)
def test_the_bounds(
    left: float, direct_s: float, ahead_s: float, tokens: float, expected: str
) -> None:
    found = bypass_because(_plan(left, direct_s), _plan(0, ahead_s), _plan(1, 0.1), tokens, BOUND)
    assert found == expected


class Place:
    """Two engines of both kinds, none of which has done anything yet."""

    def __init__(self, policy: str = "prefix") -> None:
        self.index = PrefixIndex()
        self.members = Members(self.index)
        self.policy: Policy = create(policy, self.index)
        for url, role in (("p0", "prefill"), ("p1", "prefill"), ("d0", "decode"), ("d1", "decode")):
            self.members.add(named(f"http://{url}", role))
        self.p0, self.p1, self.d0, self.d1 = self.members.instances
        self.pool_down = False
        down = lambda: self.pool_down  # noqa: E731
        self.planner = Planner(self.members, RouterMetrics(), lambda: 1.0, down)

    def plan(self, tokens: int, tried: Tried | None = None, pool: int = 0) -> Plan:
        fields = Fields(json.dumps({"prompt": "x" * tokens}).encode())
        routed = RoutedRequest("/v1/completions", b"x" * 4 * tokens, 0.0, fields=fields)
        routed.prompt = Prompt([*range(tokens // BLOCK)], tokens, BLOCK, exact=True)
        routed.pool_tokens = pool
        options = Options(pd="pool", bypass_tokens=BOUND)
        found = self.planner.plan(routed, tried or Tried(), self.policy, options)
        assert found is not None
        return found

    def warm(self, instance: Instance, tokens: int) -> None:
        self.index.add(instance.mark, [*range(tokens // BLOCK)], 0)


def test_a_long_prompt_is_split_and_each_half_goes_where_its_prefix_is() -> None:
    place = Place()
    place.warm(place.p1, 8_000)
    place.warm(place.d1, 4_000)
    plan = place.plan(16_000)
    assert (plan.prefill, plan.serve) == (place.p1, place.d1)
    assert plan.ahead is not None
    assert plan.ahead.prefill_tokens == 8_000
    assert plan.prefill_tokens == 1
    assert plan.work.load_tokens == pytest.approx(12_000, abs=BLOCK)


def test_what_the_decoding_engine_or_the_pool_has_is_not_prefilled_elsewhere() -> None:
    place = Place()
    place.warm(place.d0, 16_000)
    plan = place.plan(16_100)
    assert (plan.serve, plan.ahead) == (place.d0, None)
    assert Place().plan(16_100, pool=16_000).ahead is None
    # Most of it is there, but what is left is too much for a decoding engine.
    assert Place().plan(32_000, pool=16_000).ahead is not None


def test_a_long_queue_before_the_prefilling_engines_is_not_waited_in() -> None:
    place = Place()
    for each in (place.p0, place.p1):
        for number in range(50):
            each.queue.enter(number, 4.0, 1.0)
    assert place.plan(16_000).ahead is None


def test_nothing_is_split_over_a_pool_that_is_out_of_reach() -> None:
    place = Place()
    assert place.plan(16_000).ahead is not None
    place.pool_down = True
    assert place.plan(16_000).ahead is None


def test_turns_of_both_kinds_are_independent() -> None:
    place = Place("round_robin")
    plans = [place.plan(16_000) for _ in range(8)]
    pairs = {(plan.serve.url, plan.prefill.url if plan.prefill else "") for plan in plans}
    assert {each for pair in pairs for each in pair} == {
        *("http://p0", "http://p1", "http://d0", "http://d1")
    }


@pytest.mark.parametrize("policy", ["prefix", "round_robin", "least_loaded", "session"])
def test_engines_that_failed_are_not_tried_again(policy: str) -> None:
    place = Place(policy)
    plan = place.plan(16_000, Tried(serving=[place.d0], prefilling=[place.p1]))
    assert (plan.serve, plan.prefill) == (place.d1, place.p0)
    assert place.plan(16_000, Tried(prefilling=[place.p0, place.p1])).ahead is None
    assert place.plan(16_000, Tried(whole=True)).ahead is None


def test_prefilling_engines_serve_only_when_no_other_is_left() -> None:
    place = Place()
    place.d0.draining = place.d1.draining = True
    plan = place.plan(16_000)
    assert plan.serve in (place.p0, place.p1)
    assert plan.ahead is None


def test_a_mixed_house_serves_where_it_is_soonest() -> None:
    place = Place()
    both: Any = place.members.add("http://both")
    place.warm(both, 16_000)
    assert place.plan(16_000).serve is both
