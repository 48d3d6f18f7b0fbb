"""The connector object below the real vLLM's interface: order of calls, guards, classes."""

from __future__ import annotations

import pickle
from collections.abc import Callable, Iterator
from types import ModuleType
from types import SimpleNamespace as Bag
from typing import Any

import numpy as np
import pytest

from moonpool.errors import ConfigError
from moonpool.vllm import layout, plugin, pools
from tests.unit.vllm.engine import truth
from tests.unit.vllm.fakes import FakeBlockPool, FakePool, FakeRequest
from tests.unit.vllm.test_namespace import HfConfig

BLOCK, LAYERS, BLOCKS = 4, 2, 64
Make = Callable[..., Any]


def vllm_config(**changes: Any) -> Bag:
    from vllm.config import KVTransferConfig

    extra = {"object_tokens": 8, "lookup_wait_ms": 2000, **changes.pop("extra", {})}
    return Bag(
        kv_transfer_config=KVTransferConfig(
            kv_connector="MoonpoolConnector", kv_role="kv_both", kv_connector_extra_config=extra
        ),
        parallel_config=Bag(
            tensor_parallel_size=changes.get("tp", 1), pipeline_parallel_size=changes.get("pp", 1)
        ),
        model_config=Bag(
            model="org/model",
            revision=None,
            hf_config=HfConfig(),
            dtype="torch.float32",
            quantization=None,
            seed=0,
            is_encoder_decoder=False,
        ),
        cache_config=Bag(
            cache_dtype="auto",
            block_size=BLOCK,
            prefix_caching_hash_algo="sha256",
            calculate_kv_scales=False,
        ),
        load_config=Bag(load_format="auto"),
        device_config=Bag(device_type="cpu"),
        speculative_config=None,
        scheduler_config=Bag(disable_hybrid_kv_cache_manager=False),
    )


def kv_cache_config() -> Any:
    import torch
    from vllm.v1.kv_cache_interface import FullAttentionSpec, KVCacheConfig, KVCacheGroupSpec

    spec = FullAttentionSpec(block_size=BLOCK, num_kv_heads=1, head_size=2, dtype=torch.float32)
    group = KVCacheGroupSpec([f"layers.{n}.attn" for n in range(LAYERS)], spec)
    return KVCacheConfig(num_blocks=BLOCKS, kv_cache_tensors=[], kv_cache_groups=[group])


@pytest.fixture
def pool() -> FakePool:
    return FakePool()


@pytest.fixture
def make(connector: ModuleType, pool: FakePool, monkeypatch: pytest.MonkeyPatch) -> Iterator[Make]:
    """Make connectors through vLLM's factory, on a pool in memory; closes them at the end."""
    from vllm.distributed.kv_transfer.kv_connector.factory import KVConnectorFactory
    from vllm.distributed.kv_transfer.kv_connector.v1 import KVConnectorRole

    plugin.register()
    monkeypatch.setattr(pools, "open_pool", lambda *_: pool)
    made: list[Any] = []

    def build(role: str, config: Bag | None = None) -> Any:
        config = config or vllm_config()
        one = KVConnectorFactory.create_connector(config, KVConnectorRole[role], kv_cache_config())
        made.append(one)
        return one

    yield build
    for one in made:
        one.shutdown()
        one.shutdown()


