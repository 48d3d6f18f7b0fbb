"""vLLM 0.24 to 0.28: what the connector does itself there. Shapes are those of vLLM 0.24."""

from __future__ import annotations

import importlib.util
from dataclasses import dataclass, field
from types import ModuleType
from types import SimpleNamespace as Bag
from typing import Any

import pytest

from moonpool.errors import ConfigError
from moonpool.vllm import compat, namespace
from tests.unit.vllm.engine import BLOCK, SchedulerOnly
from tests.unit.vllm.fakes import FakeRequest


@dataclass
class Cached:
    req_ids: list[str] = field(default_factory=list)
    resumed_req_ids: set[str] = field(default_factory=set)
    new_block_ids: list[tuple[list[int], ...] | None] = field(default_factory=list)


@dataclass
class Output:
    """A SchedulerOutput of vLLM 0.24, as far as it is read."""

    scheduled_new_reqs: list[Bag] = field(default_factory=list)
    scheduled_cached_reqs: Cached = field(default_factory=Cached)
    finished_req_ids: set[str] = field(default_factory=set)
    preempted_req_ids: set[str] | None = None
    num_scheduled_tokens: dict[str, int] = field(default_factory=dict)


def new(request_id: str, *blocks: int) -> Bag:
    return Bag(req_id=request_id, block_ids=(list(blocks),))


def test_tables_follow_the_scheduler() -> None:
    tables = compat.BlockTables()
    tables.follow(Output([new("a", 1, 2), new("b", 3)]))
    tables.follow(Output(scheduled_cached_reqs=Cached(["a", "b"], set(), [([4, 5],), None])))
    assert tables.get_block_ids("a") == ([1, 2, 4, 5],)
    assert tables.get_block_ids("b") == ([3],)
    assert tables.get_block_ids("c") is None


def test_a_resumed_request_has_a_new_table() -> None:
    """Model runner V1 says so among the cached requests, V2 among the new ones."""
    tables = compat.BlockTables()
    tables.follow(Output([new("a", 1, 2), new("b", 3)]))
    tables.follow(Output(preempted_req_ids={"a", "b"}))
    assert len(tables) == 0
    again = Output([new("b", 9)], Cached(["a"], {"a"}, [([7, 8],)]))
    tables.follow(again)
    assert tables.get_block_ids("a") == ([7, 8],)
    assert tables.get_block_ids("b") == ([9],)


def test_an_id_may_end_and_come_again_in_one_step() -> None:
    tables = compat.BlockTables()
    tables.follow(Output([new("a", 1)]))
    tables.follow(Output([new("a", 2)], finished_req_ids={"a"}))
    assert tables.get_block_ids("a") == ([2],)
    tables.follow(Output(finished_req_ids={"a"}))
    assert len(tables) == 0


def test_the_tables_are_not_vllms_own_lists() -> None:
    tables, first = compat.BlockTables(), [1]
    tables.follow(Output([Bag(req_id="a", block_ids=(first,))]))
    tables.follow(Output(scheduled_cached_reqs=Cached(["a"], set(), [([2],)])))
    assert first == [1]


@dataclass
class KVCacheTensor:
    """As in vLLM 0.24."""

    size: int
    shared_by: list[str]
    offset: int = 0
    block_stride: int = 0


def spec(**changes: Any) -> Bag:
    values = {
        "page_size_bytes": 64,
        "block_size": 16,
        "indexes_kv_by_block_stride": True,
        "page_size_padded": None,
    }
    return Bag(**(values | changes))


def cache(layers: int = 3, blocks: int = 5, **changes: Any) -> Bag:
    tensors = [KVCacheTensor(64 * blocks, [f"l{n}"]) for n in range(layers)]
    return Bag(
        num_blocks=blocks,
        kv_cache_tensors=tensors,
        kv_cache_groups=[Bag(kv_cache_spec=spec(**changes))],
    )


@pytest.fixture
def old(monkeypatch: pytest.MonkeyPatch) -> None:
    """vLLM 0.24 to 0.28 with rows in the order NHD."""
    monkeypatch.setattr(compat, "has_named_layouts", lambda: False)
    monkeypatch.setattr(compat, "_rows_are_head_major", lambda: False)


V2 = Bag(use_v2_model_runner=True)


