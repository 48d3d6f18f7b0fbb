"""Run in processes of their own: backends for Mooncake of other projects, on the shim.

``python -m tests.integration.mooncake_programs NAME MASTER`` drives the real classes of the
published wheels as their own code does, without a GPU.
"""

from __future__ import annotations

import asyncio
import importlib.machinery
import os
import sys
import types
from collections.abc import Callable
from typing import Any

SEGMENT_BYTES = 64 << 20
PAGE = 16


def lmcache(master: str, *, with_metadata: bool) -> None:
    """LMCache's MooncakestoreConnector: put, get, exists and prefixes, in both of its modes."""
    import torch
    from lmcache.v1.config import LMCacheEngineConfig
    from lmcache.v1.metadata import LMCacheMetadata
    from lmcache.v1.storage_backend.connector.mooncakestore_connector import (
        MooncakestoreConnector,
    )
    from lmcache.v1.storage_backend.local_cpu_backend import LocalCPUBackend

    config = LMCacheEngineConfig.from_defaults(
        chunk_size=16,
        local_cpu=False,
        max_local_cpu_size=0.05,
        remote_url=f"mooncakestore://{master}",
        extra_config={
            "save_chunk_meta": with_metadata,
            "transfer_timeout": 30,
            "mooncake_local_hostname": "127.0.0.1",
            "mooncake_metadata_server": "P2PHANDSHAKE",
            "mooncake_master_server_addr": master,
            "mooncake_global_segment_size": str(SEGMENT_BYTES),
            "mooncake_local_buffer_size": str(16 << 20),
            "mooncake_protocol": "tcp",
        },
    )
    metadata = LMCacheMetadata(
        model_name=f"tiny-{with_metadata}",
        world_size=1,
        local_world_size=1,
        worker_id=0,
        local_worker_id=0,
        kv_dtype=torch.float32,
        kv_shape=(2, 2, 16, 2, 8),
        chunk_size=16,
    )
    backend = LocalCPUBackend(config, metadata, dst_device="cpu")
    loop = asyncio.new_event_loop()
    connector = MooncakestoreConnector(loop, backend, config)
    loop.run_until_complete(_chunks(connector, backend, metadata.model_name))
    loop.close()


async def _chunks(connector: Any, backend: Any, model: str) -> None:
    import torch
    from lmcache.utils import CacheEngineKey

    keys = [CacheEngineKey(model, 1, 0, number, torch.float32) for number in range(10)]
    chunks = []
    for number in range(4):
        chunk = backend.allocate(connector.meta_shapes, connector.meta_dtypes, connector.meta_fmt)
        chunk.tensor.fill_(number + 1)
        chunks.append(chunk)
    await connector.batched_put(keys[:3], chunks[:3])
    await connector.put(keys[3], chunks[3])
    assert [bool(await connector.exists(key)) for key in keys[:6]] == [True] * 4 + [False] * 2
    asked = [keys[0], keys[1], keys[9], keys[2]]
    assert await connector.batched_async_contains("lookup", asked) == 2
    found = await connector.batched_get([*keys[:4], keys[9]])
    assert found[4] is None
    for number, chunk in enumerate(found[:4]):
        assert bool((chunk.tensor == number + 1).all())
        assert chunk.tensor.shape == chunks[0].tensor.shape
    await connector.close()


def sglang(master: str) -> None:
    """SGLang HiCache's MooncakeStore: its wheel's own tests, and prefixes with a gap."""
    _without_torchvision()
    os.environ |= {
        "MOONCAKE_MASTER": master,
        "MOONCAKE_PROTOCOL": "tcp",
        "MOONCAKE_TE_META_DATA_SERVER": "P2PHANDSHAKE",
        "MOONCAKE_GLOBAL_SEGMENT_SIZE": str(SEGMENT_BYTES),
        "MOONCAKE_LOCAL_HOSTNAME": "127.0.0.1",
    }
    import torch
    from sglang.srt.mem_cache.storage.mooncake_store import test_mooncake_store as theirs
    from sglang.srt.mem_cache.storage.mooncake_store.mooncake_store import MooncakeStore

    theirs.test_single_operation()
    for mla in (False, True):
        config = theirs.make_hicache_storage_config(is_mla_model=mla, tp_rank=0, tp_size=1)
        theirs.test_batch_operation(config)
    config = theirs.make_hicache_storage_config(is_mla_model=False, tp_rank=0, tp_size=1)
    config.extra_config = {"enable_group_semantics": True, "master_server_address": master}
    config.extra_config |= {"protocol": "tcp", "global_segment_size": SEGMENT_BYTES}
    store = MooncakeStore(config)
    assert store._use_group_semantics
    pool, _ = theirs.create_mock_host_kv_cache(1 << 16, entries_per_page=2, page_elements=64)
    store.register_mem_pool_host(pool)
    keys = theirs.generate_batch_query_keys(6)
    assert all(store.batch_set_v1([*keys[:3], keys[4]], torch.arange(4)))
    assert store.batch_exists(keys) == 3
    assert store.batch_get_v1(keys[:4], torch.arange(8, 12)) == [True, True, True, False]
    assert not store.exists(keys[3])
    store.store.close()


