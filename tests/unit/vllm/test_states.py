"""Recurrent and convolution states beside attention: kept at some ends of blocks, used at those.

Blocks of 4 tokens, objects of 2 blocks; group 1 has the states.
"""

from __future__ import annotations

from types import SimpleNamespace as Bag
from typing import Any

import numpy as np
import pytest

from moonpool.errors import ConfigError, NotFoundError
from moonpool.vllm import support
from moonpool.vllm.jobs import LoadDone, LoadJob, SaveJob
from moonpool.vllm.parts import Keyspace, Part, namespace_of, windowed
from tests.unit.vllm.engine import BLOCK, SchedulerOnly
from tests.unit.vllm.fakes import FakeRequest
from tests.unit.vllm.test_namespace import spec

STATE = windowed(0, BLOCK, number=1, groups=(1,), layers=((),), span=1, state=True)
TABLE = [*range(11, 31)]


@pytest.fixture
def side() -> SchedulerOnly:
    return SchedulerOnly(parts=(Part(), STATE))


def step(
    side: SchedulerOnly, request: FakeRequest, tokens: int, states: dict[int, int]
) -> list[SaveJob]:
    """Compute some tokens; states: what vLLM keeps, tokens to block."""
    tables = {request.request_id: (TABLE, [0] * 20)}
    block_state = Bag(
        get_block_ids=tables.get,
        boundary_state_offloads={
            request.request_id: [(1, block, at) for at, block in states.items()]
        },
    )
    side.side.plan_saves({request.request_id: tokens}, block_state)
    request.num_computed_tokens += tokens
    return side.side.take_saves()


def arrived(side: SchedulerOnly, tokens: int, name: str = "r") -> FakeRequest:
    request = FakeRequest(name, range(tokens), BLOCK)
    side.side.on_new_request(request)
    return request


def kept(job: SaveJob, request: FakeRequest) -> tuple[int, list[int], list[int]]:
    """Return (part, ends, blocks) of a job."""
    digests = [each[:16] for each in request.block_hashes]
    names = [job.names[at : at + 16] for at in range(0, len(job.names), 16)]
    return job.part, [digests.index(name) + 1 for name in names], job.block_ids.tolist()


def test_a_state_is_saved_in_the_step_that_leaves_it(side: SchedulerOnly) -> None:
    request = arrived(side, 40)
    jobs = step(side, request, 16, {16: 50})
    # The first boundary is where objects of attention end: these hold four blocks.
    assert sorted(kept(job, request) for job in jobs) == [
        (0, [2, 4], TABLE[:4]),
        (1, [4], [50]),
    ]
    assert {job.part: job.namespace for job in jobs} == dict.fromkeys((0, 1), side.side.namespace)


def test_where_no_object_ends_the_rest_of_attention_is_saved_too(side: SchedulerOnly) -> None:
    request = arrived(side, 40)
    jobs = step(side, request, 13, {12: 51})
    assert sorted(kept(job, request) for job in jobs) == [
        (0, [2], TABLE[:2]),
        (0, [3], TABLE[2:3]),
        (1, [3], [51]),
    ]
    assert side.block_pool.blocks[51].ref_cnt == 1


@pytest.mark.parametrize("states", [{}, {14: 50}, {44: 50}])
def test_what_is_no_end_of_a_block_is_left_out(side: SchedulerOnly, states: dict[int, int]) -> None:
    request = arrived(side, 40)
    jobs = step(side, request, 16, states)
    assert [job.part for job in jobs] == [0]


def put(side: SchedulerOnly, request: FakeRequest, part: int, *ends: int) -> None:
    space = namespace_of(side.side.namespace, part)
    for end in ends:
        name = bytes((16,)) + space + request.block_hashes[end - 1][:16]
        side.pool.objects[name] = b"x"


def hit(side: SchedulerOnly, request: FakeRequest) -> int:
    side.side.on_new_request(request)
    side.courier.run()
    return side.side.matched_tokens(request, 0)


@pytest.mark.parametrize(
    ("states", "blocks"), [([3], 3), ([2], 2), ([2, 3], 3), ([1], 0), ([], 0), ([4], 0)]
)
def test_a_hit_ends_at_a_state(side: SchedulerOnly, states: list[int], blocks: int) -> None:
    request = FakeRequest("r", range(40), BLOCK)
    put(side, request, 0, 2, 3)
    put(side, request, 1, *states)
    assert hit(side, request) == blocks * BLOCK


def test_the_last_token_is_computed_from_the_state_before_it(side: SchedulerOnly) -> None:
    request = FakeRequest("r", range(16), BLOCK)
    put(side, request, 0, 2, 3, 4)
    put(side, request, 1, 3, 4)
    assert hit(side, request) == 12


def loads(side: SchedulerOnly, request: FakeRequest) -> list[LoadJob]:
    put(side, request, 0, 2, 4, 5)
    put(side, request, 1, 5)
    tokens = hit(side, request)
    side.side.after_alloc(request, (TABLE, [0, 0, 0, 0, 60]), tokens)
    return side.side.take_loads()


def test_one_state_is_loaded(side: SchedulerOnly) -> None:
    full, state = loads(side, FakeRequest("r", range(40), BLOCK))
    assert (full.starts.tolist(), full.ends.tolist()) == ([0, 2, 4], [2, 4, 5])
    assert (state.starts.tolist(), state.ends.tolist(), state.block_ids.tolist()) == (
        [4],
        [5],
        [60],
    )
    assert full.generation == state.generation


def test_a_failed_load_is_not_offered_again(side: SchedulerOnly) -> None:
    request = FakeRequest("r", range(40), BLOCK)
    _, state = loads(side, request)
    failed = ((NotFoundError.code, state.names + b"\1"),)
    side.side.ended([LoadDone("r", state.generation, 4, failed)], [])
    assert side.side.matched_tokens(request, 0) == 0
    other = FakeRequest("s", range(40), BLOCK)
    assert hit(side, other) == 0


class MambaSpec(Bag):
    pass


def group(one: Any) -> Bag:
    return Bag(kv_cache_spec=one, layer_names=["l"])


@pytest.mark.parametrize(
    ("changes", "words"),
    [
        ({"mamba_cache_mode": "all"}, "mamba_cache_mode all.*set --mamba-cache-mode align"),
        ({"num_speculative_blocks": 2}, "speculative"),
        ({"block_size": 64}, "blocks of 64 tokens"),
    ],
)
def test_states_whose_place_is_not_known_are_refused(changes: dict[str, Any], words: str) -> None:
    facts = {"block_size": 32, "mamba_cache_mode": "align", "num_speculative_blocks": 0}
    good = Bag(kv_cache_groups=[group(spec()), group(MambaSpec(**facts))])
    support.check_cache(good, 32, windows=True, states=True)
    with pytest.raises(ConfigError, match="MambaSpec"):
        support.check_cache(good, 32, windows=True)
    bad = Bag(kv_cache_groups=[group(spec()), group(MambaSpec(**{**facts, **changes}))])
    with pytest.raises(ConfigError, match=words):
        support.check_cache(bad, 32, windows=True, states=True)


def test_a_model_of_states_alone_is_refused() -> None:
    with pytest.raises(ConfigError, match="without attention"):
        support.check_cache(Bag(kv_cache_groups=[group(MambaSpec(block_size=32))]), 32)


def test_tables_hold_a_state_once() -> None:
    assert Keyspace((Part(), STATE)).states == [STATE]
    assert STATE.starts(np.array([4, 5], np.int32), 2).tolist() == [3, 4]
