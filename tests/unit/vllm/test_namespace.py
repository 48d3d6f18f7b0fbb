from __future__ import annotations

from pathlib import Path
from types import SimpleNamespace as Bag
from typing import Any

import pytest

from moonpool.errors import ConfigError
from moonpool.vllm import namespace


class HfConfig:
    def __init__(self, **values: Any) -> None:
        self.values = {"hidden_size": 64, "transformers_version": "5.0", **values}
        self._commit_hash = None

    def to_dict(self) -> dict[str, Any]:
        return self.values


class FullAttentionSpec(Bag):
    """Named as vLLM's; the fingerprint holds the kind."""


def spec(**changes: Any) -> FullAttentionSpec:
    return FullAttentionSpec(
        **{
            "num_kv_heads": 2,
            "head_size": 32,
            "head_size_v": 32,
            "dtype": "torch.float32",
            "kv_quant_mode": 0,
            "state_content_size_bytes": 256,
            "sliding_window": None,
            "tokens_per_state": 1,
            "block_size": 32,
            **changes,
        }
    )


def fingerprint(
    *,
    model: str = "org/llama",
    revision: str | None = None,
    dtype: str = "torch.float32",
    kv: str = "auto",
    block: int = 32,
    algorithm: str = "sha256",
    user: str = "",
    objects: int = 256,
    version: str = "0.32.0",
    hf: HfConfig | None = None,
    device: str = "cuda",
    load: str = "auto",
    seed: int = 0,
    layer: FullAttentionSpec | None = None,
    layers: int = 2,
    epoch: str = "",
) -> bytes:
    group = Bag(
        layer_names=[f"l{n}" for n in range(layers)], kv_cache_spec=layer if layer else spec()
    )
    config = Bag(
        cache_config=Bag(cache_dtype=kv, block_size=block, prefix_caching_hash_algo=algorithm),
        model_config=Bag(
            model=model,
            revision=revision,
            hf_config=hf if hf else HfConfig(),
            dtype=dtype,
            quantization=None,
            seed=seed,
        ),
        load_config=Bag(load_format=load),
        device_config=Bag(device_type=device),
    )
    built = namespace.build(
        config,
        Bag(kv_cache_groups=[group]),
        user=user,
        object_tokens=objects,
        vllm_version=version,
    )
    return built.fingerprint(epoch)


@pytest.mark.parametrize(
    "change",
    [
        {"model": "other/llama"},
        {"revision": "v2"},
        {"dtype": "torch.bfloat16"},
        {"kv": "fp8_e4m3"},
        {"block": 64},
        {"objects": 512},
        {"algorithm": "sha256_cbor"},
        {"user": "tenant"},
        {"version": "0.30.0"},
        {"hf": HfConfig(rope_theta=1e6)},
        {"device": "xpu"},
        {"layer": spec(num_kv_heads=4)},
        {"layer": spec(head_size=64)},
        {"layer": spec(dtype="torch.uint8")},
        {"layers": 3},
        {"epoch": "again"},
    ],
)
def test_any_fact_that_changes_the_bytes_changes_the_namespace(change: dict[str, Any]) -> None:
    """Weakness 16: nothing but the tokens is in vLLM's hashes."""
    assert fingerprint(**change) != fingerprint()


@pytest.mark.parametrize(
    "change",
    [{"hf": HfConfig(transformers_version="6.0")}, {"version": "0.33.1"}, {"seed": 7}],
)
def test_what_does_not_change_the_bytes_does_not(change: dict[str, Any]) -> None:
    assert fingerprint(**change) == fingerprint()


def test_dummy_weights_are_told_apart_by_their_seed() -> None:
    assert fingerprint(load="dummy", seed=1) != fingerprint(load="dummy", seed=2)


def test_local_weights_are_part_of_the_model(tmp_path: Path) -> None:
    file = tmp_path / "model.safetensors"
    file.write_bytes(bytes(1 << 20))
    before = namespace.weights_digest(tmp_path)
    content = bytearray(1 << 20)
    content[(1 << 20) - 1] = 1
    file.write_bytes(content)
    assert namespace.weights_digest(tmp_path) != before
    assert namespace.weights_digest(tmp_path / "absent") == ""


def test_a_small_weight_file_is_digested(tmp_path: Path) -> None:
    (tmp_path / "a.bin").write_bytes(b"x")
    assert len(namespace.weights_digest(tmp_path)) == 16


@pytest.mark.parametrize("algorithm", ["xxhash", "xxhash_cbor"])
def test_a_random_seed_is_refused_in_one_line(algorithm: str) -> None:
    with pytest.raises(ConfigError, match=r"prefix_caching_hash_algo.*PYTHONHASHSEED") as caught:
        namespace.hash_scheme(algorithm, "0.32.0", {})
    assert "\n" not in str(caught.value)
    assert namespace.hash_scheme(algorithm, "0.32.0", {"PYTHONHASHSEED": "7"})


def test_the_seed_is_part_of_the_scheme() -> None:
    plain = namespace.hash_scheme("sha256", "0.32.0", {})
    assert namespace.hash_scheme("sha256", "0.32.0", {"PYTHONHASHSEED": "7"}) != plain


def test_people_can_compare_the_facts() -> None:
    built = namespace.Namespace("title", (("a", "1"), ("b", "2")))
    assert built.describe() == "a=1, b=2"
    assert (
        namespace.Namespace("t", (("a", "12"),)).fingerprint()
        != namespace.Namespace("t", (("a1", "2"),)).fingerprint()
    )
