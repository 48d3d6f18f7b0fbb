"""What the scheduler's side saves, when, and which blocks it holds meanwhile."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from moonpool.core.keys import split
from moonpool.errors import NoSpaceError
from moonpool.vllm import objects
from moonpool.vllm.jobs import SaveJob
from tests.unit.vllm.engine import BLOCK, SchedulerOnly
from tests.unit.vllm.fakes import FakeRequest

TABLE = list(range(1, 17))


@pytest.fixture
def side() -> Iterator[SchedulerOnly]:
    made = SchedulerOnly()
    yield made
    made.side.shutdown()


def arrive(side: SchedulerOnly, tokens: int = 20, name: str = "r", first: int = 0) -> FakeRequest:
    req = FakeRequest(name, range(first, first + tokens), BLOCK)
    side.side.on_new_request(req)
    return req


def names(job: SaveJob) -> list[bytes]:
    return objects.split_names(job.names)


def ends(req: FakeRequest, *positions: int) -> list[bytes]:
    return [req.block_hashes[end - 1][:16] for end in positions]


def test_complete_objects_are_saved_as_they_are_computed(side: SchedulerOnly) -> None:
    req = arrive(side, 32)
    assert side.save_step(req, 6, TABLE) == []
    (job,) = side.save_step(req, 4, TABLE)
    assert names(job) == ends(req, 2)
    assert job.block_ids.tolist() == [1, 2]
    (job,) = side.save_step(req, 22, TABLE)
    assert names(job) == ends(req, 4, 6, 8)
    assert job.counts.tolist() == [2, 2, 2]
    parents = [name.hex() for name in objects.split_names(job.parents)]
    assert parents == [name.hex() for name in ends(req, 2, 4, 6)]


def test_the_prompts_tail_is_saved_when_the_prompt_is_computed(side: SchedulerOnly) -> None:
    req = arrive(side, 22)
    (job,) = side.save_step(req, 22, TABLE)
    assert names(job) == ends(req, 2, 4, 5)
    assert job.counts.tolist() == [2, 2, 1]


def test_generated_blocks_are_saved_and_the_end_has_a_tail(side: SchedulerOnly) -> None:
    """Weakness 21: the next turn of a conversation finds the last answer."""
    req = arrive(side, 20)
    side.save_step(req, 20, TABLE)
    jobs = []
    for token in range(20, 33):
        req.append(token)
        jobs += side.save_step(req, 1, TABLE)
    assert [names(job) for job in jobs] == [ends(req, 6), ends(req, 8)]
    for token in range(33, 38):
        req.append(token)
        assert side.save_step(req, 1, TABLE) == []
    side.side.finished(req, [TABLE])
    (job,) = side.side.take_saves()
    assert names(job) == ends(req, 9)


def test_the_last_token_of_a_request_was_never_computed(side: SchedulerOnly) -> None:
    req = arrive(side, 15)
    side.save_step(req, 15, TABLE)
    req.append(15)
    side.side.finished(req, [TABLE])
    assert side.side.take_saves() == []


def test_decode_can_be_left_out() -> None:
    made = SchedulerOnly(save_decode=False)
    req = arrive(made, 16)
    assert len(made.save_step(req, 16, TABLE)) == 1
    for token in range(16, 40):
        req.append(token)
        assert made.save_step(req, 1, TABLE) == []
    made.side.finished(req, [TABLE])
    assert made.side.take_saves() == []


def test_tokens_without_a_hash_are_not_saved(side: SchedulerOnly) -> None:
    """Draft tokens, or async scheduling's placeholders: hashes come later."""
    req = arrive(side, 16)
    side.save_step(req, 16, TABLE)
    req.num_computed_tokens = 16
    side.side.plan_saves({"r": 8}, _state(req))
    assert side.side.take_saves() == []


def _state(req: FakeRequest) -> object:
    from tests.unit.vllm.fakes import BlockState

    return BlockState({req.request_id: TABLE})


def test_what_the_pool_has_is_not_saved_again(side: SchedulerOnly) -> None:
    """Saves after a hit begin where the pool ends."""
    req = FakeRequest("r", range(32), BLOCK)
    side.fill(req, 4)
    side.side.on_new_request(req)
    side.side.after_alloc(req, [TABLE], side.side.matched_tokens(req, 0))
    (load,) = side.side.take_loads()
    side.loaded(load)
    req.num_computed_tokens = 16
    (job,) = side.save_step(req, 16, TABLE)
    assert names(job) == ends(req, 6, 8)


