"""How many heads an engine's workers hold, as vLLM's real configuration of caches says it."""

from __future__ import annotations

from types import SimpleNamespace as Bag
from typing import Any

import pytest

from moonpool.errors import ConfigError
from moonpool.vllm import compat
from moonpool.vllm.namespace import geometry
from moonpool.vllm.shards import WHOLE, Split

torch = pytest.importorskip("torch")
interface = pytest.importorskip("vllm.v1.kv_cache_interface", exc_type=ImportError)


def cache(heads: int, kind: str = "FullAttentionSpec", **more: Any) -> Any:
    spec = getattr(interface, kind)(
        block_size=32, num_kv_heads=heads, head_size=32, dtype=torch.float32, **more
    )
    return Bag(kv_cache_groups=[interface.KVCacheGroupSpec(["a", "b"], spec)])


def engine(workers: int, heads: int) -> Any:
    return Bag(
        parallel_config=Bag(tensor_parallel_size=workers),
        model_config=Bag(get_total_num_kv_heads=lambda: heads),
    )


@pytest.mark.parametrize(
    ("workers", "own", "wanted", "split"),
    [
        (1, 8, 0, WHOLE),
        (1, 8, 4, Split(8, 1, 4)),
        (2, 4, 0, Split(8, 2, 2)),
        (2, 4, 8, Split(8, 2, 8)),
        (16, 1, 0, Split(8, 16, 8)),
    ],
)
def test_the_split_of_an_engine(workers: int, own: int, wanted: int, split: Split) -> None:
    if not compat.has_named_layouts():
        pytest.skip("shards need vLLM 0.29")
    assert compat.split_of(engine(workers, 8), cache(own), wanted) == split


def test_latent_attention_is_held_by_all_workers() -> None:
    if not compat.has_named_layouts():
        pytest.skip("shards need vLLM 0.29")
    latent = cache(1, "MLAAttentionSpec")
    assert compat.split_of(engine(4, 128), latent, 0) == Split(1, 4, 1)


@pytest.mark.parametrize("more", [{}, {"num_head_slots": 1}])
def test_heads_that_cannot_be_told_apart_are_refused(more: dict[str, Any]) -> None:
    if not compat.has_named_layouts():
        pytest.skip("shards need vLLM 0.29")
    with pytest.raises(ConfigError, match="the same number of KV heads in every layer"):
        compat.split_of(engine(2, 8), cache(4 if more else 2, **more), 0)


def test_engines_of_any_size_describe_the_model_alike() -> None:
    described = {geometry(cache(8 // workers), Split(8, workers, 8)) for workers in (1, 2, 4)}
    assert len(described) == 1
