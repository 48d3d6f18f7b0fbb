"""The connector as a child of MultiConnector, beside one that passes KV between engines."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from types import ModuleType
from types import SimpleNamespace as Bag
from typing import Any

import pytest

from moonpool.vllm.pool_events import PoolEvents
from tests.unit.vllm.engine import BLOCK, SchedulerOnly
from tests.unit.vllm.fakes import FakePool, FakeRequest
from tests.unit.vllm.pd.engine import SENDS, PDEngine, PDRequest, pool_of, receives
from tests.unit.vllm.test_connector import make, pool, vllm_config  # noqa: F401

Make = Callable[..., Any]

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
    side.side.finished(req, [TABLE[:8]])
    jobs = side.side.take_saves()
    assert sum(int(job.counts.sum()) for job in jobs) == local


def test_what_another_connector_brought_is_saved_after_the_first_step(side: SchedulerOnly) -> None:
    """That step shows whether it did."""
    req = wait_for_other(side)
    assert side.save_step(req, 1, TABLE) == []
    side.side.finished(req, [TABLE[:8]])
    (job,) = side.side.take_saves()
    assert job.block_ids.tolist() == TABLE[:6]


# --- below the real MultiConnector ----------------------------------------------------------------

PEER = {
    "kv_connector": "NixlConnector",
    "kv_role": "kv_both",
    "kv_connector_module_path": "tests.unit.vllm.pd.scripted",
}
POOL: dict[str, Any] = {
    "kv_connector": "MoonpoolConnector",
    "kv_role": "kv_both",
    "kv_connector_extra_config": {"object_tokens": 8, "lookup_wait_ms": 2000},
}


def multi(*children: dict[str, Any], device: str = "cpu") -> Bag:
    from vllm.config import KVTransferConfig

    config = vllm_config()
    config.device_config = Bag(device_type=device)
    config.model_config.use_mla = False
    config.kv_transfer_config = KVTransferConfig(
        kv_connector="MultiConnector",
        kv_role="kv_both",
        kv_load_failure_policy="recompute",
        kv_connector_extra_config={"connectors": list(children)},
    )
    return config


def engine(make: Make, pool: FakePool, *children: dict[str, Any]) -> PDEngine:  # noqa: F811
    made = PDEngine(make, pool, multi(*children))
    first = PDRequest("first", 16)
    made.add(first)
    made.compute(first)
    made.finish(first)
    made.settle()
    return made


def test_the_peer_first_brings_all_and_the_pool_stores(make: Make, pool: FakePool) -> None:  # noqa: F811
    """A child that does not win is given the real blocks with 0 tokens."""
    made = engine(make, pool, PEER, POOL)
    request = receives("r", 40, first=0)
    assert made.add(request) == 40
    made.step()
    assert made.peer.fills["r"] == made.tables["r"]
    made.peer.write = lambda blocks: made.send(request, blocks)
    made.peer.arrive("r")
    made.until_reported("r")
    assert made.right(request)
    before = len(pool.objects)
    made.step({"r": 1})
    request.append(99)
    made.finish(request)
    made.settle()
    assert len(pool.objects) > before
    assert all(block.ref_cnt == 0 for block in made.block_pool.blocks)


def test_the_pool_first_lets_a_short_hit_beat_the_peer(make: Make, pool: FakePool) -> None:  # noqa: F811
    """Why the peer stands first: nobody fetches the rest of what prefill holds."""
    made = engine(make, pool, POOL, PEER)
    assert made.add(receives("r", 40)) == 16
    made.step()
    assert made.peer.fills == {}


def test_what_multiconnector_asks_of_its_children(make: Make, pool: FakePool) -> None:  # noqa: F811
    made = engine(make, pool, PEER, POOL)
    child = pool_of(made.scheduler)
    assert child.requires_kv_delivery is False
    assert child.get_finished_count() is None
    assert made.scheduler._all_support_hma


def test_events_of_the_scheduler_reach_vllm_where_those_of_workers_do_not(
    make: Make,  # noqa: F811
    pool: FakePool,  # noqa: F811
) -> None:
    made = engine(make, pool, PEER, POOL)
    child = pool_of(made.scheduler)
    child._scheduler.publish(events := PoolEvents(BLOCK, 2))
    events._queue.append("an event")
    assert list(made.scheduler.take_events()) == ["an event"]
    assert made.worker.get_kv_connector_kv_cache_events() is None


def test_a_request_that_failed_as_a_whole_passes_through(make: Make, pool: FakePool) -> None:  # noqa: F811
    """As all do below a sliding window, where blocks alone do not say what failed."""
    made = engine(make, pool, PEER, POOL)
    worker = pool_of(made.worker)._worker
    worker._failed = {"r"}
    assert made.worker.get_transfer_results(set()).failed_recving == {"r"}


def test_answers_to_clients_are_joined(make: Make, pool: FakePool) -> None:  # noqa: F811
    """A key that two children set ends the engine."""
    made = engine(make, pool, PEER, POOL)
    request = PDRequest("r", 20, SENDS | {"transfer_id": "t"})
    assert made.add(request) == 16
    made.until_reported("r")
    made.compute(request)
    told = made.finish(request)
    assert told["remote_block_ids"] == [made.tables["r"]]
    assert set(told) == {"do_remote_prefill", "remote_block_ids", "moonpool"}


def test_until_the_worker_has_spoken_all_wait_but_not_for_ever(
    make: Make,  # noqa: F811
    pool: FakePool,  # noqa: F811
) -> None:
    """MultiConnector puts a request off if any child has no answer yet."""
    config = multi(PEER, POOL)
    scheduler = make("SCHEDULER", config)
    request = receives("r")
    scheduler.on_new_request(request)
    answers = [scheduler.get_num_new_matched_tokens(request, 0) for _ in range(300)]
    assert answers[0] == (None, False)
    assert answers[-1] == (20, True)


def test_a_request_that_is_preempted_leaves_the_right_bytes(make: Make, pool: FakePool) -> None:  # noqa: F811
    made = engine(make, pool, PEER, POOL)
    request = PDRequest("r", 40, first=500)
    made.add(request)
    made.compute(request)
    made.free("r")
    request.num_computed_tokens, request.num_preemptions = 0, 1
    made.settle()
    made.admit(request)
    made.until_reported("r")
    assert made.right(request)


def test_all_children_must_ask_for_the_same_layout(connector: ModuleType) -> None:
    """On a GPU vLLM's PD connectors want LBHNC: the pool's child must want none."""
    from vllm.distributed.kv_transfer.kv_connector.v1.multi_connector import MultiConnector

    nixl = {"kv_connector": "NixlConnector", "kv_role": "kv_both"}
    extra = POOL["kv_connector_extra_config"]
    plain = {**POOL, "kv_connector_extra_config": {**extra, "pack_blocks": False}}
    ask = MultiConnector.get_required_kvcache_layout
    with pytest.raises(ValueError, match="layout mismatch"):
        ask(multi(nixl, POOL, device="cuda"))
    assert ask(multi(nixl, plain, device="cuda")) == "LBHNC"
    assert ask(multi(nixl, POOL)) == "LBHNC"


def prometheus() -> tuple[Any, dict[Any, Any]]:
    """A registry of its own, and vLLM's kinds of metrics made in it."""
    from prometheus_client import CollectorRegistry, Counter, Gauge, Histogram

    registry = CollectorRegistry()
    kinds = {
        kind: (lambda *args, kind=kind, **more: kind(*args, registry=registry, **more))
        for kind in (Counter, Gauge, Histogram)
    }
    return registry, kinds


