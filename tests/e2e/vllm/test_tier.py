"""The pool below vLLM's own offloading: its real manager of tiers, its memory, its factory.

The half of vLLM's offloading that copies between a GPU and the host needs a GPU; what it hands to
tiers is written here by hand.
"""

from __future__ import annotations

import time
import uuid
from collections.abc import Iterator
from pathlib import Path
from types import SimpleNamespace as Bag
from typing import Any

import numpy as np
import pytest

from moonpool.errors import ConfigError
from tests.integration.processes import eventually, pool

pytest.importorskip("vllm")
tiering = pytest.importorskip("vllm.v1.kv_offload.tiering.manager", exc_type=ImportError)
factory = pytest.importorskip("vllm.v1.kv_offload.tiering.factory", exc_type=ImportError)

from vllm.v1.kv_offload import base, config  # noqa: E402
from vllm.v1.kv_offload.cpu.shared_offload_region import SharedOffloadRegion  # noqa: E402

from moonpool.client.store import Store  # noqa: E402

pytestmark = [pytest.mark.e2e, pytest.mark.timeout(300)]

CHUNKS, CHUNK = 8, 8192
WAIT_S = 60.0


def offloading(**changes: Any) -> Any:
    """vLLM's configuration of offloading, for one worker."""
    group = config.OffloadingGroupConfig(16, ("layers.0.attn",), 0)
    parallel = config.OffloadingParallelConfig(0, 1, 1, 1, 1, 1, 0, 1, None, False)
    facts = {
        "groups": (group,),
        "worker_kv_bytes_per_block": CHUNK,
        "enable_kv_cache_events": False,
        "extra_config": {},
        "engine_id": uuid.uuid4().hex,
        "model": config.OffloadingModelConfig("org/model", "float16"),
        "cache": config.OffloadingCacheConfig(16, 1),
        "parallel": parallel,
        "kv_cache_layout": "LBHNC",
        **changes,
    }
    return config.OffloadingConfig(**facts)


class Engine:
    """vLLM's manager of tiers with memory of its own, as one engine's scheduler has it."""

    def __init__(self, master: str, **changes: Any) -> None:
        chosen = offloading(**changes)
        self._region = SharedOffloadRegion(chosen.engine_id, CHUNKS, None, CHUNK, CHUNK)
        self._primary = tiering.CPUPrimaryTierOffloadingManager(CHUNKS, self._region)
        self.view = np.asarray(self._primary.get_kv_memoryview())
        tier = {"type": "MoonpoolTier", "module_path": "moonpool.vllm.tier", "master": master}
        made = factory.SecondaryTierFactory.create_secondary_tier(
            tier, self._primary.get_kv_memoryview(), Bag(config=chosen)
        )
        self.tier = made
        self.manager = tiering.TieringOffloadingManager(self._primary, [made])
        eventually("the tier joins the pool", lambda: made._link.get() is not None, WAIT_S)

    def step(self, context: Any) -> None:
        self.manager.on_schedule_end(base.ScheduleEndContext((), ()))
        time.sleep(0.005)

    def store(self, keys: list[Any], name: str) -> None:
        """Write a chunk for each key as a GPU's worker would, and let it go down."""
        context = base.ReqContext(name)
        self.manager.on_new_request(context)
        plan = self.manager.prepare_store(keys, context)
        for key, chunk in zip(plan.keys_to_store, plan.store_spec.block_ids, strict=True):
            self.view[int(chunk)] = content(key)
        self.manager.complete_store(keys, context)
        self.settle(context)
        self.manager.on_request_finished(context)

    def settle(self, context: Any) -> None:
        deadline = time.monotonic() + WAIT_S
        self.step(context)
        while self.manager.has_pending_work():
            assert time.monotonic() < deadline, "jobs do not end"
            self.step(context)

    def lookup(self, key: Any, context: Any) -> Any:
        """Ask until the answer is there, as the scheduler does step by step."""
        deadline = time.monotonic() + WAIT_S
        waits = (base.LookupResult.RETRY, base.LookupResult.HIT_PENDING)
        while (found := self.manager.lookup(key, context)) in waits:
            assert time.monotonic() < deadline, "no answer"
            self.step(context)
        return found

    def load(self, key: Any, context: Any) -> bytes:
        """Return what a GPU's worker would read."""
        spec = self.manager.prepare_load([key], context)
        (chunk,) = spec.block_ids
        loaded: bytes = self.view[int(chunk)].tobytes()
        self.manager.complete_load([key], context)
        return loaded

    def close(self) -> None:
        self.manager.shutdown()