class Both:
    """A scheduler's and a worker's connector with KV tensors, stepped as vLLM does."""

    def __init__(self, make: Make, *, told: bool = True) -> None:
        """told: whether a step has told the scheduler what the worker's memory is like."""
        import torch

        self.config = vllm_config()
        self.worker = make("WORKER", self.config)
        self.tensors = {
            f"layers.{n}.attn": torch.zeros((BLOCKS, 1, BLOCK, 4), dtype=torch.float32)
            for n in range(LAYERS)
        }
        self.worker.register_kv_caches(self.tensors)
        self.scheduler = make("SCHEDULER", self.config)
        self.blocks = FakeBlockPool(BLOCKS)
        self.scheduler.bind_gpu_block_pool(self.blocks)
        self.tables: dict[str, list[int]] = {}
        _until(
            lambda: self.scheduler._scheduler._link.get() and self.worker._worker.runner.link.get()
        )
        if told:
            self.step({})

    def write(self, block: int, block_hash: bytes) -> None:
        content = truth(block_hash).view(np.float32).reshape(LAYERS, BLOCK, 4)
        for layer, tensor in zip(content, self.tensors.values(), strict=True):
            tensor[block, 0].numpy()[:] = layer

    def read(self, block: int) -> bytes:
        return b"".join(t[block].numpy().tobytes() for t in self.tensors.values())

    def step(self, scheduled: dict[str, int], *, v2: bool = False, sync_first: bool = False) -> Any:
        """One step; ``v2``: as model runner V2 calls; ``sync_first``: another request's flag."""
        from vllm.v1.core.sched.output import KVConnectorBlockState
        from vllm.v1.outputs import KVConnectorOutput

        state = KVConnectorBlockState(set(scheduled), lambda r: (self.tables[r],), {})
        output = Bag(
            num_scheduled_tokens=scheduled,
            kv_connector_block_state=state,
            # Resumed requests come among the new ones from model runner V2; neither is read.
            scheduled_new_reqs=None,
            scheduled_cached_reqs=None,
        )
        meta = pickle.loads(pickle.dumps(self.scheduler.build_connector_meta(output)))
        more = {"scheduler_output": output, "request_ids": [], "num_tokens": 0} if v2 else {}
        worker = self.worker
        worker.handle_preemptions(meta)
        worker.bind_connector_metadata(meta)
        if sync_first:
            worker.start_load_kv(None, **more)
        worker.wait_for_layer_load("layers.0.attn")
        worker.save_kv_layer("layers.0.attn", None, None)
        worker.finish_forward()
        if not sync_first:
            worker.start_load_kv(None, **more)
        worker.wait_for_save()
        transfers = worker.get_transfer_results(set())
        found = KVConnectorOutput(
            finished_sending=transfers.finished_sending,
            finished_recving=transfers.finished_recving,
            failed_recving=transfers.failed_recving,
            invalid_block_ids=worker.get_block_ids_with_load_errors(),
            kv_connector_stats=worker.get_kv_connector_stats(),
            kv_cache_events=worker.get_kv_connector_kv_cache_events(),
            kv_connector_worker_meta=worker.build_connector_worker_meta(),
        )
        worker.clear_connector_metadata()
        self.scheduler.update_connector_output(found)
        assert list(self.scheduler.take_events()) == []
        return found

    def until_loaded(self, *, v2: bool = False, already: Any = None) -> list[str]:
        """Step until a load ends, unless one has ended already."""
        seen: list[str] = []

        def ended() -> bool:
            seen.extend(self.step({}, v2=v2).finished_recving)
            return bool(seen)

        if already is None or not already.finished_recving:
            _until(ended)
        return seen


def _until(check: Callable[[], object]) -> None:
    import time

    for _ in range(5000):
        if check():
            return
        time.sleep(0.002)
    raise AssertionError("waited in vain")


def tokens_of(name: str) -> FakeRequest:
    return FakeRequest(name, range(20), BLOCK)


def serve_once(both: Both) -> FakeRequest:
    """Compute and save a request of 5 blocks; leave it in the pool."""
    req = tokens_of("a")
    both.scheduler.on_new_request(req)
    assert both.scheduler.get_num_new_matched_tokens(req, 0) == (0, False)
    both.tables["a"] = [1, 2, 3, 4, 5]
    both.scheduler.update_state_after_alloc(req, Bag(get_block_ids=lambda: ([1, 2],)), 0)
    for at in range(5):
        both.write(1 + at, req.block_hashes[at])
    both.step({"a": 20})
    req.num_computed_tokens = 20
    assert both.scheduler.request_finished_all_groups(req, ([1, 2, 3, 4, 5],)) == (False, None)
    _until(lambda: both.step({}) and not both.scheduler.has_pending_push_work())
    assert both.blocks.held == []
    return req


