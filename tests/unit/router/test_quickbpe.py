"""Ids by tiktoken: those of the model's own tokenizer, or none at all."""

from __future__ import annotations

import json
from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from moonpool.router.quickbpe import PROOFS, QuickBpe, Unlike

tokenizers = pytest.importorskip("tokenizers")
pytest.importorskip("tiktoken")

QWEN = (
    r"(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}| ?[^\s\p{L}\p{N}]+[\r\n]*"
    r"|\s*[\r\n]+|\s+(?!\S)|\s+"
)
MARKS = ["<|end|>", "<|user|>", "<|end|>x", "</think>"]


def _trained(pattern: str = "", nfc: bool = False) -> Any:
    before = tokenizers.pre_tokenizers
    made = tokenizers.Tokenizer(tokenizers.models.BPE())
    made.pre_tokenizer = before.ByteLevel(add_prefix_space=False)
    if pattern:
        split = before.Split(tokenizers.Regex(pattern), behavior="isolated")
        pieces = before.ByteLevel(add_prefix_space=False, use_regex=False)
        made.pre_tokenizer = before.Sequence([split, pieces])
    if nfc:
        made.normalizer = tokenizers.normalizers.NFC()
    trainer = tokenizers.trainers.BpeTrainer(
        vocab_size=600, show_progress=False, initial_alphabet=before.ByteLevel.alphabet()
    )
    made.train_from_iterator([*PROOFS, "the lazy dog's é e\u0301 1234 they'll "] * 3, trainer)
    added = [tokenizers.AddedToken(m, special=m[1] == "|", normalized=False) for m in MARKS]
    made.add_tokens(added)
    return made


@pytest.fixture(scope="module", params=["gpt2", "qwen"])
def pair(request: pytest.FixtureRequest) -> tuple[Any, QuickBpe]:
    own = _trained() if request.param == "gpt2" else _trained(QWEN, nfc=True)
    return own, QuickBpe(json.loads(own.to_str()))


@settings(suppress_health_check=[HealthCheck.function_scoped_fixture], deadline=None)
@given(
    st.lists(
        st.text(max_size=20) | st.sampled_from([*MARKS, *PROOFS, "<|end", "e\u0301", "\u0338"]),
        max_size=6,
    )
)
def test_ids_are_those_of_the_models_own(pair: tuple[Any, QuickBpe], parts: list[str]) -> None:
    own, quick = pair
    text = "".join(parts)
    ids, places = quick.encode(text, {own.token_to_id("<|end|>")})
    assert ids == own.encode(text, add_special_tokens=False).ids
    assert places == [at for at, each in enumerate(ids) if each == own.token_to_id("<|end|>")]


def _said(change: Any) -> dict[str, Any]:
    said: dict[str, Any] = json.loads(_trained().to_str())
    change(said)
    return said


@pytest.mark.parametrize(
    ("change", "why"),
    [
        (lambda s: s["model"].update(type="Unigram"), "no plain BPE"),
        (lambda s: s["model"].update(byte_fallback=True), "no plain BPE"),
        (lambda s: s["model"]["merges"].reverse(), "not in the order of merges"),
        (lambda s: s["model"]["merges"].pop(), "that no merge makes"),
        (lambda s: s.update(normalizer={"type": "Lowercase"}), "other than NFC"),
        (lambda s: s.update(pre_tokenizer=None), "no byte-level pieces"),
        (lambda s: s["pre_tokenizer"].update(add_prefix_space=True), "no byte-level pieces"),
        (lambda s: s["pre_tokenizer"].update(use_regex=False), "split in another way"),
        (lambda s: s["added_tokens"][0].update(lstrip=True), "takes white space"),
        (
            lambda s: (
                s.update(normalizer={"type": "NFC"}),
                s["added_tokens"][0].update(normalized=True),
            ),
            "added tokens that are normalized",
        ),
    ],
)
def test_what_is_more_than_byte_level_bpe_is_refused(change: Any, why: str) -> None:
    with pytest.raises(Unlike, match=why):
        QuickBpe(_said(change))
