"""Two engines that are given the same prefix at the same time."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from typing import Any

import pytest

from moonpool.core.handoffs import claim_of
from moonpool.core.messages import ENDED, FAILED, OPEN, UNHEARD, Awaited
from moonpool.vllm.arrivals import Arrival
from tests.unit.vllm.engine import BLOCK, Engine, truth
from tests.unit.vllm.fakes import FakePool, FakeRequest

PROMPT = 26
"""Six blocks, three objects, and two tokens more."""


class Twins:
    """Engines on one pool; ``other`` is given its prompt while ``one`` computes the same."""

    def __init__(self, **changes: Any) -> None:
        self.pool = FakePool()
        chosen = {"share_prefill_tokens": 16} | changes
        self.one, self.other = (Engine(pool=self.pool, **chosen) for _ in range(2))
        self.first = FakeRequest("first", range(PROMPT), BLOCK)

    def begin(self, tokens: int = 8) -> None:
        assert self.one.add(self.first) == 0
        self.compute(tokens)

    def compute(self, tokens: int) -> None:
        self.one.step({"first": tokens})
        self.one.settle()

    def step_other(self, until: Callable[[], object]) -> None:
        deadline = time.monotonic() + 20
        while not until():
            assert time.monotonic() < deadline, "waited in vain"
            self.other.step()
            time.sleep(0.001)

    def check(self, req: FakeRequest, blocks: int) -> None:
        assert self.other.completed == [req.request_id]
        assert req.num_computed_tokens == blocks * BLOCK
        table = self.other.tables[req.request_id]
        for at in range(blocks):
            assert self.other.memory.read(table[at]) == truth(req.block_hashes[at]).tobytes()


@pytest.fixture
def twins() -> Iterator[Twins]:
    made = Twins()
    yield made
    made.one.close()
    made.other.close()


def test_a_prefix_that_another_engine_computes_is_waited_for(twins: Twins) -> None:
    """Weakness 25."""
    twins.begin()
    second = FakeRequest("second", [*range(PROMPT), 1, 2, 3, 4, 5], BLOCK)
    assert twins.other.add(second) == 24
    twins.step_other(lambda: twins.pool.questions)
    twins.compute(8)
    twins.compute(10)
    twins.step_other(lambda: twins.other.completed)
    twins.check(second, 6)
    assert twins.other.side.tally.take()["claimed_hits"] == 1
    assert twins.pool.state_of(claim_of(twins.one.key(second.block_hashes[5]))) == ENDED


def test_only_what_is_shared_is_waited_for(twins: Twins) -> None:
    twins.begin()
    second = FakeRequest("second", [*range(17), *range(500, 520)], BLOCK)
    assert twins.other.add(second) == 16
    twins.step_other(lambda: twins.pool.questions)
    twins.compute(8)
    twins.step_other(lambda: twins.other.completed)
    twins.check(second, 4)


@pytest.mark.parametrize("how", ["fails", "silent"])
def test_an_engine_that_fails_is_not_waited_for(twins: Twins, how: str) -> None:
    twins.begin()
    second = FakeRequest("second", range(PROMPT), BLOCK)
    assert twins.other.add(second) == 24
    twins.step_other(lambda: twins.pool.questions)
    if how == "fails":
        twins.one.finish(twins.first)
        assert twins.pool.state_of(claim_of(twins.one.key(second.block_hashes[5]))) == FAILED
    else:
        twins.other.clock.now += 2.1
        twins.pool.notice(late=True)
    twins.step_other(lambda: twins.other.completed)
    twins.check(second, 2)


def test_short_prompts_and_engines_that_do_not_want_it_wait_for_nobody() -> None:
    for changes in ({"share_prefill_tokens": 100}, {"share_prefill_tokens": 0}):
        twins = Twins(**changes)
        twins.begin()
        assert twins.other.add(FakeRequest("second", range(PROMPT), BLOCK)) == 8
        assert not twins.pool.news
        twins.one.close()
        twins.other.close()


def test_the_end_of_a_claim_is_told_when_all_of_it_is_saved(twins: Twins) -> None:
    twins.begin(PROMPT)
    states = [each.state for each in twins.pool.news]
    assert (states.count(ENDED), set(states)) == (3, {OPEN, ENDED})
    assert twins.one.side.handoffs.count == 0


def test_a_claim_is_waited_for_while_it_makes_progress_and_not_too_long() -> None:
    arrival = Arrival(4, 2.0, 0.0, 2.0)
    arrival.question(0.0)
    arrival.heard(Awaited(1, UNHEARD), 1.0)
    assert not arrival.over
    arrival.question(1.0)
    arrival.heard(Awaited(0, OPEN), 1.5)
    assert not arrival.tick(1.9)
    assert arrival.tick(2.0)
    arrival = Arrival(4, 2.0, 0.0, 2.0)
    arrival.question(0.0)
    arrival.heard(Awaited(0, UNHEARD), 0.0)
    assert arrival.over
