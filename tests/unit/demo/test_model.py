"""The model that is made here."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from moonpool.demo.model import (
    BYTE_TOKENS,
    EOS_ID,
    SPECIAL_TOKENS,
    VOCABULARY,
    Shape,
    build_model,
)

SMALL = Shape(layers=1, hidden=32, intermediate=48, heads=2, kv_heads=2, head_size=16)


def test_files_are_complete_and_made_once(tmp_path: Path) -> None:
    pytest.importorskip("safetensors")
    pytest.importorskip("tokenizers")
    model = build_model(tmp_path, SMALL)
    names = {"config.json", "model.safetensors", "tokenizer.json", "tokenizer_config.json"}
    assert {path.name for path in model.iterdir()} == names
    written = (model / "model.safetensors").stat().st_mtime_ns
    assert build_model(tmp_path, SMALL) == model
    assert (model / "model.safetensors").stat().st_mtime_ns == written
    assert list(tmp_path.iterdir()) == [model]


def test_another_shape_or_seed_is_another_model(tmp_path: Path) -> None:
    pytest.importorskip("safetensors")
    pytest.importorskip("tokenizers")
    other = Shape(**{**{f: getattr(SMALL, f) for f in SMALL.__dataclass_fields__}, "seed": 1})
    one, two = build_model(tmp_path, SMALL), build_model(tmp_path, other)
    assert one != two
    assert (one / "model.safetensors").read_bytes() != (two / "model.safetensors").read_bytes()


def test_weights_are_spread_and_only_readable_tokens_are_answers(tmp_path: Path) -> None:
    numpy_files = pytest.importorskip("safetensors.numpy")
    pytest.importorskip("tokenizers")
    tensors = numpy_files.load_file(str(build_model(tmp_path, SMALL) / "model.safetensors"))
    queries = tensors["model.layers.0.self_attn.q_proj.weight"]
    assert queries.shape == (32, 32)
    assert queries.std() == pytest.approx(1.5 / 32**0.5, rel=0.1)
    head = tensors["lm_head.weight"]
    assert head.shape == (VOCABULARY, 32)
    answers = {token for token in range(VOCABULARY) if head[token].any()}
    assert answers == {*range(32, 127), EOS_ID}


def test_the_tokenizer_is_one_token_a_byte(tmp_path: Path) -> None:
    tokenizers = pytest.importorskip("tokenizers")
    pytest.importorskip("safetensors")
    model = build_model(tmp_path, SMALL)
    tokenizer = tokenizers.Tokenizer.from_file(str(model / "tokenizer.json"))
    text = "Grüße, \x00\n世界!"
    encoded = tokenizer.encode(text).ids
    assert encoded == list(text.encode())
    assert tokenizer.decode(encoded) == text
    specials = tokenizer.encode("".join(SPECIAL_TOKENS)).ids
    assert specials == list(range(BYTE_TOKENS, VOCABULARY))
    settings = json.loads((model / "tokenizer_config.json").read_text())
    assert "add_generation_prompt" in settings["chat_template"]


def test_kv_bytes_of_a_token() -> None:
    assert Shape(layers=4, kv_heads=8, head_size=64).kv_bytes_per_token == 16_384
