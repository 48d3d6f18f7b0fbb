"""Lookups, offers and load jobs of the scheduler's side."""

from __future__ import annotations

import pickle
from collections.abc import Iterator

import pytest

from moonpool.errors import ChecksumError, DeadlineError
from moonpool.vllm.lookups import Lookup
from tests.unit.vllm.engine import BLOCK, SchedulerOnly
from tests.unit.vllm.fakes import FakeRequest, InlineCourier


@pytest.fixture
def side() -> Iterator[SchedulerOnly]:
    made = SchedulerOnly()
    yield made
    made.side.shutdown()


def request(name: str = "r", tokens: int = 20, first: int = 0) -> FakeRequest:
    return FakeRequest(name, range(first, first + tokens), BLOCK)


def arrive(side: SchedulerOnly, req: FakeRequest, local: int = 0) -> int:
    side.side.on_new_request(req)
    return side.side.matched_tokens(req, local * BLOCK)


def test_a_hit_is_what_the_pool_has_past_the_engines_own(side: SchedulerOnly) -> None:
    req = request()
    side.fill(req, 4)
    assert arrive(side, req) == 16
    assert side.side.matched_tokens(req, BLOCK) == 12
    assert side.side.matched_tokens(req, 4 * BLOCK) == 0


def test_a_hit_may_end_with_a_tail_and_cover_the_whole_prompt(side: SchedulerOnly) -> None:
    req = request(tokens=20)
    side.fill(req, 5)
    assert arrive(side, req) == 20


def test_the_lookup_begins_when_the_request_arrives(side: SchedulerOnly) -> None:
    """Weakness 5."""
    req = request()
    side.side.on_new_request(req)
    assert side.pool.lookups == 1


def test_what_is_found_is_read_ahead_from_disks_as_the_request_arrives(
    side: SchedulerOnly,
) -> None:
    side.side.on_new_request(request("unknown", first=1000))
    assert side.pool.prefetched == []
    req = request()
    side.fill(req, 4)
    side.side.on_new_request(req)
    assert side.pool.prefetched == [4]


def test_a_request_is_asked_about_once_however_often_it_is_offered(side: SchedulerOnly) -> None:
    """Weakness 4: one message, digests only, cached for every retry."""
    req = request()
    side.fill(req, 2)
    assert [arrive(side, req), *(side.side.matched_tokens(req, 0) for _ in range(5))] == [8] * 6
    assert side.pool.lookups == 1


def test_an_old_answer_is_asked_for_again(side: SchedulerOnly) -> None:
    req = request()
    assert arrive(side, req) == 0
    side.fill(req, 4)
    assert side.side.matched_tokens(req, 0) == 0
    side.clock.now += 3
    assert side.side.matched_tokens(req, 0) == 16


def test_a_preempted_request_is_asked_about_again(side: SchedulerOnly) -> None:
    req = request(tokens=8)
    assert arrive(side, req) == 0
    for token in range(8, 16):
        req.append(token)
    side.fill(req, 4)
    req.num_preemptions = 1
    assert side.side.matched_tokens(req, 0) == 16


def test_no_answer_in_time_is_no_hit_and_never_a_wait(side: SchedulerOnly) -> None:
    """Weaknesses 1 and 2: the wait has a bound and the engine goes on without."""
    side.courier.at_once = False
    req = request()
    side.fill(req, 4)
    assert arrive(side, req) == 0
    assert side.side.tally.take()["lookups_late"] == 1
    side.courier.run()
    assert side.side.matched_tokens(req, 0) == 16