@pytest.mark.parametrize("v2", [False, True])
@pytest.mark.parametrize("sync_first", [False, True])
def test_what_is_saved_is_loaded_whatever_the_order_of_calls(
    make: Make, pool: FakePool, v2: bool, sync_first: bool
) -> None:
    both = Both(make)
    first = serve_once(both)
    assert len(pool.objects) == 3
    req = tokens_of("b")
    both.scheduler.on_new_request(req)
    assert both.scheduler.get_num_new_matched_tokens(req, 0) == (20, True)
    both.scheduler.update_state_after_alloc(
        req, Bag(get_block_ids=lambda: ([11, 12, 13, 14, 15],)), 20
    )
    found = both.step({}, v2=v2, sync_first=sync_first)
    seen = [*found.finished_recving, *both.until_loaded(v2=v2, already=found)]
    assert seen == ["b"]
    for _ in range(3):
        assert not both.step({}).finished_recving
    for at in range(5):
        assert both.read(11 + at) == truth(first.block_hashes[at]).tobytes()
    # vLLM calls again once the request is scheduled after its load.
    both.scheduler.update_state_after_alloc(req, Bag(get_block_ids=lambda: ([],)), 0)


def test_failed_blocks_come_with_the_completion(make: Make, pool: FakePool) -> None:
    both = Both(make)
    serve_once(both)
    req = tokens_of("b")
    both.scheduler.on_new_request(req)
    assert both.scheduler.get_num_new_matched_tokens(req, 0) == (20, True)
    del pool.objects[sorted(pool.objects)[0]]
    table = [11, 12, 13, 14, 15]
    both.scheduler.update_state_after_alloc(req, Bag(get_block_ids=lambda: (table,)), 20)
    found = both.step({})
    while not found.finished_recving:
        assert not found.invalid_block_ids
        found = both.step({})
    bad = found.invalid_block_ids
    assert bad == set(table[min(table.index(b) for b in bad) :])
    assert both.scheduler.get_num_new_matched_tokens(req, 0)[0] < 20


def test_two_workers_results_are_joined_by_vllms_aggregator(make: Make) -> None:
    from moonpool.vllm.jobs import SaveDone
    from moonpool.vllm.meta import StepResults

    one = StepResults([], [SaveDone(1, (0,))])
    assert one.aggregate(StepResults([], [SaveDone(2, (0,))])).saves[1].job_id == 2


