"""Models for tests: random weights, other attention."""

from __future__ import annotations

import json
import shutil
from pathlib import Path
from typing import Any

VOCABULARY = 256
SMALL: dict[str, Any] = {
    "hidden_size": 64,
    "intermediate_size": 128,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "head_dim": 32,
    "vocab_size": VOCABULARY,
    "max_position_embeddings": 2048,
    "bos_token_id": 0,
    "eos_token_id": 1,
    "pad_token_id": 2,
}


def mistral(llama: Path, window: int) -> Path:
    """Return a Mistral with the weights of a Llama, every layer of which attends to ``window``
    tokens only."""
    target = llama.with_name(f"mistral-{window}")
    if target.exists():
        return target
    shutil.copytree(llama, target)
    config = json.loads((target / "config.json").read_text())
    config |= {"architectures": ["MistralForCausalLM"], "model_type": "mistral"}
    config |= {"sliding_window": window}
    (target / "config.json").write_text(json.dumps(config))
    return target


def gemma3(folder: Path, window: int) -> Path:
    """Return a model of six layers, every third of which attends to everything."""
    return _random(
        folder / f"gemma3-{window}",
        "Gemma3TextConfig",
        num_hidden_layers=6,
        sliding_window=window,
        sliding_window_pattern=3,
        layer_types=(["sliding_attention"] * 2 + ["full_attention"]) * 2,
        query_pre_attn_scalar=32,
    )


def gpt_oss(folder: Path, window: int) -> Path:
    """Return a model whose layers attend to a window and to everything by turns, with sinks."""
    return _random(
        folder / f"gpt-oss-{window}",
        "GptOssConfig",
        num_hidden_layers=4,
        sliding_window=window,
        layer_types=["sliding_attention", "full_attention"] * 2,
        num_local_experts=4,
        num_experts_per_tok=2,
    )


def deepseek(folder: Path) -> Path:
    """Return a model with multi-head latent attention."""
    return _random(
        folder / "deepseek-v2",
        "DeepseekV2Config",
        num_hidden_layers=2,
        num_key_value_heads=4,
        head_dim=64,
        kv_lora_rank=512,
        q_lora_rank=None,
        qk_nope_head_dim=64,
        qk_rope_head_dim=64,
        v_head_dim=64,
        n_routed_experts=4,
        num_experts_per_tok=2,
        first_k_dense_replace=2,
        n_shared_experts=1,
        moe_intermediate_size=64,
    )


def _random(target: Path, kind: str, **changes: Any) -> Path:
    """Return a model of real random weights: with vLLM's dummy weights all logits are the same
    whatever the KV cache holds."""
    if target.exists():
        return target
    import torch
    import transformers

    torch.manual_seed(0)
    config = getattr(transformers, kind)(**{**SMALL, **changes})
    model = transformers.AutoModelForCausalLM.from_config(config, dtype=torch.float32)
    with torch.no_grad():
        for name, weight in model.named_parameters():
            if weight.ndim > 1:
                weight.normal_(0, 1.5 / weight.shape[-1] ** 0.5)
            elif "norm" not in name:
                weight.normal_(0, 0.5)
    model.save_pretrained(target)
    return target