def test_a_step_waits_at_most_once_its_time_over_all_requests(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Weakness 1: N requests do not wait N times."""
    made = SchedulerOnly(lookup_wait_ms=1)
    made.courier.at_once = False
    waits: list[float] = []

    def wait(lookup: Lookup, timeout_s: float) -> bool:
        waits.append(timeout_s)
        made.clock.now += timeout_s
        return False

    monkeypatch.setattr(Lookup, "wait", wait)
    reqs = [request(f"r{n}") for n in range(5)]
    assert [arrive(made, req) for req in reqs] == [0] * 5
    assert sum(waits) == pytest.approx(0.001)
    made.side.take_loads()
    assert made.side.matched_tokens(reqs[0], 0) == 0
    assert sum(waits) == pytest.approx(0.002)


def test_a_lookup_that_raises_is_answered_and_the_courier_lives(side: SchedulerOnly) -> None:
    """Weakness 3."""
    side.pool.raises = DeadlineError("late")
    assert arrive(side, request("a")) == 0
    side.pool.raises = ValueError("a bug")
    with pytest.raises(ValueError, match="a bug"):
        arrive(side, request("b"))
    side.pool.raises = None
    req = request("c")
    side.fill(req, 2)
    assert arrive(side, req) == 8


def test_without_a_master_there_are_no_hits_until_it_comes(side: SchedulerOnly) -> None:
    side.link.pool = None
    req = request()
    side.fill(req, 4)
    assert arrive(side, req) == 0
    side.link.pool = side.pool
    assert side.side.matched_tokens(req, 0) == 16


def test_too_many_lookups_are_refused_not_queued(side: SchedulerOnly) -> None:
    side.courier.at_once, side.courier.limit = False, 1
    assert arrive(side, request("a")) == 0
    assert arrive(side, request("b")) == 0
    assert side.side.tally.take()["lookups_refused"] >= 1


def test_requests_that_may_not_read_are_not_looked_up(side: SchedulerOnly) -> None:
    req = request()
    side.fill(req, 4)
    req.skip_reading_prefix_cache = True
    assert arrive(side, req) == 0
    assert arrive(side, request("short", tokens=3)) == 0
    assert side.pool.lookups == 0


def test_short_hits_are_recomputed() -> None:
    """Weakness 7: a threshold."""
    made = SchedulerOnly(min_load_tokens=12)
    req = request()
    made.fill(req, 4)
    assert arrive(made, req) == 16
    assert made.side.matched_tokens(req, 2 * BLOCK) == 0
    assert made.side.tally.take()["short_hits"] == 1


@pytest.mark.parametrize("role", ["kv_producer", "kv_consumer", "kv_both"])
def test_every_role_loads(role: str) -> None:
    """A prefill engine must not compute the earlier turns of a conversation again."""
    made = SchedulerOnly(role=role)
    req = request()
    made.fill(req, 4)
    assert arrive(made, req) == 16


def plan(side: SchedulerOnly, req: FakeRequest, local: int, table: list[int]) -> object:
    tokens = arrive(side, req, local)
    side.side.after_alloc(req, [table], tokens)
    (job,) = side.side.take_loads()
    return job


def test_a_job_names_objects_blocks_and_where_to_begin(side: SchedulerOnly) -> None:
    req = request()
    side.fill(req, 5)
    job = plan(side, req, 1, [7, 8, 9, 10, 11])
    assert job.first_block == 1  # type: ignore[attr-defined]
    assert job.starts.tolist() == [0, 2, 4]  # type: ignore[attr-defined]
    assert job.ends.tolist() == [2, 4, 5]  # type: ignore[attr-defined]
    assert job.block_ids.tolist() == [7, 8, 9, 10, 11]  # type: ignore[attr-defined]
    assert job.ids_from(0) == [8, 9, 10, 11]  # type: ignore[attr-defined]
    assert job.ids_from(2) == [9, 10, 11]  # type: ignore[attr-defined]
    assert side.side.take_loads() == []


def test_a_job_is_small_when_pickled(side: SchedulerOnly) -> None:
    """Weakness 33: arrays and packed digests, nothing per block in Python."""
    req = request(tokens=4000)
    side.fill(req, 1000)
    job = plan(side, req, 0, list(range(1, 1001)))
    assert len(pickle.dumps(job)) < 1000 * 4 + 500 * (16 + 8) + 1000


def test_a_lease_covers_the_load_and_ends_with_it(side: SchedulerOnly) -> None:
    req = request()
    side.fill(req, 4)
    job = plan(side, req, 0, [1, 2, 3, 4, 5])
    assert [len(keys) for keys in side.pool.leases.values()] == [2]
    side.loaded(job)
    assert not any(side.pool.leases.values())


def test_a_lease_that_comes_after_the_end_is_given_back(side: SchedulerOnly) -> None:
    req = request()
    side.fill(req, 4)
    tokens = arrive(side, req)
    side.courier.at_once = False
    side.side.after_alloc(req, [[1, 2, 3, 4, 5]], tokens)
    (job,) = side.side.take_loads()
    side.loaded(job)
    side.courier.run()
    assert not any(side.pool.leases.values())


@pytest.mark.parametrize(("good", "left"), [(0, 0), (2, 8)])
def test_a_failed_load_is_not_offered_again(side: SchedulerOnly, good: int, left: int) -> None:
    """Weakness 12: no endless loop, also when vLLM asks again from zero."""
    req = request()
    side.fill(req, 4)
    job = plan(side, req, 0, [1, 2, 3, 4, 5])
    side.loaded(job, good, DeadlineError.code)
    assert side.side.matched_tokens(req, 0) == left
    side.clock.now += 3600
    assert side.side.matched_tokens(req, 0) == left


def test_other_requests_avoid_the_object_that_failed_for_a_while(side: SchedulerOnly) -> None:
    req = request("a")
    side.fill(req, 4)
    side.loaded(plan(side, req, 0, [1, 2, 3, 4, 5]), 2)
    assert arrive(side, request("b")) == 8
    side.clock.now += 60
    assert arrive(side, request("c")) == 16


def test_an_unreachable_master_is_no_mark_against_an_object(side: SchedulerOnly) -> None:
    req = request("a")
    side.fill(req, 4)
    side.loaded(plan(side, req, 0, [1, 2, 3, 4, 5]), 0, DeadlineError.code)
    assert arrive(side, request("b")) == 16


def test_wrong_bytes_are_taken_out_of_the_pool(side: SchedulerOnly) -> None:
    """Weakness 28: or nobody could ever put the right ones."""
    req = request()
    side.fill(req, 4)
    side.loaded(plan(side, req, 0, [1, 2, 3, 4, 5]), 2, ChecksumError.code)
    assert side.pool.removed == [side.key(req.block_hashes[3])]


def test_a_load_that_cannot_be_planned_fails_at_once(side: SchedulerOnly) -> None:
    """vLLM holds a request until its load ends, so there must be a load, and no assert."""
    req = request()
    side.fill(req, 2)
    arrive(side, req)
    side.side.after_alloc(req, [[1, 2, 3, 4, 5]], 20)
    (job,) = side.side.take_loads()
    assert len(job.ends) == 0
    assert job.ids_from(0) == [1, 2, 3, 4, 5]


def test_an_id_that_comes_again_is_another_request(side: SchedulerOnly) -> None:
    """The request-id ABA: results of the first must not touch the second."""
    first = request("same")
    side.fill(first, 4)
    job = plan(side, first, 0, [1, 2, 3, 4, 5])
    side.side.finished(first, [[1, 2, 3, 4, 5]])
    second = request("same", first=500)
    side.fill(second, 4)
    again = plan(side, second, 0, [6, 7, 8, 9, 10])
    side.loaded(job, 0)
    assert side.side.matched_tokens(second, 0) == 16
    side.loaded(again, 2)
    assert side.side.matched_tokens(second, 0) == 8
    side.loaded(again, 0)
    assert side.side.matched_tokens(second, 0) == 8


def test_a_request_that_was_never_announced_is_served(side: SchedulerOnly) -> None:
    req = request()
    side.fill(req, 4)
    assert side.side.matched_tokens(req, 0) == 16


def test_nothing_before_a_reset_is_found_after_it(side: SchedulerOnly) -> None:
    """Weakness 17: an epoch, not a wipe of everybody's pool."""
    req = request()
    side.fill(req, 4)
    count = len(side.pool.objects)
    side.side.reset()
    assert arrive(side, request("b")) == 0
    assert len(side.pool.objects) == count
    other = SchedulerOnly(pool=side.pool)
    other.side.reset()
    assert other.side.namespace != side.side.namespace


def test_shutdown_twice_gives_leases_back() -> None:
    made = SchedulerOnly()
    req = request()
    made.fill(req, 4)
    plan(made, req, 0, [1, 2, 3, 4, 5])
    made.side.shutdown()
    made.side.shutdown()
    assert isinstance(made.courier, InlineCourier)
    assert not any(made.pool.leases.values())