def test_a_child_with_counts_and_no_metrics_ends_vllms_front(connector: ModuleType) -> None:
    """MooncakeConnector is one; the composite does not mind."""
    from vllm.distributed.kv_transfer.kv_connector.v1.multi_connector import MultiConnector

    from moonpool.vllm.pd.connector import MoonpoolPDConnector
    from tests.unit.vllm.pd.engine import config

    counted = {"MooncakeConnector": {"num_failed_transfers": [1]}}
    mooncake = {"kv_connector": "MooncakeConnector", "kv_role": "kv_both"}
    _, kinds = prometheus()
    metrics = MultiConnector.build_prom_metrics(multi(mooncake, POOL), kinds, ["e"], {0: ["0"]})
    if not vllm_is_fixed():
        with pytest.raises(AssertionError, match="MooncakeConnector is not contained"):
            metrics.observe(counted, 0)
    joined = config()
    joined.kv_transfer_config.kv_connector_extra_config["peer"] = mooncake
    registry, kinds = prometheus()
    metrics = MoonpoolPDConnector.build_prom_metrics(joined, kinds, ["engine"], {0: ["0"]})
    metrics.observe({**counted, "MoonpoolConnector": {"peer_loads": 2}}, 0)
    assert registry.get_sample_value("vllm:moonpool_peer_loads_total", {"engine": "0"}) == 2
    again = MoonpoolPDConnector.build_kv_connector_stats(counted)
    assert set(again.data) == {"MooncakeConnector"}


def vllm_is_fixed() -> bool:
    import vllm

    return tuple(int(part) for part in vllm.__version__.split("+")[0].split(".")[:2]) >= (0, 33)


def test_stats_and_metrics_pass_through_multiconnector(connector: ModuleType) -> None:
    """It looks the child up by its name alone, in the API server's process."""
    from vllm.distributed.kv_transfer.kv_connector.v1.multi_connector import MultiConnector

    from moonpool.vllm import plugin

    plugin.register()
    registry, kinds = prometheus()
    metrics = MultiConnector.build_prom_metrics(multi(POOL), kinds, ["engine"], {0: ["0"]})
    plain = {"MoonpoolConnector": {"loads": 3}}
    stats = MultiConnector.build_kv_connector_stats(plain)
    assert stats.reduce() == {"MoonpoolConnector": {"loads": 3}}
    metrics.observe(stats.to_dict(), 0)
    assert registry.get_sample_value("vllm:moonpool_loads_total", {"engine": "0"}) == 3


def test_a_childs_engine_id_is_vllms_mistake(connector: ModuleType) -> None:
    """Documented: leave it out, or set it at the top."""
    from vllm.distributed.kv_transfer.kv_connector.v1.multi_connector import MultiConnector

    with pytest.raises(TypeError, match="engine_id"):
        MultiConnector.get_required_kvcache_layout(multi({**POOL, "engine_id": "mine"}))