@pytest.mark.usefixtures("old")
def test_layers_are_packed_side_by_side() -> None:
    found = cache()
    before = list(found.kv_cache_tensors)
    assert compat.pack_blocks(V2, found)
    assert [(t.size, t.offset, t.block_stride) for t in found.kv_cache_tensors] == [
        (3 * 5 * 64, 64 * n, 3 * 64) for n in range(3)
    ]
    assert [t.shared_by for t in found.kv_cache_tensors] == [["l0"], ["l1"], ["l2"]]
    assert [t.offset for t in before] == [0, 0, 0], "other holders of the old list keep it"
    assert not compat.pack_blocks(V2, found), "once is enough"


@pytest.mark.usefixtures("old")
@pytest.mark.parametrize(
    ("config", "found"),
    [
        (Bag(use_v2_model_runner=False), cache()),
        (V2, cache(layers=1)),
        (V2, cache(indexes_kv_by_block_stride=False)),
        (V2, cache(page_size_padded=128)),
        (V2, cache(page_size_bytes=32)),
        (V2, cache(block_size=128)),
        (V2, Bag(num_blocks=5, kv_cache_tensors=[], kv_cache_groups=[])),
    ],
)
def test_what_vllm_could_not_pack_is_left_alone(config: Bag, found: Bag) -> None:
    before = list(found.kv_cache_tensors)
    assert not compat.pack_blocks(config, found)
    assert found.kv_cache_tensors == before


def test_head_major_rows_are_not_packed(old: None, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(compat, "_rows_are_head_major", lambda: True)
    assert not compat.pack_blocks(V2, cache())


def test_named_layouts_need_no_packing(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(compat, "has_named_layouts", lambda: True)
    assert not compat.pack_blocks(V2, cache())


def test_a_random_seed_is_refused_where_vllm_draws_one() -> None:
    """Before 0.29 each process would hash differently: never a hit, and nobody would know why."""
    with pytest.raises(ConfigError, match=r"PYTHONHASHSEED.*0\.24.*set PYTHON") as caught:
        namespace.hash_scheme("sha256", "0.24.0", {}, fixed_seed=False)
    assert "\n" not in str(caught.value)
    assert namespace.hash_scheme("sha256", "0.24.0", {"PYTHONHASHSEED": "0"}, fixed_seed=False)


def test_steps_that_do_not_overlap_free_in_order() -> None:
    assert compat.frees_in_order(Bag(max_concurrent_batches=1))


@pytest.mark.parametrize(("consumer", "ordered"), [(True, True), (False, False)])
def test_overlapping_steps_free_in_order_if_vllm_defers(
    connector: ModuleType, consumer: bool, ordered: bool
) -> None:
    config = Bag(max_concurrent_batches=2, kv_transfer_config=Bag(is_kv_consumer=consumer))
    assert compat.frees_in_order(config) == ordered


def test_this_vllm_is_found_out_right(connector: ModuleType) -> None:
    new_enough = importlib.util.find_spec("vllm.v1.kv_cache_layout") is not None
    assert compat.has_named_layouts() == new_enough
    assert compat.has_fixed_hash_seed() == new_enough


def test_until_the_worker_has_spoken_requests_are_put_off_and_then_asked_about() -> None:
    one = SchedulerOnly(lookup_wait_ms=10)
    one.side._order, one.side._ready = "", False
    req = FakeRequest("a", range(4 * BLOCK), BLOCK)
    one.side.on_new_request(req)
    assert one.pool.lookups == 0
    assert one.side.is_early()
    assert one.save_step(req, 4 * BLOCK, [1, 2, 3, 4]) == []
    one.side.worker_is("LHNC")
    namespace_of_it = one.side.namespace
    assert not one.side.is_early()
    req = FakeRequest("b", range(4 * BLOCK), BLOCK)
    one.fill(req, 4)
    assert one.side.matched_tokens(req, 0) == 4 * BLOCK
    one.side.worker_is("LNHC")
    assert one.side.namespace != namespace_of_it, "other bytes, other names"


def test_requests_are_not_put_off_for_ever() -> None:
    one = SchedulerOnly()
    one.side._order = ""
    assert sum(one.side.is_early() for _ in range(1000)) == 256


def test_a_worker_that_is_not_ready_is_given_no_jobs() -> None:
    one = SchedulerOnly(lookup_wait_ms=10)
    req = FakeRequest("a", range(4 * BLOCK), BLOCK)
    one.fill(req, 4)
    one.side.on_new_request(req)
    one.side.worker_is("")
    assert one.side.matched_tokens(req, 0) == 0
    assert one.save_step(FakeRequest("b", range(8), BLOCK), 8, [1, 2]) == []
    one.side.worker_is("LC")
    assert one.side.matched_tokens(req, 0) == 4 * BLOCK
