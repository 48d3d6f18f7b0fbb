"""The namespace: engines share blocks only if every fact about their KV bytes is the same.

vLLM's block hashes name tokens, LoRA, images and salt, but not the model; everything else that
decides what the bytes are goes into this fingerprint.
"""

from __future__ import annotations

import hashlib
import json
import os
from collections.abc import Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from moonpool.core.keys import fingerprint
from moonpool.errors import ConfigError
from moonpool.vllm.parts import is_state
from moonpool.vllm.shards import WHOLE, Split

LAYOUT_VERSION = "2"
"""Raised when what is in a payload changes."""

_WEIGHTS = ("*.safetensors", "*.bin", "*.pt", "*.pth", "*.gguf")
_SAMPLE_BYTES = 1 << 16
_SAMPLES_PER_FILE = 8
_UNSTABLE = ("transformers_version", "_name_or_path", "name_or_path", "_commit_hash")


@dataclass(frozen=True, slots=True)
class Namespace:
    """The facts, in order, as (name, value); ``title`` is what people see."""

    title: str
    facts: tuple[tuple[str, str], ...]

    def fingerprint(self, epoch: str = "") -> bytes:
        """Return the 16 bytes under which keys are stored; another epoch shares nothing."""
        parts = [part for fact in self.facts for part in fact]
        return fingerprint(*parts, "epoch", epoch)

    def with_payload(self, order: str) -> Namespace:
        """Return the namespace of payloads in this order of bytes (``RegionTable.order``)."""
        return replace(self, facts=(*self.facts, ("payload", f"{LAYOUT_VERSION}:{order}")))

    def describe(self) -> str:
        """Return one line with every fact, so that two engines' logs can be compared."""
        return ", ".join(f"{name}={value}" for name, value in self.facts)


def build(
    vllm_config: Any,
    kv_cache_config: Any,
    *,
    user: str,
    object_tokens: int,
    vllm_version: str,
    fixed_seed: bool = True,
    split: Split = WHOLE,
) -> Namespace:
    """Return the namespace of an engine but for the payload's order; reads samples of local
    weight files.

    user: the ``namespace`` setting; object_tokens: tokens of a full object; fixed_seed: whether
    this vLLM's hashes of sha256 are the same in every process; split: how objects are split into
    shards.
    """
    cache, model = vllm_config.cache_config, vllm_config.model_config
    facts = {
        "user": user,
        **model_facts(model, getattr(vllm_config, "load_config", None)),
        "kv_dtype": str(cache.cache_dtype),
        "kv_format": kv_format(vllm_config, kv_cache_config),
        "block_size": str(cache.block_size),
        "object_tokens": str(object_tokens),
        "layers": geometry(kv_cache_config, split),
        "hash": hash_scheme(
            str(cache.prefix_caching_hash_algo), vllm_version, fixed_seed=fixed_seed
        ),
    }
    if split.count > 1:
        facts["head_shards"] = str(split.count)
    name = Path(str(model.model)).name
    title = f"{name} {facts['dtype']} kv={facts['kv_dtype']} block={cache.block_size}"
    return Namespace(title, tuple(facts.items()))


def model_facts(model: Any, load: Any) -> dict[str, str]:
    """Return what names the weights: path or id, revision, configuration, samples of the files."""
    facts = {
        "model": str(model.model),
        "revision": str(_revision(model)),
        "config": config_digest(model.hf_config),
        "dtype": str(model.dtype).removeprefix("torch."),
        "quantization": str(model.quantization),
        "weights": weights_digest(Path(str(model.model))),
    }
    if str(getattr(load, "load_format", "")).endswith("dummy"):
        # Dummy weights come from the seed, not from the files.
        facts["weights"] = f"dummy:{model.seed}"
    return facts


def config_digest(hf_config: Any) -> str:
    """Return the digest of the model's configuration without what differs by installation."""
    content = hf_config.to_dict()
    stable = {key: value for key, value in content.items() if key not in _UNSTABLE}
    return hashlib.sha256(json.dumps(stable, sort_keys=True, default=str).encode()).hexdigest()[:16]