def test_an_answer_older_than_a_save_does_not_undo_it(side: SchedulerOnly) -> None:
    first = arrive(side, 16, "a")
    side.clock.now += 1
    second = arrive(side, 16, "b")
    side.clock.now += 1
    (job,) = side.save_step(first, 16, TABLE)
    side.done(job)
    assert side.side.matched_tokens(second, 0) == 0
    assert side.save_step(second, 16, TABLE) == []


def test_the_engines_own_hit_that_the_pool_lost_is_saved(side: SchedulerOnly) -> None:
    """A gap at the front would make everything behind it useless."""
    req = arrive(side, 32)
    assert side.side.matched_tokens(req, 24) == 0
    req.num_computed_tokens = 24
    (job,) = side.save_step(req, 8, TABLE)
    assert names(job) == ends(req, 2, 4, 6, 8)


def test_an_answer_that_came_late_still_saves_work(side: SchedulerOnly) -> None:
    side.courier.at_once = False
    req = FakeRequest("r", range(32), BLOCK)
    side.fill(req, 6)
    side.side.on_new_request(req)
    assert side.side.matched_tokens(req, 0) == 0
    side.courier.run()
    (job,) = side.save_step(req, 32, TABLE)
    assert names(job) == ends(req, 8)


def test_two_requests_with_one_prefix_save_it_once(side: SchedulerOnly) -> None:
    first, second = arrive(side, 16, "a"), arrive(side, 16, "b")
    (job,) = side.save_step(first, 16, TABLE)
    side.done(job)
    assert side.save_step(second, 16, TABLE) == []


def test_what_was_known_and_is_gone_is_saved_again(side: SchedulerOnly) -> None:
    first = arrive(side, 16, "a")
    (job,) = side.save_step(first, 16, TABLE)
    side.done(job)
    side.clock.now += 1
    second = arrive(side, 16, "b")  # The lookup finds nothing: it was evicted.
    assert side.side.matched_tokens(second, 0) == 0
    (job,) = side.save_step(second, 16, TABLE)
    assert names(job) == ends(second, 2, 4)


def test_blocks_are_held_until_the_worker_is_done(side: SchedulerOnly) -> None:
    """Also past a preemption, which frees the request's own hold only."""
    req = arrive(side, 16)
    (job,) = side.save_step(req, 16, TABLE)
    assert (side.block_pool.held, side.side.has_work) == ([1, 2, 3, 4], True)
    side.done(job)
    assert (side.block_pool.held, side.side.has_work) == ([], False)
    side.done(job)
    assert side.block_pool.held == []


def test_the_end_of_a_prefix_is_freed_before_its_start(side: SchedulerOnly) -> None:
    req = arrive(side, 16)
    (job,) = side.save_step(req, 16, TABLE)
    side.done(job)
    assert side.block_pool.freed == [4, 3, 2, 1]


def test_held_blocks_are_bounded_and_the_rest_is_saved_later() -> None:
    """Weakness 15."""
    made = SchedulerOnly(blocks=20, pinned_blocks_ratio=0.25)
    req = arrive(made, 64)
    (job,) = made.save_step(req, 64, TABLE)
    assert names(job) == ends(req, 2, 4)
    assert len(made.block_pool.held) == 4
    assert made.side.tally.take()["save_blocks_deferred"] == 12
    assert made.save_step(req, 0, TABLE) == []
    made.done(job)
    for token in range(64, 72):
        req.append(token)
        for later in made.save_step(req, 1, TABLE):
            assert names(later) == ends(req, 6, 8)
            made.done(later)
            return
    raise AssertionError("the rest was never saved")


def test_what_does_not_fit_at_the_end_is_dropped_and_counted() -> None:
    """One request at a time may go beyond the bound: what is computed alone is saved whole."""
    made = SchedulerOnly(blocks=20, pinned_blocks_ratio=0.1)
    first, second = arrive(made, 41), arrive(made, 17, "s", 100)
    for req in (first, second):
        made.side.plan_saves({req.request_id: 0}, _state(req))
        req.num_computed_tokens = req.num_tokens - 1
        made.side.finished(req, [TABLE])
    (job,) = made.side.take_saves()
    assert names(job) == ends(first, 2, 4, 6, 8, 10)
    assert made.side.tally.take()["save_blocks_dropped"] == 4
    made.done(job)
    third = arrive(made, 41, "t", 200)
    made.side.plan_saves({"t": 0}, _state(third))
    third.num_computed_tokens = 40
    made.side.finished(third, [TABLE])
    assert len(made.side.take_saves()) == 1


