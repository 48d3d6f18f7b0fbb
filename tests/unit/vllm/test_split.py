"""A prefill and a decode engine that share nothing but the pool."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from typing import Any

import pytest

from moonpool.core.messages import ENDED, FAILED, OPEN
from moonpool.errors import NoSpaceError
from moonpool.vllm import mover_wire as wire
from tests.unit.vllm.engine import BLOCK, Engine, truth
from tests.unit.vllm.fakes import BlockState, FakePool, FakeRequest

PROMPT = 22
"""Tokens: five blocks, two objects of two blocks and a tail of one, and two tokens more."""
WHOLE = 5 * BLOCK


class Split:
    """Both engines, stepped by hand."""

    def __init__(self, **changes: Any) -> None:
        self.pool = FakePool()
        self.p = Engine(pool=self.pool, role="kv_producer", **changes)
        self.d = Engine(pool=self.pool, role="kv_consumer", **changes)

    def to_p(self, name: str = "p", transfer: str = "t", first: int = 0) -> FakeRequest:
        req = FakeRequest(name, range(first, first + PROMPT), BLOCK)
        req.kv_transfer_params = {"do_remote_decode": True, "transfer_id": transfer}
        self.p.add(req)
        return req

    def to_d(self, name: str = "d", transfer: str = "t", first: int = 0) -> FakeRequest:
        req = FakeRequest(name, range(first, first + PROMPT), BLOCK)
        req.kv_transfer_params = {"do_remote_prefill": True, "transfer_id": transfer}
        self.offered = self.d.add(req)
        return req

    def prefill(self, req: FakeRequest, tokens: int) -> None:
        self.p.step({req.request_id: tokens})
        self.p.settle()

    def finish(self, req: FakeRequest) -> None:
        req.append(1)
        self.p.finish(req)
        self.p.settle()

    def step_d(self, until: Callable[[], object]) -> None:
        deadline = time.monotonic() + 20
        while not until():
            assert time.monotonic() < deadline, "waited in vain"
            self.d.step()
            time.sleep(0.001)

    def decode(self, req: FakeRequest, tokens: int) -> None:
        for token in range(100, 100 + tokens):
            req.append(token)
            self.d.allocate(req, -(-req.num_tokens // BLOCK))
            self.d.step({req.request_id: 1})

    def gets(self) -> int:
        return sum(map(len, self.pool.gets))

    def check(self, req: FakeRequest, blocks: int) -> None:
        """D has the right bytes in so many blocks and counts on no others."""
        assert self.d.completed.count(req.request_id) == 1
        assert req.num_computed_tokens == blocks * BLOCK
        table = self.d.tables[req.request_id]
        for at in range(blocks):
            assert self.d.memory.read(table[at]) == truth(req.block_hashes[at]).tobytes()

    def close(self) -> None:
        self.p.close()
        self.d.close()


@pytest.fixture
def split() -> Iterator[Split]:
    made = Split()
    yield made
    made.close()


def test_d_loads_what_p_has_computed_while_p_computes_the_rest(split: Split) -> None:
    there, here = split.to_p(), split.to_d()
    assert split.offered == WHOLE
    split.step_d(lambda: split.pool.questions)
    split.prefill(there, 8)
    split.step_d(lambda: split.gets() == 1)
    assert split.pool.state_of("t") == OPEN
    split.prefill(there, 8)
    split.step_d(lambda: split.gets() == 2)
    assert not split.d.completed
    split.prefill(there, 6)
    split.step_d(lambda: split.d.completed)
    split.check(here, 5)
    split.finish(there)
    assert split.pool.state_of("t") == ENDED
    counted = split.d.worker.tally.take()
    assert (counted["remote_prefills"], counted["remote_objects"]) == (1, 3)
    assert counted["remote_prefills_failed"] == 0 if "remote_prefills_failed" in counted else True
    assert split.d.side.tally.take()["remote_tokens"] == WHOLE
    assert split.p.side.tally.take()["handoffs"] == 1


def test_d_may_come_after_p_has_ended(split: Split) -> None:
    there = split.to_p()
    split.prefill(there, PROMPT)
    split.finish(there)
    here = split.to_d()
    assert split.offered == WHOLE
    split.step_d(lambda: split.d.completed)
    split.check(here, 5)


def test_d_does_not_save_what_it_was_given(split: Split) -> None:
    there, here = split.to_p(), split.to_d()
    split.prefill(there, PROMPT)
    split.step_d(lambda: split.d.completed)
    puts = split.pool.puts
    split.d.step({"d": 2})
    split.d.settle()
    assert split.pool.puts == puts
    split.decode(here, 30)
    split.d.settle()
    assert split.pool.puts > puts
    split.p.check_pool(here)


def test_the_next_turn_finds_ds_answer_when_it_is_prefilled(split: Split) -> None:
    there, here = split.to_p(), split.to_d()
    split.prefill(there, PROMPT)
    split.finish(there)
    split.step_d(lambda: split.d.completed)
    split.d.step({"d": 2})
    split.decode(here, 20)
    split.d.finish(here)
    split.d.settle()
    turn = FakeRequest("turn", [*here.tokens, 7, 8, 9], BLOCK)
    turn.kv_transfer_params = {"do_remote_decode": True, "transfer_id": "u"}
    assert split.p.add(turn) == (PROMPT + 19) // BLOCK * BLOCK


@pytest.mark.parametrize("computed", [0, 8, 16])
@pytest.mark.parametrize("how", ["aborted", "gone", "silent"])
def test_when_p_fails_d_computes_the_rest(computed: int, how: str) -> None:
    split = Split(pd_wait_s=5)
    there, here = split.to_p(), split.to_d()
    split.step_d(lambda: split.pool.questions)
    if computed:
        split.prefill(there, computed)
    split.step_d(lambda: split.gets() == computed // 8)
    split.step_d(lambda: split.pool.questions)
    if how == "aborted":
        split.p.finish(there)
        assert split.pool.state_of("t") == FAILED
    elif how == "gone":
        # The master says so when the connection ends.
        split.p.side.handoffs.finished(1, good=False)
    else:
        split.d.clock.now += 5.1
        split.pool.quiet_s = 5.1
        split.pool.notice(late=True)
    split.step_d(lambda: split.d.completed)
    split.check(here, computed // BLOCK)
    assert split.d.worker.tally.take()["remote_prefills_failed"] == 1
    # Nothing is waited for a second time.
    split.d.free(here)
    assert split.d.admit(here) in (0, computed)
    assert not any(job.patience_s for job in split.d.side.take_loads())
    split.close()


def test_without_a_p_d_computes_all_of_it(split: Split) -> None:
    here = split.to_d()
    assert split.offered == WHOLE
    split.step_d(lambda: split.pool.questions)
    split.d.clock.now += 5.1
    split.pool.notice(late=True)
    split.step_d(lambda: split.d.completed)
    split.check(here, 0)


def test_a_p_that_cannot_save_is_not_waited_for(split: Split) -> None:
    split.pool.put_code = NoSpaceError.code
    there, here = split.to_p(), split.to_d()
    split.prefill(there, PROMPT)
    split.finish(there)
    assert split.pool.state_of("t") == ENDED
    split.step_d(lambda: split.d.completed)
    split.check(here, 0)


def test_an_abort_at_d_frees_everything_at_once(split: Split) -> None:
    split.to_p()
    here = split.to_d()
    split.step_d(lambda: split.pool.questions)
    split.d.finish(here)
    assert split.d.side.has_work
    split.step_d(lambda: split.d.completed)
    assert split.d.completed == ["d"]
    assert not split.d.requests
    assert not split.d.block_pool.held
    assert split.d.side._loads.loading == 0
    assert not split.d.worker._spread.loads
    # What comes late reaches nobody.
    split.pool.notice(late=True)


def test_an_object_that_is_evicted_before_d_has_it_is_computed(split: Split) -> None:
    there, here = split.to_p(), split.to_d()
    split.step_d(lambda: split.pool.questions)
    split.pool.get_codes[split.d.key(here.block_hashes[3])] = -704
    split.prefill(there, PROMPT)
    split.step_d(lambda: split.d.completed)
    split.check(here, 2)


def test_a_full_d_waits_for_nothing(split: Split) -> None:
    """The engine's own cache has it all."""
    req = FakeRequest("d", range(PROMPT), BLOCK)
    req.kv_transfer_params = {"do_remote_prefill": True, "transfer_id": "t"}
    assert split.d.add(req, local=5) == 0


