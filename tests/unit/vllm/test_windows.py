"""Models whose layers all attend to a sliding window: vLLM keeps no block before it.

Blocks of 4 tokens, objects of 2 blocks; 0 is vLLM's null block.
"""

from __future__ import annotations

from types import SimpleNamespace as Bag

import pytest

from moonpool.errors import DeadlineError
from moonpool.vllm.jobs import LoadDone, LoadJob
from moonpool.vllm.parts import windowed
from moonpool.vllm.worker import WorkerSide
from tests.unit.vllm.engine import BLOCK, STRIDE, SchedulerOnly, make_settings
from tests.unit.vllm.fakes import FakeRequest
from tests.unit.vllm.test_scheduler_loads import arrive, request


def planned(side: SchedulerOnly, table: list[int]) -> LoadJob:
    req = request(tokens=4 * len(table) + 1)
    side.fill(req, len(table))
    hit = arrive(side, req)
    assert hit == 4 * len(table)
    side.side.after_alloc(req, [table], hit)
    (job,) = side.side.take_loads()
    return job


def test_only_blocks_in_the_window_are_loaded() -> None:
    job = planned(SchedulerOnly(window=10), [0, 0, 0, 0, 0, 7, 8, 9])
    # The fifth block comes with the object that the sixth is in, and is written nowhere.
    assert (job.starts.tolist(), job.ends.tolist(), job.first_block) == ([4, 6], [6, 8], 5)
    assert job.ids_from(0) == [7, 8, 9]


def test_a_failed_load_leaves_nothing_of_the_hit() -> None:
    """The window of the first bad block is not there either."""
    side = SchedulerOnly(window=10)
    req = request(tokens=33)
    side.fill(req, 8)
    hit = arrive(side, req)
    side.side.after_alloc(req, [[0, 0, 0, 0, 0, 7, 8, 9]], hit)
    (job,) = side.side.take_loads()
    side.loaded(job, 6, DeadlineError.code)
    assert side.side.matched_tokens(req, 0) == 0


@pytest.mark.parametrize(("window", "hit"), [(0, 16), (8, 16), (9, 8), (10, 16)])
def test_of_a_whole_prompt_no_more_is_taken_than_vllm_keeps(window: int, hit: int) -> None:
    """vLLM frees what is before the window of the next token, and then computes the last one."""
    side = SchedulerOnly(window=window)
    req = request(tokens=16)
    side.fill(req, 4)
    assert arrive(side, req) == hit


def test_objects_with_a_block_that_has_left_the_window_are_not_saved() -> None:
    side = SchedulerOnly(window=10)
    req = FakeRequest("r", range(33), BLOCK)
    side.side.on_new_request(req)
    (job,) = side.save_step(req, 32, [0, 0, 0, 4, 5, 6, 7, 8, 9])
    assert job.block_ids.tolist() == [5, 6, 7, 8]
    assert job.counts.tolist() == [STRIDE, STRIDE]


@pytest.mark.parametrize(("window", "good"), [(0, 6), (10, 6), (10, 5), (10, 8)])
def test_a_failed_load_is_reported_as_the_requests_or_as_blocks(window: int, good: int) -> None:
    worker = WorkerSide(make_settings(), "w", 16, BLOCK, (windowed(window, BLOCK),))
    job = planned(SchedulerOnly(window=window), [0, 0, 0, 0, 0, 7, 8, 9])
    done = LoadDone(job.request_id, job.generation, good)
    worker.runner = Bag(load=lambda *_: None, take=lambda: ([done], []))
    worker.start_loads([job])
    assert worker.finished_loads() == {job.request_id}
    bad = set(job.ids_from(good))
    assert worker.take_bad_blocks() == (set() if window else bad)
    assert worker.take_failed() == ({job.request_id} if window and bad else set())