def test_an_object_always_fits_however_small_the_cache() -> None:
    made = SchedulerOnly(blocks=4, pinned_blocks_ratio=0.0)
    req = arrive(made, 8)
    assert len(made.save_step(req, 8, TABLE)) == 1


def test_a_full_pool_is_left_alone_for_a_while_and_tried_again(side: SchedulerOnly) -> None:
    """Weakness 14: failed saves are tried again from the first gap, a bounded number of times."""
    req = arrive(side, 16)
    (job,) = side.save_step(req, 16, TABLE)
    side.done(job, NoSpaceError.code)
    assert side.block_pool.held == []
    for token in range(16, 24):
        req.append(token)
        assert side.save_step(req, 1, TABLE) == []
    tries = 0
    for token in range(24, 80):
        side.clock.now += 2
        req.append(token)
        for again in side.save_step(req, 1, TABLE):
            tries += 1
            assert names(again)[0] == ends(req, 2)[0] or tries > 3
            side.done(again, NoSpaceError.code)
    assert 3 <= tries <= 10


def test_without_a_pool_nothing_is_held(side: SchedulerOnly) -> None:
    side.link.pool = None
    req = arrive(side, 16)
    assert side.save_step(req, 16, TABLE) == []
    side.side.finished(req, [TABLE])
    assert side.side.take_saves() == []
    assert side.block_pool.held == []
    assert not side.side.has_work
    assert side.side.tally.take()["save_blocks_dropped"] > 0


def test_an_aborted_load_saves_nothing(side: SchedulerOnly) -> None:
    """The blocks of a request that waits do not hold what its hashes say."""
    req = FakeRequest("r", range(20), BLOCK)
    side.fill(req, 4)
    side.pool.objects.pop(side.key(req.block_hashes[1]))
    side.fill(req, 2)
    side.side.on_new_request(req)
    side.side.after_alloc(req, [TABLE], side.side.matched_tokens(req, 0))
    req.num_computed_tokens = 8
    side.side.finished(req, [TABLE])
    assert side.side.take_saves() == []


def test_what_another_connector_brings_is_saved_a_step_later(side: SchedulerOnly) -> None:
    """Below MultiConnector another child may load in this very step, and fail."""
    req = arrive(side, 32)
    assert side.side.matched_tokens(req, 0) == 0
    req.num_computed_tokens = 16
    assert side.save_step(req, 8, TABLE) == []
    # It failed: vLLM goes back and computes.
    req.num_computed_tokens = 0
    (job,) = side.save_step(req, 32, TABLE)
    assert names(job) == ends(req, 2, 4, 6, 8)


def test_the_null_block_is_never_saved(side: SchedulerOnly) -> None:
    req = arrive(side, 16)
    (job,) = side.save_step(req, 16, [0, 0, 3, 4])
    assert names(job) == ends(req, 4)


def test_a_failed_load_is_saved_anew_after_the_recompute(side: SchedulerOnly) -> None:
    req = FakeRequest("r", range(16), BLOCK)
    side.fill(req, 4)
    side.side.on_new_request(req)
    side.side.after_alloc(req, [TABLE], side.side.matched_tokens(req, 0))
    (load,) = side.side.take_loads()
    side.loaded(load, 2)
    req.num_computed_tokens = 8
    (job,) = side.save_step(req, 8, TABLE)
    assert names(job) == ends(req, 4)


def test_jobs_of_before_a_reset_teach_nothing_after_it(side: SchedulerOnly) -> None:
    req = arrive(side, 16)
    (job,) = side.save_step(req, 16, TABLE)
    side.side.reset()
    side.done(job)
    assert side.block_pool.held == []
    other = arrive(side, 16, "b")
    (again,) = side.save_step(other, 16, TABLE)
    assert split(objects.keys_of(again.namespace, again.names)[0])[0] == side.side.namespace
    # The old request may hold KV of the old weights.
    for token in range(16, 24):
        req.append(token)
        assert side.save_step(req, 1, TABLE) == []


def test_an_engine_that_steps_no_more_lets_go_of_the_wait(side: SchedulerOnly) -> None:
    req = arrive(side, 16)
    side.save_step(req, 16, TABLE)
    before = side.side.has_work
    side.clock.now += 60
    assert (before, side.side.has_work) == (True, False)
