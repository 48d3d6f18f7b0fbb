"""The models that are measured: shapes of Llama, written to disk for vLLM."""

from __future__ import annotations

import json
from dataclasses import dataclass
from pathlib import Path
from typing import Any


@dataclass(frozen=True, slots=True)
class Model:
    """A Llama-shaped model. ``weights``: dummy ones are enough to measure, not to compare."""

    layers: int
    hidden: int
    heads: int
    kv_heads: int
    head_dim: int
    intermediate: int
    vocabulary: int
    max_tokens: int
    dtype: str = "bfloat16"
    weights: bool = False

    @property
    def token_bytes(self) -> int:
        """Bytes of KV a token."""
        return (
            2 * self.layers * self.kv_heads * self.head_dim * (4 if self.dtype == "float32" else 2)
        )

    def config(self) -> dict[str, Any]:
        """Return the content of config.json."""
        return {
            "architectures": ["LlamaForCausalLM"],
            "model_type": "llama",
            "hidden_size": self.hidden,
            "intermediate_size": self.intermediate,
            "num_hidden_layers": self.layers,
            "num_attention_heads": self.heads,
            "num_key_value_heads": self.kv_heads,
            "head_dim": self.head_dim,
            "vocab_size": self.vocabulary,
            "max_position_embeddings": self.max_tokens,
            "rms_norm_eps": 1e-5,
            "rope_theta": 500000.0,
            "hidden_act": "silu",
            "torch_dtype": self.dtype,
            "tie_word_embeddings": False,
            "bos_token_id": 1,
            "eos_token_id": 2,
        }


LLAMA_8B = Model(32, 4096, 32, 8, 128, 14336, 128256, 131072)
SMALL = Model(8, 1024, 8, 4, 128, 2816, 32000, 32768, weights=True)
TINY = Model(2, 128, 4, 2, 32, 256, 512, 4096, dtype="float32")


def write_model(model: Model, place: Path) -> Path:
    """Write the model's files; weights are random with a spread at which attention matters."""
    place.mkdir(parents=True, exist_ok=True)
    (place / "config.json").write_text(json.dumps(model.config()))
    if model.weights:
        _write_weights(model, place)
    return place


def _write_weights(model: Model, place: Path) -> None:
    import torch
    from safetensors.torch import save_file

    random = torch.Generator().manual_seed(11)
    dtype = getattr(torch, model.dtype)

    def matrix(rows: int, columns: int) -> Any:
        spread = 1.5 / columns**0.5
        return (torch.randn(rows, columns, generator=random) * spread).to(dtype)

    wide, narrow = model.heads * model.head_dim, model.kv_heads * model.head_dim
    tensors: dict[str, Any] = {
        "model.embed_tokens.weight": matrix(model.vocabulary, model.hidden),
        "lm_head.weight": matrix(model.vocabulary, model.hidden),
        "model.norm.weight": torch.ones(model.hidden, dtype=dtype),
    }
    for layer in range(model.layers):
        at = f"model.layers.{layer}"
        tensors |= {
            f"{at}.input_layernorm.weight": torch.ones(model.hidden, dtype=dtype),
            f"{at}.post_attention_layernorm.weight": torch.ones(model.hidden, dtype=dtype),
            f"{at}.self_attn.q_proj.weight": matrix(wide, model.hidden),
            f"{at}.self_attn.k_proj.weight": matrix(narrow, model.hidden),
            f"{at}.self_attn.v_proj.weight": matrix(narrow, model.hidden),
            f"{at}.self_attn.o_proj.weight": matrix(model.hidden, wide),
            f"{at}.mlp.gate_proj.weight": matrix(model.intermediate, model.hidden),
            f"{at}.mlp.up_proj.weight": matrix(model.intermediate, model.hidden),
            f"{at}.mlp.down_proj.weight": matrix(model.hidden, model.intermediate),
        }
    save_file(tensors, str(place / "model.safetensors"))