def keys_of(*numbers: int, group: int = 0) -> list[Any]:
    return [base.make_offload_key(bytes([number]) * 32, group) for number in numbers]


def content(key: bytes) -> np.ndarray[Any, np.dtype[np.uint8]]:
    seed = int.from_bytes(key[:8], "big") + int.from_bytes(key[-4:], "big")
    return np.random.default_rng(seed).integers(0, 256, CHUNK, np.uint8)


@pytest.fixture(scope="module")
def master(tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    with pool(tmp_path_factory.mktemp("tier"), size="64MB") as (one, _):
        yield one.address


def test_what_one_engine_offloads_another_loads(master: str) -> None:
    one, other = Engine(master), Engine(master)
    keys = keys_of(1, 2, 3)
    one.store(keys, "a")
    context = base.ReqContext("b")
    other.manager.on_new_request(context)
    for key in keys:
        assert other.lookup(key, context) is base.LookupResult.HIT
        assert other.load(key, context) == content(key).tobytes()
    assert other.lookup(keys_of(9)[0], context) is base.LookupResult.MISS
    # The same block of another group of layers is another chunk.
    assert other.lookup(keys_of(1, group=1)[0], context) is base.LookupResult.MISS
    other.manager.on_request_finished(context)
    one.close()
    other.close()


@pytest.mark.parametrize(
    "changes",
    [
        {"model": config.OffloadingModelConfig("org/other", "float16")},
        {"model": config.OffloadingModelConfig("org/model", "bfloat16")},
        {"kv_cache_layout": "BLHNC"},
    ],
)
def test_engines_whose_bytes_differ_share_nothing(master: str, changes: dict[str, Any]) -> None:
    one, other = Engine(master), Engine(master, **changes)
    (key,) = keys_of(20)
    one.store([key], "a")
    assert other.lookup(key, base.ReqContext("b")) is base.LookupResult.MISS
    one.close()
    other.close()


def test_a_chunk_that_is_gone_when_it_is_loaded_is_a_miss(master: str) -> None:
    one, other = Engine(master), Engine(master)
    (key,) = keys_of(30)
    one.store([key], "a")
    context = base.ReqContext("b")
    other.manager.on_new_request(context)
    while other.tier.lookup(key, context) is base.LookupResult.RETRY:
        other.tier.on_schedule_end(None)
        time.sleep(0.005)
    with Store.connect(master, name="probe") as probe:
        assert probe.remove_batch(other.tier._keys([key]), force=True) == [0]
    assert other.lookup(key, context) is base.LookupResult.MISS
    other.settle(context)
    one.close()
    other.close()


def test_without_a_pool_nothing_is_there(tmp_path: Path) -> None:
    chosen = offloading()
    memory = np.zeros((CHUNKS, CHUNK), np.uint8).data
    tier = {"type": "MoonpoolTier", "module_path": "moonpool.vllm.tier", "master": "127.0.0.1:1"}
    made = factory.SecondaryTierFactory.create_secondary_tier(tier, memory, Bag(config=chosen))
    context, (key,) = base.ReqContext("a"), keys_of(1)
    while (found := made.lookup(key, context)) is base.LookupResult.RETRY:
        made.on_schedule_end(None)
        time.sleep(0.005)
    assert found is base.LookupResult.MISS
    made.submit_store(
        Bag(job_id=7, keys=[key], chunk_ids=np.array([0]), is_promotion=False, req_context=context)
    )
    made.drain_jobs()
    (ended,) = made.get_finished_jobs()
    assert (ended.job_id, ended.success) == (7, False)
    assert not made.has_pending_work()
    made.shutdown()


def test_a_wrong_key_is_refused() -> None:
    tier = {"type": "MoonpoolTier", "module_path": "moonpool.vllm.tier", "load_thread": 1}
    memory = np.zeros((CHUNKS, CHUNK), np.uint8).data
    with pytest.raises(ConfigError, match="did you mean load_threads"):
        factory.SecondaryTierFactory.create_secondary_tier(tier, memory, Bag(config=offloading()))
