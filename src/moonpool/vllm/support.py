"""What the connector does not support yet, refused at start: what, why, and what to change."""

from __future__ import annotations

from typing import Any

from moonpool.errors import ConfigError
from moonpool.vllm.log import logger
from moonpool.vllm.parts import is_state

OLDEST = (0, 24)
FULL = ("FullAttentionSpec", "MLAAttentionSpec")
"""Kinds of cache of which every block is needed."""


def check_version(version: str) -> None:
    """Refuse a vLLM whose connector interface is older than the oldest supported."""
    numbers = [int(part) for part in version.split("+")[0].split(".")[:2] if part.isdigit()]
    # Development builds call themselves 0.1.dev…; they are newer than any release.
    if "dev" in version or len(numbers) < 2 or tuple(numbers) >= OLDEST:
        return
    raise _refusal(
        f"vLLM {version}",
        "its connector interface lacks what safe saves need",
        f"install vLLM {OLDEST[0]}.{OLDEST[1]} or newer",
    )


def check_config(vllm_config: Any) -> None:
    """Refuse configurations under which keys or bytes would not mean what they say."""
    parallel, model = vllm_config.parallel_config, vllm_config.model_config
    for name, what in (
        ("pipeline_parallel_size", "pipeline parallelism"),
        ("decode_context_parallel_size", "decode context parallelism"),
        ("prefill_context_parallel_size", "prefill context parallelism"),
    ):
        size = getattr(parallel, name, 1) or 1
        if size > 1:
            raise _refusal(
                f"{what} of {size}",
                "an object would hold only one rank's part",
                f"set {name} to 1 (data parallelism is fine)",
            )
    if getattr(model, "is_encoder_decoder", False):
        raise _refusal(
            "an encoder-decoder model",
            "vLLM gives connectors no cross-attention blocks",
            "serve it without --kv-transfer-config",
        )
    if getattr(vllm_config.cache_config, "calculate_kv_scales", False):
        raise _refusal(
            "calculate_kv_scales",
            "each process would scale the same bytes differently",
            "take the scales from the checkpoint",
        )
    if getattr(vllm_config, "speculative_config", None) is not None:
        raise _refusal(
            "speculative decoding",
            "draft layers and look-ahead hashes are not part of the key",
            "remove --speculative-config",
        )


def check_cache(
    kv_cache_config: Any,
    block_size: int,
    *,
    windows: bool = False,
    states: bool = False,
    kinds: tuple[str, ...] = FULL,
) -> None:
    """Refuse KV caches of kinds that are not supported, or whose blocks are not those that the
    scheduler hashes (``block_size`` tokens). windows: whether sliding windows are supported, and
    several groups with them: a request whose load failed can be computed from its beginning.
    states: whether recurrent and convolution states are; not offered yet (docs/vllm.md)."""
    if windows:
        kinds = (*kinds, "SlidingWindowSpec", *(["MambaSpec"] if states else []))
    groups = kv_cache_config.kv_cache_groups
    if groups and all(is_state(group.kv_cache_spec) for group in groups):
        raise _refusal(
            "a model without attention",
            "hits are found by the blocks of its attention layers",
            "serve it without --kv-transfer-config",
        )
    if not groups or (len(groups) != 1 and not windows):
        found = ", ".join(sorted({type(group.kv_cache_spec).__name__ for group in groups}))
        raise _refusal(
            f"a model with {len(groups)} KV cache groups ({found or 'none'}) here",
            "a load that fails for one of them must be recomputed from the prompt's beginning",
            "use MoonpoolConnector with vLLM 0.30 or newer, or serve it without "
            "--kv-transfer-config",
        )
    for group in groups:
        spec = group.kv_cache_spec
        for layer in getattr(spec, "kv_cache_specs", {"": spec}).values():
            _check_layer(layer, kinds, block_size)