def test_nothing_that_goes_wrong_inside_reaches_the_engine(
    make: Make, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Weaknesses 3, 9, 11 and 13: no exception and no assert of ours ends EngineCore."""
    both = Both(make)

    def broken(*_: object, **__: object) -> None:
        raise RuntimeError("a bug")

    for name in ("on_new_request", "matched_tokens", "finished", "ended", "plan_saves", "reset"):
        monkeypatch.setattr(both.scheduler._scheduler, name, broken)
    for name in ("start_loads", "start_saves", "finished_loads", "take_bad_blocks", "take_results"):
        monkeypatch.setattr(both.worker._worker, name, broken)
    req = tokens_of("a")
    both.scheduler.on_new_request(req)
    assert both.scheduler.get_num_new_matched_tokens(req, 0) == (0, False)
    both.tables["a"] = [1]
    found = both.step({"a": 4})
    assert not found.finished_recving
    assert found.invalid_block_ids == set()
    assert both.scheduler.request_finished(req, [1]) == (False, None)
    assert both.scheduler.reset_cache() is False
    assert both.scheduler._scheduler.tally.take()["errors"] == 5


def test_a_planned_load_is_sent_even_if_saves_fail(
    make: Make, monkeypatch: pytest.MonkeyPatch
) -> None:
    both = Both(make)
    serve_once(both)
    req = tokens_of("b")
    both.scheduler.on_new_request(req)
    tokens, _ = both.scheduler.get_num_new_matched_tokens(req, 0)
    blocks = Bag(get_block_ids=lambda: ([11, 12, 13, 14, 15],))
    both.scheduler.update_state_after_alloc(req, blocks, tokens)

    def broken(*_: object) -> None:
        raise RuntimeError("a bug")

    monkeypatch.setattr(both.scheduler._scheduler, "plan_saves", broken)
    assert both.until_loaded() == ["b"]


def test_a_failed_load_recomputes_whatever_the_policy_was(make: Make) -> None:
    config = vllm_config()
    assert config.kv_transfer_config.kv_load_failure_policy == "fail"
    made = make("SCHEDULER", config)
    assert config.kv_transfer_config.kv_load_failure_policy == "recompute"
    assert made.requires_kv_delivery is False
    assert made.get_finished_count() is None
    assert not made.has_pending_block_frees()
    assert type(made).requires_piecewise_for_cudagraph({}) is False


@pytest.mark.parametrize("role", ["SCHEDULER", "WORKER"])
def test_what_is_refused_is_refused_by_either_side(make: Make, role: str) -> None:
    with pytest.raises(ConfigError, match="pipeline parallelism of 2"):
        make(role, vllm_config(pp=2))
    with pytest.raises(ConfigError, match="did you mean load_threads"):
        make(role, vllm_config(extra={"load_thread": 1}))


def test_the_plugin_registers_once(connector: ModuleType) -> None:
    from vllm.distributed.kv_transfer.kv_connector.factory import KVConnectorFactory
    from vllm.distributed.kv_transfer.kv_connector.v1 import supports_hma

    plugin.register()
    plugin.register()
    found = KVConnectorFactory.get_connector_class_by_name("MoonpoolConnector")
    assert found is connector.MoonpoolConnector
    assert supports_hma(found)


def test_the_plugin_is_an_entry_point() -> None:
    from importlib.metadata import entry_points

    (found,) = [e for e in entry_points(group="vllm.general_plugins") if e.name == "moonpool"]
    assert found.value == "moonpool.vllm.plugin:register"


def test_the_layout_asked_for(connector: ModuleType) -> None:
    def ask(device: str, **extra: Any) -> Any:
        transfer = Bag(kv_connector_extra_config=extra)
        config = Bag(device_config=Bag(device_type=device), kv_transfer_config=transfer)
        return connector.MoonpoolConnector.get_required_kvcache_layout(config)

    assert ask("cpu") is None
    assert ask("cuda") == "BLHNC"
    assert ask("cuda", pack_blocks=False) is None


@pytest.mark.parametrize(
    ("name", "split"),
    [
        *((name, 1) for name in ("LBHNC", "LBNHC", "LHBNC", "BLHNC", "BLNHC", "BHLNC")),
        # vLLM lets the kernel split dense pages only.
        *((name, 2) for name in ("LBHNC", "LBNHC")),
    ],
)
def test_vllms_own_views_are_read_right(connector: ModuleType, name: str, split: int) -> None:
    """The tensors that vLLM makes for each of its layouts, split by the kernel or not."""
    import torch
    from vllm.v1.kv_cache_interface import FullAttentionSpec, KVCacheTensor, create_kv_cache_views
    from vllm.v1.kv_cache_layout import KVCacheLayout

    spec = FullAttentionSpec(block_size=8, num_kv_heads=2, head_size=4, dtype=torch.float32)
    page = spec.page_size_bytes
    outer = name.startswith("L")
    tensor = KVCacheTensor(
        size=3 * 5 * page,
        layers=["l0", "l1", "l2"],
        layer_stride=5 * page if outer else page,
        block_stride=page if outer else 3 * page,
    )
    if name == "LHBNC":
        tensor.block_stride = page // 2
    if name == "BHLNC":
        tensor.layer_stride = page // 2
    raw = torch.zeros(3 * 5 * page, dtype=torch.int8)
    views = create_kv_cache_views(
        raw, spec, 5, KVCacheLayout[name], tensor, 8 // split if split > 1 else None
    )
    for at, view in enumerate(views):
        whole = torch.arange(view.numel(), dtype=torch.float32) + 10_000 * at
        view.copy_(whole.view(view.shape))
    table = layout.probe(dict(zip(tensor.layers, views, strict=True)), tensor.layers, 5, 8)
    assert table.block_bytes == 3 * page
    pieces = table.pieces(np.array([3], np.int32), np.array([0, 1], np.int64))
    content = b"".join(
        raw.numpy().tobytes()[a - raw.data_ptr() : a - raw.data_ptr() + n]
        for a, n in zip(pieces.addresses.tolist(), pieces.lengths.tolist(), strict=True)
    )
    block = torch.stack([view.unflatten(0, (5, split))[3] for view in views])
    # Here [layer, part, head, token, content]; the table names the payload's order.
    axes = ["LSHNC".index(letter) for letter in table.order if letter in "LSHNC"]
    # A part that is next to the tokens is not named, nor is what there is one of.
    if 1 not in axes:
        axes.insert(axes.index(3), 1)
    expected = block.permute(*axes).reshape(-1)
    assert np.frombuffer(content, np.float32).tolist() == expected.tolist()


def test_pins_in_vllms_own_block_pool(connector: ModuleType) -> None:
    from vllm.v1.core.block_pool import BlockPool

    from moonpool.vllm.pins import PinBook

    pool = BlockPool(num_gpu_blocks=16, enable_caching=True, hash_block_size=BLOCK)
    free = pool.get_num_free_blocks()
    blocks = pool.get_new_blocks(4)
    book = PinBook(0.5)
    book.bind(pool, 2)
    book.hold(1, [block.block_id for block in blocks])
    pool.free_blocks(reversed(blocks))
    assert pool.get_num_free_blocks() == free - 4
    assert book.give_back(1)
    assert pool.get_num_free_blocks() == free


def test_one_tensor_of_all_layers_is_taken_as_well(make: Make) -> None:
    """Model runner V1 before vLLM 0.29 gives it if the connector prefers it."""
    import torch

    worker = make("WORKER")

    def prefers() -> bool:
        return bool(worker.prefer_cross_layer_blocks)

    assert prefers() is False, "a CPU's kernels take blocks as they are"
    worker._vllm_config.device_config.device_type = "cuda"
    assert prefers() is True
    names = [f"layers.{n}.attn" for n in range(LAYERS)]
    worker._kv_cache_config.kv_cache_tensors = [Bag(shared_by=[name]) for name in names]
    # In memory [blocks, layers, 2, tokens, heads, size].
    tensor = torch.zeros((BLOCKS, LAYERS, 2, BLOCK, 1, 2), dtype=torch.float32)

    class Backend:
        @staticmethod
        def get_kv_cache_stride_order(
            include_num_layers_dimension: bool = False,
        ) -> tuple[int, ...]:
            return (1, 0, 2, 3, 4, 5) if include_num_layers_dimension else (0, 1, 2, 3, 4)

    worker.register_cross_layers_kv_cache(tensor, Backend)
    assert worker._worker.take_order() == "LKND"


def test_the_first_step_tells_what_the_memory_is_like(make: Make) -> None:
    both = Both(make, told=False)
    req = tokens_of("a")
    both.scheduler.on_new_request(req)
    assert both.scheduler.get_num_new_matched_tokens(req, 0) == (None, False)
    both.step({})
    assert both.scheduler.get_num_new_matched_tokens(req, 0) == (0, False)
    assert both.step({}).kv_connector_worker_meta is None


def test_saves_begin_in_steps_without_a_forward_pass_too(make: Make, pool: FakePool) -> None:
    """Before vLLM 0.29 such a step does not call wait_for_save."""
    both = Both(make)
    req = tokens_of("a")
    both.scheduler.on_new_request(req)
    both.scheduler.get_num_new_matched_tokens(req, 0)
    both.scheduler._scheduler.plan_saves({"a": 0}, None)
    for at in range(5):
        both.write(1 + at, req.block_hashes[at])
    req.num_computed_tokens = 20
    both.scheduler.request_finished_all_groups(req, ([1, 2, 3, 4, 5],))
    meta = both.scheduler.build_connector_meta(
        Bag(num_scheduled_tokens={}, kv_connector_block_state=None)
    )
    assert meta.saves
    both.worker.handle_preemptions(meta)
    both.worker.bind_connector_metadata(meta)
    both.worker.start_load_kv(None)
    both.worker.get_finished(set())
    both.worker.clear_connector_metadata()
    _until(lambda: pool.objects)


def test_tables_are_kept_where_vllm_gives_none(make: Make, pool: FakePool) -> None:
    """Before vLLM 0.29: the scheduler's output says what is new."""
    both = Both(make)
    req = tokens_of("a")
    both.scheduler.on_new_request(req)
    both.scheduler.get_num_new_matched_tokens(req, 0)
    none = Bag(req_ids=[], resumed_req_ids=set(), new_block_ids=[])
    output = Bag(
        num_scheduled_tokens={"a": 16},
        finished_req_ids=set(),
        scheduled_new_reqs=[Bag(req_id="a", block_ids=([1, 2, 3, 4],))],
        scheduled_cached_reqs=none,
    )
    (job,) = both.scheduler.build_connector_meta(output).saves
    assert job.block_ids.tolist() == [1, 2, 3, 4]