def test_an_old_master_is_not_asked_to_wait(split: Split) -> None:
    split.pool.awaits = False
    split.to_p()
    split.to_d()
    assert split.offered == 0
    assert not split.pool.news


def test_waiting_can_be_switched_off() -> None:
    split = Split(pd_wait_s=0)
    split.to_d()
    assert split.offered == 0
    split.close()


def test_two_requests_may_have_one_id(split: Split) -> None:
    there, again = split.to_p("p1"), split.to_p("p2", first=50)
    one, two = split.to_d("d1"), split.to_d("d2", first=50)
    split.prefill(there, PROMPT)
    split.finish(there)
    split.prefill(again, PROMPT)
    split.step_d(lambda: len(split.d.completed) == 2)
    split.check(one, 5)
    # The pool in memory takes the first end for the end; a real one waits for the last.
    assert two.num_computed_tokens in (0, 8, 16, 20)


def test_signs_of_life_come_with_the_steps(split: Split) -> None:
    split.to_p()
    split.p.step()
    told = len(split.pool.news)
    split.p.step()
    assert len(split.pool.news) == told
    split.p.clock.now += 1.1
    split.p.step()
    assert [each.state for each in split.pool.news] == [OPEN] * (told + 1)


def test_a_handoff_is_closed_when_its_id_comes_again(split: Split) -> None:
    split.to_p("same")
    split.p.side._track(FakeRequest("same", range(9), BLOCK))
    assert split.pool.state_of("t") == FAILED
    assert split.p.side.handoffs.count == 0