def weights_digest(folder: Path) -> str:
    """Return the digest of the weight files' names, sizes and samples; "" if they are not local.

    Eight samples of 64 KiB a file are read, so that it costs little for the largest model.
    """
    if not folder.is_dir():
        return ""
    digest = hashlib.sha256()
    files = sorted(path for pattern in _WEIGHTS for path in folder.glob(pattern))
    for path in files:
        size = path.stat().st_size
        digest.update(f"{path.name}\0{size}\0".encode())
        with path.open("rb") as file:
            for sample in range(_SAMPLES_PER_FILE):
                file.seek(max(0, size - _SAMPLE_BYTES) * sample // (_SAMPLES_PER_FILE - 1))
                digest.update(file.read(_SAMPLE_BYTES))
    return digest.hexdigest()[:16] if files else ""


def geometry(kv_cache_config: Any, split: Split = WHOLE) -> str:
    """Return heads (of all workers), sizes and types of every layer's state, equal neighbours
    written once."""
    return " | ".join(_group(group, split) for group in kv_cache_config.kv_cache_groups)


def _group(group: Any, split: Split) -> str:
    spec = group.kv_cache_spec
    per_layer = getattr(spec, "kv_cache_specs", None) or dict.fromkeys(group.layer_names, spec)
    counted: dict[str, int] = {}
    for layer in per_layer.values():
        if is_state(layer):
            shape = f"{type(layer).__name__}:{layer.shapes}:{layer.dtypes}:{layer.mamba_type}"
            counted[shape] = counted.get(shape, 0) + 1
            continue
        shape = (
            f"{type(layer).__name__}:h{_heads(layer, split)}x{layer.head_size}"
            f"+{getattr(layer, 'head_size_v', layer.head_size)}"
            f":{str(layer.dtype).removeprefix('torch.')}:q{int(layer.kv_quant_mode)}"
            f":c{getattr(layer, 'state_content_size_bytes', None)}"
            f":w{getattr(layer, 'sliding_window', None)}"
        )
        counted[shape] = counted.get(shape, 0) + 1
    return " ".join(f"{count}*{shape}" for shape, count in counted.items())


def _heads(layer: Any, split: Split) -> int:
    return split.heads if split.workers > 1 else int(layer.num_kv_heads)


def kv_format(vllm_config: Any, kv_cache_config: Any) -> str:
    """Return how the device arranges K inside a block: CPU kernels pack it for their ISA."""
    device = device_format(str(getattr(vllm_config.device_config, "device_type", "unknown")))
    if not device.startswith("cpu"):
        return device
    return f"{device}/{_attention_isa(vllm_config, kv_cache_config)}"


def device_format(device: str = "") -> str:
    """Return what device arranges the bytes, "": this process's, and what kind of processor."""
    if not device:
        from vllm.platforms import current_platform

        device = str(current_platform.device_type)
    if device != "cpu":
        return device
    import torch

    return f"cpu/{torch.backends.cpu.get_cpu_capability()}"


def _attention_isa(vllm_config: Any, kv_cache_config: Any) -> str:
    try:
        from vllm.v1.attention.backends.cpu_attn import _get_attn_isa
    except ImportError:
        return "unknown"
    cache = vllm_config.cache_config
    model_dtype = vllm_config.model_config.dtype
    specs = [group.kv_cache_spec for group in kv_cache_config.kv_cache_groups]
    sizes = {getattr(spec, "first_spec", spec).head_size for spec in specs if not is_state(spec)}
    return "/".join(
        str(_get_attn_isa(model_dtype, cache.block_size, size, cache.cache_dtype))
        for size in sorted(sizes)
    )


def hash_scheme(
    algorithm: str,
    vllm_version: str,
    env: Mapping[str, str] | None = None,
    *,
    fixed_seed: bool = True,
) -> str:
    """Return what decides block hashes besides the tokens: algorithm, seed and extra keys' form.

    fixed_seed: whether sha256 starts from a fixed seed. Raises ConfigError where vLLM draws the
    seed at random: no other process could ever hit.
    """
    seed = (os.environ if env is None else env).get("PYTHONHASHSEED")
    if seed is None and not algorithm.startswith("sha256"):
        raise ConfigError(
            f"prefix_caching_hash_algo: {algorithm} starts from a random seed in each process, so "
            "engines would never share a block; use sha256, or set PYTHONHASHSEED to the same "
            "number for all"
        )
    if seed is None and not fixed_seed:
        raise ConfigError(
            f"PYTHONHASHSEED: vLLM {vllm_version} hashes blocks from a random seed in each "
            "process, so engines would never share a block; set PYTHONHASHSEED=0 for all engines"
        )
    tagged = "tagged" if _minor(vllm_version) >= (0, 31) else "untagged"
    return f"{algorithm}/{'default' if seed is None else seed}/{tagged}"


def _minor(version: str) -> tuple[int, int]:
    numbers = [int("".join(filter(str.isdigit, part)) or 0) for part in version.split(".")[:2]]
    return (numbers[0], numbers[1]) if len(numbers) == 2 else (0, 0)


def _revision(model: Any) -> str:
    commit = getattr(model.hf_config, "_commit_hash", None)
    return str(commit or model.revision or "")
