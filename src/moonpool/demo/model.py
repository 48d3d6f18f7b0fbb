"""A small Llama with random weights and a byte-level tokenizer, made here: no hub, no download.

Weights are real random numbers, not vLLM's near-zero dummy weights: with those every logit is the
same whatever the KV cache holds, and no wrong block would ever show in an output.
"""

from __future__ import annotations

import json
import os
import shutil
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import numpy as np
import xxhash
from numpy.typing import NDArray

SPECIAL_TOKENS = ("<|begin|>", "<|end|>", "<|pad|>", "<|system|>", "<|user|>", "<|assistant|>")
BYTE_TOKENS = 256
BOS_ID, EOS_ID, PAD_ID = BYTE_TOKENS, BYTE_TOKENS + 1, BYTE_TOKENS + 2
VOCABULARY = BYTE_TOKENS + len(SPECIAL_TOKENS)
FORMAT = 1
"""Raised whenever the files of a shape change, so that a cached model is made anew."""

CHAT_TEMPLATE = (
    "<|begin|>{% for message in messages %}<|{{ message['role'] }}|>{{ message['content'] }}"
    "<|end|>{% endfor %}{% if add_generation_prompt %}<|assistant|>{% endif %}"
)


@dataclass(frozen=True)
class Shape:
    """What the model is made of. All sizes are in elements; ``seed`` fixes the weights."""

    layers: int = 4
    hidden: int = 512
    intermediate: int = 1408
    heads: int = 8
    kv_heads: int = 8
    head_size: int = 64
    context_tokens: int = 16384
    seed: int = 0

    @property
    def kv_bytes_per_token(self) -> int:
        """Bytes of K and V that one token occupies in float32."""
        return 2 * self.layers * self.kv_heads * self.head_size * 4


def build_model(cache_dir: Path, shape: Shape) -> Path:
    """Return the directory of the model, making it first unless it is there already."""
    facts = json.dumps({"format": FORMAT, **asdict(shape)}, sort_keys=True)
    target = cache_dir / f"llama-random-{xxhash.xxh3_64_hexdigest(facts.encode())}"
    if target.is_dir():
        return target
    partial = cache_dir / f"{target.name}.{os.getpid()}.partial"
    partial.mkdir(parents=True, exist_ok=True)
    try:
        _write_json(partial / "config.json", _model_config(shape))
        _write_tokenizer(partial, shape)
        _write_weights(partial / "model.safetensors", shape)
        partial.rename(target)
    except OSError:
        # Another process may have made the same model meanwhile; its files are as good.
        if not target.is_dir():
            raise
    finally:
        shutil.rmtree(partial, ignore_errors=True)
    return target


def _model_config(shape: Shape) -> dict[str, Any]:
    return {
        "architectures": ["LlamaForCausalLM"],
        "model_type": "llama",
        "hidden_size": shape.hidden,
        "intermediate_size": shape.intermediate,
        "num_hidden_layers": shape.layers,
        "num_attention_heads": shape.heads,
        "num_key_value_heads": shape.kv_heads,
        "head_dim": shape.head_size,
        "vocab_size": VOCABULARY,
        "max_position_embeddings": shape.context_tokens,
        "rms_norm_eps": 1e-5,
        "rope_theta": 500000.0,
        "hidden_act": "silu",
        "tie_word_embeddings": False,
        "torch_dtype": "float32",
        "bos_token_id": BOS_ID,
        "eos_token_id": EOS_ID,
        "pad_token_id": PAD_ID,
    }


def _write_tokenizer(folder: Path, shape: Shape) -> None:
    # Comes with vLLM; the tools that need no model must not need it.
    from tokenizers import AddedToken, Tokenizer, decoders, models, pre_tokenizers

    letters = _byte_letters()
    vocabulary = {letters[byte]: byte for byte in range(BYTE_TOKENS)}
    tokenizer = Tokenizer(models.BPE(vocab=vocabulary, merges=[]))
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False)
    tokenizer.decoder = decoders.ByteLevel()
    tokenizer.add_special_tokens([AddedToken(token, special=True) for token in SPECIAL_TOKENS])
    tokenizer.save(str(folder / "tokenizer.json"))
    settings = {
        "tokenizer_class": "PreTrainedTokenizerFast",
        "model_max_length": shape.context_tokens,
        "bos_token": SPECIAL_TOKENS[0],
        "eos_token": SPECIAL_TOKENS[1],
        "pad_token": SPECIAL_TOKENS[2],
        "chat_template": CHAT_TEMPLATE,
        "clean_up_tokenization_spaces": False,
    }
    _write_json(folder / "tokenizer_config.json", settings)


def _byte_letters() -> list[str]:
    """Return the printable letter that byte-level tokenizers (GPT-2's table) write for a byte."""
    printable = [*range(33, 127), *range(161, 173), *range(174, 256)]
    others = (byte for byte in range(BYTE_TOKENS) if byte not in set(printable))
    letters = {byte: chr(byte) for byte in printable}
    letters.update({byte: chr(BYTE_TOKENS + place) for place, byte in enumerate(others)})
    return [letters[byte] for byte in range(BYTE_TOKENS)]


def _write_weights(path: Path, shape: Shape) -> None:
    from safetensors.numpy import save_file  # comes with vLLM

    random = np.random.default_rng(shape.seed)

    def matrix(rows: int, columns: int) -> NDArray[np.float32]:
        # 1.5 / sqrt(fan in) keeps activations of order one and spreads the logits.
        values = random.standard_normal((rows, columns), dtype=np.float32)
        return values * np.float32(1.5 / columns**0.5)

    ones = np.ones(shape.hidden, dtype=np.float32)
    head = matrix(VOCABULARY, shape.hidden)
    head[_unreadable_ids()] = 0.0
    tensors = {
        "model.embed_tokens.weight": random.standard_normal(
            (VOCABULARY, shape.hidden), dtype=np.float32
        ),
        "model.norm.weight": ones,
        "lm_head.weight": head,
    }
    queries, keys = shape.heads * shape.head_size, shape.kv_heads * shape.head_size
    for layer in range(shape.layers):
        name = f"model.layers.{layer}"
        tensors |= {
            f"{name}.input_layernorm.weight": ones,
            f"{name}.post_attention_layernorm.weight": ones,
            f"{name}.self_attn.q_proj.weight": matrix(queries, shape.hidden),
            f"{name}.self_attn.k_proj.weight": matrix(keys, shape.hidden),
            f"{name}.self_attn.v_proj.weight": matrix(keys, shape.hidden),
            f"{name}.self_attn.o_proj.weight": matrix(shape.hidden, queries),
            f"{name}.mlp.gate_proj.weight": matrix(shape.intermediate, shape.hidden),
            f"{name}.mlp.up_proj.weight": matrix(shape.intermediate, shape.hidden),
            f"{name}.mlp.down_proj.weight": matrix(shape.hidden, shape.intermediate),
        }
    save_file(tensors, str(path), metadata={"format": "pt"})


def _unreadable_ids() -> list[int]:
    """Return the tokens whose logit is held at zero, so that what is sampled can be printed."""
    readable = {*range(32, 127), EOS_ID}
    return [token for token in range(VOCABULARY) if token not in readable]


def _write_json(path: Path, value: dict[str, Any]) -> None:
    path.write_text(json.dumps(value, indent=1) + "\n")