def sglang_pool(master: str, *, client: str = "") -> None:
    """The same with SGLang's own host pools, in memory of Mooncake's allocator: what one store has
    written another reads. client: a mooncake_client whose dummies the stores are then."""
    _without_torchvision()
    import torch
    from sglang.srt.mem_cache.storage.mooncake_store import test_mooncake_store as theirs
    from sglang.srt.mem_cache.storage.mooncake_store.mooncake_store import MooncakeStore

    config = theirs.make_hicache_storage_config(is_mla_model=False, tp_rank=0, tp_size=1)
    config.extra_config = {"master_server_address": master, "protocol": "tcp"}
    config.extra_config |= {"metadata_server": "P2PHANDSHAKE", "local_hostname": "127.0.0.1"}
    config.extra_config["global_segment_size"] = SEGMENT_BYTES
    if client:
        config.extra_config |= {"standalone_storage": True, "client_server_address": client}
    pools = [_host_pool(), _host_pool()]
    stores = [MooncakeStore(config, pool) for pool in pools]
    for store, pool in zip(stores, pools, strict=True):
        store.register_mem_pool_host(pool)
    pools[0].kv_buffer.copy_(torch.randn(pools[0].kv_buffer.shape))
    keys = theirs.generate_batch_query_keys(4)
    assert all(stores[0].batch_set_v1(keys, torch.arange(4 * PAGE)))
    assert stores[1].batch_exists([*keys, "none"]) == 4
    assert all(stores[1].batch_get_v1(keys, torch.arange(2 * PAGE, 6 * PAGE)))
    written, read = pools[0].kv_buffer[:, : 4 * PAGE], pools[1].kv_buffer[:, 2 * PAGE : 6 * PAGE]
    assert torch.equal(written, read)
    for store in stores:
        store.store.close()


def _host_pool() -> Any:
    import torch
    from sglang.srt.mem_cache.memory_pool import MHATokenToKVPool
    from sglang.srt.mem_cache.pool_host.mha import MHATokenToKVPoolHost

    device: Any = MHATokenToKVPool(
        64, PAGE, torch.float32, 2, 8, 2, "cpu", enable_memory_saver=False
    )
    kind: Any = MHATokenToKVPoolHost
    return kind(
        device._mha_buffer_info(),
        *(2.0, 0, PAGE, "page_first", False, "cpu", "mooncake"),
        device_capacity_tokens=64,
        start_layer=0,
        end_layer=2,
    )


def _without_torchvision() -> None:
    """SGLang imports torchvision and uses nothing of it here."""
    from transformers import AutoProcessor  # noqa: F401 - looks for torchvision itself

    class Anything(types.ModuleType):
        def __getattr__(self, name: str) -> Any:
            if name.startswith("__"):
                raise AttributeError(name)
            return Anything(name)

        def __call__(self, *_: Any, **__: Any) -> Any:
            return Anything("made")

    try:
        import torchvision  # noqa: F401
    except (ImportError, RuntimeError):
        for name in ("", ".transforms", ".io", ".transforms.functional"):
            module = Anything(f"torchvision{name}")
            module.__path__ = []
            module.__spec__ = importlib.machinery.ModuleSpec(module.__name__, None)
            sys.modules[module.__name__] = module


PROGRAMS: dict[str, Callable[[str], None]] = {
    "lmcache": lambda master: lmcache(master, with_metadata=False),
    "lmcache-metadata": lambda master: lmcache(master, with_metadata=True),
    "sglang": sglang,
    "sglang-pool": sglang_pool,
    "sglang-dummy": lambda master: sglang_pool(master, client=os.environ["TEST_CLIENT"]),
}

if __name__ == "__main__":
    PROGRAMS[sys.argv[1]](sys.argv[2])
    print("done")  # noqa: T201