def _check_layer(layer: Any, kinds: tuple[str, ...], block_size: int) -> None:
    if type(layer).__name__ not in kinds:
        raise _refusal(
            f"a KV cache of kind {type(layer).__name__}",
            "it takes " + " and ".join(kinds),
            "serve it without --kv-transfer-config",
        )
    if layer.block_size != block_size:
        raise _refusal(
            f"KV blocks of {layer.block_size} tokens where the scheduler's have {block_size}",
            "hashes would not name blocks",
            "set --block-size to a size that the attention backend takes",
        )
    if is_state(layer):
        _check_state(layer)
    elif getattr(layer, "tokens_per_state", 1) != 1:
        raise _refusal(
            f"a KV cache with {layer.tokens_per_state} tokens in a state",
            "one state for each token is supported",
            "serve it without --kv-transfer-config",
        )


def _check_state(layer: Any) -> None:
    if layer.mamba_cache_mode != "align":
        raise _refusal(
            f"recurrent states with mamba_cache_mode {layer.mamba_cache_mode}",
            "vLLM says only with align where the states at ends of blocks are",
            "set --mamba-cache-mode align and --enable-prefix-caching",
        )
    if getattr(layer, "num_speculative_blocks", 0):
        raise _refusal(
            "recurrent states with speculative decoding",
            "a state may be that of a draft",
            "remove --speculative-config",
        )


def check_pair(vllm_config: Any, kv_cache_config: Any) -> None:
    """Refuse what MoonpoolConnector takes alone, but not beside a connector that passes KV from
    engine to engine: which blocks that one fills would not be known."""
    workers = int(getattr(vllm_config.parallel_config, "tensor_parallel_size", 1) or 1)
    if workers > 1:
        raise _refusal(
            f"tensor parallelism of {workers} with MoonpoolPDConnector",
            "what a peer brings is joined for one worker only",
            "set tensor_parallel_size to 1, or use MoonpoolConnector alone",
        )
    check_cache(kv_cache_config, vllm_config.cache_config.block_size, kinds=FULL[:1])


def check_sharing(share_prefill_tokens: int, *, single: bool) -> None:
    """Refuse to wait for what others compute unasked where an object is in several pieces."""
    if share_prefill_tokens and not single:
        raise _refusal(
            "share_prefill_tokens with objects in several pieces (sliding windows beside full "
            "attention, shards of heads)",
            "engines say of whole objects only what they compute",
            "set share_prefill_tokens to 0",
        )


def check_device(device: str) -> None:
    """Refuse KV memory that neither this process nor a CUDA driver can address."""
    if device not in ("cpu", "cuda"):
        raise _refusal(
            f"KV memory on {device}",
            "the pool reaches host memory and NVIDIA GPUs only",
            "serve it without --kv-transfer-config",
        )


def check_mover(mover: str, device: str) -> None:
    """Refuse a process that moves bytes which only the engine's process can address."""
    if mover == "process" and device == "cpu":
        raise _refusal(
            "mover=process on a CPU",
            "the KV memory is the engine's own",
            "set mover to auto or thread",
        )


def prefer_recompute(vllm_config: Any) -> None:
    """Make a failed load cost a recompute: vLLM's default would fail the request.

    vLLM reads ``kv_load_failure_policy`` after it has made the scheduler's connector, so setting
    it here is in time. As a child of MultiConnector only the user can set it, at the top.
    """
    transfer = vllm_config.kv_transfer_config
    if getattr(transfer, "kv_load_failure_policy", "recompute") == "recompute":
        return
    transfer.kv_load_failure_policy = "recompute"
    logger.info(
        'kv_load_failure_policy is set to "recompute" (it was "fail"): a failed load costs a '
        "recompute, never a request. Under MultiConnector set it at the top level yourself"
    )


def _refusal(what: str, why: str, change: str) -> ConfigError:
    return ConfigError(f"MoonpoolConnector does not support {what}: {why}; {change}")