def test_jobs_reach_the_mover_whole(split: Split) -> None:
    split.to_d()
    (load,) = split.d.side.take_loads()
    assert (load.transfer, load.patience_s) == ("t", 5.0)
    sent = wire.decode(wire.encode(wire.Begin(loads=[wire.load_of(load)], cancels=[7]))[4:])
    assert isinstance(sent, wire.Begin)
    again = wire.load_job(sent.loads[0])
    assert (again.transfer, again.patience_s, sent.cancels) == ("t", 5.0, [7])
    there = split.to_p()
    split.p.side.plan_saves({"p": 8}, BlockState(split.p.tables))
    (save,) = split.p.side.take_saves()
    assert wire.save_job(wire.save_of(save)).urgent
    assert there.num_computed_tokens == 0


def test_a_preempted_p_goes_on_and_d_waits_for_it(split: Split) -> None:
    there, here = split.to_p(), split.to_d()
    split.prefill(there, 8)
    split.step_d(lambda: split.gets() == 1)
    split.p.preempt(there)
    split.p.clock.now += 1.5
    split.p.step()
    assert split.pool.state_of("t") == OPEN
    # The pool has its first object now: it loads that.
    assert split.p.admit(there) in (0, 8)
    split.p.settle()
    split.prefill(there, PROMPT - there.num_computed_tokens)
    split.step_d(lambda: split.d.completed)
    split.check(here, 5)


def test_on_a_cpu_d_gives_way_while_it_waits(split: Split) -> None:
    there, here = split.to_p(), split.to_d()
    split.step_d(lambda: split.pool.questions)
    worker = split.d.worker
    assert worker.rest() == set()
    worker._device = "cpu"
    began = time.monotonic()
    assert worker.rest() == set()
    assert time.monotonic() - began >= 0.01
    split.prefill(there, PROMPT)
    ended: set[str] = set()
    while not ended:
        ended = worker.rest()
    assert ended == {here.request_id}
    assert worker.rest() == set()
