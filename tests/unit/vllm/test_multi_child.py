"""The connector as a child of MultiConnector, beside one that passes KV between engines."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from tests.unit.vllm.engine import BLOCK, SchedulerOnly
from tests.unit.vllm.fakes import FakeRequest

TABLE = list(range(1, 17))


@pytest.fixture
def side() -> Iterator[SchedulerOnly]:
    made = SchedulerOnly()
    yield made
    made.side.shutdown()


def wait_for_other(side: SchedulerOnly, local_blocks: int = 0) -> FakeRequest:
    """A request for which another connector brings all that the engine does not have."""
    req = FakeRequest("r", range(32), BLOCK)
    side.side.on_new_request(req)
    assert side.side.matched_tokens(req, local_blocks * BLOCK) == 0
    req.num_computed_tokens = 32
    return req


@pytest.mark.parametrize("local", [0, 2, 4])
def test_blocks_that_another_connector_has_not_filled_yet_are_not_saved(
    side: SchedulerOnly, local: int
) -> None:
    """The request is aborted while it waits; vLLM counts its tokens as computed all the same."""
    req = wait_for_other(side, local)
    side.side.finished(req, TABLE[:8])
    jobs = side.side.take_saves()
    assert sum(int(job.counts.sum()) for job in jobs) == local


def test_what_another_connector_brought_is_saved_after_the_first_step(side: SchedulerOnly) -> None:
    """That step shows whether it did."""
    req = wait_for_other(side)
    assert side.save_step(req, 1, TABLE) == []
    side.side.finished(req, TABLE[:8])
    (job,) = side.side.take_saves()
    assert job.block_ids.tolist() == TABLE[:6]
