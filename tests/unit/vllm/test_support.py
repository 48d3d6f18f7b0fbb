from __future__ import annotations

from types import SimpleNamespace as Bag
from typing import Any

import pytest

from moonpool.errors import ConfigError
from moonpool.vllm import support
from tests.unit.vllm.test_namespace import spec


def config(**changes: Any) -> Bag:
    parallel = Bag(
        tensor_parallel_size=changes.get("tp", 1),
        pipeline_parallel_size=changes.get("pp", 1),
        decode_context_parallel_size=changes.get("dcp", 1),
        prefill_context_parallel_size=changes.get("pcp", 1),
    )
    return Bag(
        parallel_config=parallel,
        model_config=Bag(is_encoder_decoder=changes.get("encoder", False)),
        cache_config=Bag(calculate_kv_scales=changes.get("scales", False)),
        speculative_config=changes.get("speculative"),
        kv_transfer_config=Bag(kv_load_failure_policy=changes.get("policy", "fail")),
    )


def cache(*specs: object) -> Bag:
    return Bag(kv_cache_groups=[Bag(kv_cache_spec=one, layer_names=["l"]) for one in specs])


class SlidingWindowSpec(Bag):
    def __init__(self, sliding_window: int = 64) -> None:
        super().__init__(block_size=32, sliding_window=sliding_window)


class RSWASpec(Bag):
    pass


@pytest.mark.parametrize(
    ("changes", "words"),
    [
        ({"pp": 4}, "pipeline parallelism of 4"),
        ({"dcp": 2}, "decode context parallelism"),
        ({"pcp": 2}, "prefill context parallelism"),
        ({"encoder": True}, "encoder-decoder"),
        ({"scales": True}, "calculate_kv_scales"),
        ({"speculative": object()}, "speculative decoding"),
    ],
)
def test_what_is_not_supported_is_refused_in_one_line(changes: dict[str, Any], words: str) -> None:
    """Weakness 29, among others."""
    with pytest.raises(ConfigError, match=words) as caught:
        support.check_config(config(**changes))
    assert "\n" not in str(caught.value)
    assert ";" in str(caught.value)


def test_a_plain_model_is_accepted() -> None:
    support.check_config(config())
    support.check_cache(cache(spec()), 32)
    support.check_cache(cache(Bag(kv_cache_specs={"a": spec(), "b": spec(head_size=64)})), 32)
    support.check_device("cpu")
    support.check_device("cuda")


@pytest.mark.parametrize(
    ("specs", "words"),
    [
        ((spec(), spec()), "2 KV cache groups.*vLLM 0.30"),
        ((), "0 KV cache groups"),
        ((SlidingWindowSpec(),), "SlidingWindowSpec"),
        ((RSWASpec(),), "RSWASpec"),
        ((spec(tokens_per_state=4),), "4 tokens in a state"),
        ((spec(block_size=16),), "blocks of 16 tokens"),
    ],
)
def test_other_caches_are_refused(specs: tuple[object, ...], words: str) -> None:
    with pytest.raises(ConfigError, match=words):
        support.check_cache(cache(*specs), 32)


def test_a_sliding_window_in_all_layers_is_taken_where_requests_can_begin_anew() -> None:
    windows = cache(SlidingWindowSpec(80))
    support.check_cache(windows, 32, windows=True)
    support.check_cache(cache(spec(), SlidingWindowSpec()), 32, windows=True)
    with pytest.raises(ConfigError, match="RSWASpec"):
        support.check_cache(cache(spec(), RSWASpec()), 32, windows=True)


def test_with_windows_beside_full_attention_nobody_waits_unasked() -> None:
    support.check_sharing(0, single=False)
    support.check_sharing(4096, single=True)
    with pytest.raises(ConfigError, match=r"share_prefill_tokens with .*; set share_prefill"):
        support.check_sharing(1, single=False)


def test_memory_that_nobody_can_reach_is_refused() -> None:
    with pytest.raises(ConfigError, match="KV memory on xpu"):
        support.check_device("xpu")


def test_a_process_cannot_move_what_is_the_engines_own() -> None:
    with pytest.raises(ConfigError, match=r"mover=process on a CPU.*set mover"):
        support.check_mover("process", "cpu")
    support.check_mover("process", "cuda")
    support.check_mover("thread", "cpu")


@pytest.mark.parametrize(
    "version", ["0.24.0", "0.29.0", "0.32.0+cpu", "0.33.1", "1.0.0", "0.1.dev1+g1234"]
)
def test_supported_versions(version: str) -> None:
    support.check_version(version)


@pytest.mark.parametrize("version", ["0.23.1", "0.9.2", "0.20.0+cpu"])
def test_older_versions_are_refused(version: str) -> None:
    with pytest.raises(ConfigError, match=r"vLLM.*install vLLM 0\.24"):
        support.check_version(version)


def test_a_failed_load_is_made_to_cost_a_recompute() -> None:
    """vLLM's default, "fail", would end the request."""
    changed = config()
    support.prefer_recompute(changed)
    assert changed.kv_transfer_config.kv_load_failure_policy == "recompute"
