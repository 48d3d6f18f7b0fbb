"""Byte-level BPE by tiktoken where it gives the ids that the model's own tokenizer gives.

It takes a quarter of the time, and lets other threads run meanwhile. What a ``tokenizer.json`` says
beyond plain byte-level BPE is refused, and the rest has to prove itself on texts.
"""

from __future__ import annotations

import re
import unicodedata
from collections.abc import Container, Mapping, Sequence
from typing import Any

# GPT-2's pattern: what ByteLevel splits by itself.
BYTE_LEVEL = r"'(?:[sdmt]|ll|ve|re)| ?\p{L}+| ?\p{N}+| ?[^\s\p{L}\p{N}]+|\s+(?!\S)|\s+"
PROOFS = (
    "The quick brown fox jumps over the lazy dog. It's 1234567 o'clock, they'LL say.\n\n\n  x",
    "def f(a, *b):\n\tif a >= 10_000:\r\n        return {'k': [b, None]}  # é ü ß\n   \n",
    "Größe, naïve café; 中文字符、日本語テキスト 한국어 русский العربية",
    "हिन्दी ไทย 🙂\U0001f468\u200d\U0001f469\u200d\U0001f467 e\u0301 \u00a0\u3000\u200b\ufeff",
    'https://example.org/a?b=c&d=%20 <tag attr="v"/> ```json\n{"x": 1e-5, "y": "\\u00e9"}\n```',
    "AAAAAAAA aaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaa ==========------------- \t\t\t    ......!!!???",
)


# Longer runs of white space overflow the stack of tiktoken's pattern.
_SPACES = re.compile(r"\s{10000}")
_LONG_CHARS = 10_000


class Unlike(Exception):
    """A tokenizer that is more than plain byte-level BPE, or a text that is too odd; says what."""


class QuickBpe:
    """Encodes texts without adding anything to them.

    said: a ``tokenizer.json``. Raises Unlike, and ImportError where tiktoken is missing.
    """

    def __init__(self, said: Mapping[str, Any]) -> None:
        import tiktoken

        added = _added(said.get("added_tokens") or [])
        self._nfc = _normalizes(said.get("normalizer"))
        if self._nfc and any(token["normalized"] for token in added):
            raise Unlike("added tokens that are normalized")
        ids = {token["content"]: int(token["id"]) for token in added}
        longest = sorted(ids, key=len, reverse=True)
        self._ids = ids
        self._split = re.compile(f"({'|'.join(map(re.escape, longest))})") if ids else None
        self._bpe = tiktoken.Encoding(
            "model",
            pat_str=_pattern(said.get("pre_tokenizer")),
            mergeable_ranks=_ranks(said.get("model") or {}, ids),
            special_tokens={},
        )

    def encode(self, text: str, marks: Container[int] = ()) -> tuple[list[int], list[int]]:
        """Return the ids of a text, and the places among them of those added tokens that are
        marks. Raises Unlike."""
        if len(text) > _LONG_CHARS and _SPACES.search(text):
            raise Unlike("a text with too much white space in a row")
        if self._split is None:
            return self._plain(text), []
        # Every second part is an added token.
        parts = self._split.split(text)
        ids = self._plain(parts[0]) if parts[0] else []
        places = []
        for place in range(1, len(parts), 2):
            token = self._ids[parts[place]]
            if token in marks:
                places.append(len(ids))
            ids.append(token)
            if parts[place + 1]:
                ids += self._plain(parts[place + 1])
        return ids, places

    def _plain(self, text: str) -> list[int]:
        if self._nfc and not text.isascii():
            text = unicodedata.normalize("NFC", text)
        ids: list[int] = self._bpe.encode_ordinary(text)
        return ids


def _added(tokens: Sequence[Mapping[str, Any]]) -> list[Mapping[str, Any]]:
    for token in tokens:
        if any(token.get(name) for name in ("lstrip", "rstrip", "single_word")):
            raise Unlike(f"added token {token.get('content')!r} takes white space")
    return [token for token in tokens if token.get("content")]


def _normalizes(said: Mapping[str, Any] | None) -> bool:
    """Return whether texts are brought into the form NFC."""
    if said is None:
        return False
    parts = said.get("normalizers", []) if said.get("type") == "Sequence" else [said]
    if any(part.get("type") != "NFC" for part in parts):
        raise Unlike("a normalizer other than NFC")
    return bool(parts)


def _pattern(said: Mapping[str, Any] | None) -> str:
    parts = [] if said is None else said.get("pretokenizers") or [said]
    last = parts[-1] if parts else {}
    if last.get("type") != "ByteLevel" or last.get("add_prefix_space"):
        raise Unlike("no byte-level pieces")
    if len(parts) == 1 and last.get("use_regex", True):
        return BYTE_LEVEL
    first = parts[0]
    wanted = (len(parts), last.get("use_regex"), first.get("type"), first.get("behavior"))
    pattern = (first.get("pattern") or {}).get("Regex")
    if wanted != (2, False, "Split", "Isolated") or first.get("invert") or not pattern:
        raise Unlike("pieces that are split in another way")
    return str(pattern)


def _ranks(model: Mapping[str, Any], added: Mapping[str, int]) -> dict[bytes, int]:
    """Return each token's id, which must also be the order in which pairs are merged."""
    others = ("dropout", "continuing_subword_prefix", "end_of_word_suffix", "byte_fallback")
    if model.get("type") != "BPE" or any(model.get(name) for name in others):
        raise Unlike("no plain BPE")
    byte = {letter: place for place, letter in enumerate(byte_letters())}
    words: Mapping[str, int] = model["vocab"]
    merged, last = set(), -1
    for pair in model["merges"]:
        word = "".join(pair.split(" ", 1) if isinstance(pair, str) else pair)
        if words[word] < last:
            raise Unlike("ids that are not in the order of merges")
        last = words[word]
        merged.add(word)
    ranks = {}
    for word, number in words.items():
        if word in added:
            continue
        if len(word) > 1 and word not in merged:
            raise Unlike(f"token {word!r} that no merge makes")
        ranks[bytes(byte[letter] for letter in word)] = number
    return ranks


def byte_letters() -> list[str]:
    """Return the printable letter that byte-level tokenizers (GPT-2's table) write for a byte."""
    printable = {*range(33, 127), *range(161, 173), *range(174, 256)}
    others = iter(range(256, 512))
    return [chr(byte if byte in printable else next(others)) for byte in range(256)]
