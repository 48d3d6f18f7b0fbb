"""A model's directory without the model: a real vocabulary, as engines have it, to encode with."""

from __future__ import annotations

import base64
import json
from functools import lru_cache
from pathlib import Path
from typing import Any

from moonpool.bench.router_chats import Counter
from moonpool.errors import ConfigError
from moonpool.router.quickbpe import byte_letters

MARKS = ("<|begin|>", "<|end|>", "<|system|>", "<|user|>", "<|assistant|>")
TEMPLATE = (
    "<|begin|>{% for message in messages %}<|{{ message['role'] }}|>{{ message['content'] }}"
    "<|end|>{% endfor %}{% if add_generation_prompt %}<|assistant|>{% endif %}"
)
SOURCE = "tekken_240911.json"


def make_tokenizer(folder: Path) -> Path:
    """Write a tokenizer of 130,000 words (Mistral's, which comes with vLLM); raise ConfigError."""
    try:
        import mistral_common
        import tokenizers
    except ImportError:
        raise ConfigError(
            "tokenizer: none to measure with; give a model's directory, or install mistral-common"
        ) from None
    said = json.loads((Path(mistral_common.__file__).parent / "data" / SOURCE).read_text())
    made = tokenizers.Tokenizer(_bpe(tokenizers, said))
    before = tokenizers.pre_tokenizers
    made.pre_tokenizer = before.Sequence(
        [
            before.Split(tokenizers.Regex(said["config"]["pattern"]), behavior="isolated"),
            before.ByteLevel(add_prefix_space=False, use_regex=False),
        ]
    )
    made.decoder = tokenizers.decoders.ByteLevel()
    made.add_special_tokens([tokenizers.AddedToken(mark, special=True) for mark in MARKS])
    folder.mkdir(parents=True, exist_ok=True)
    made.save(str(folder / "tokenizer.json"))
    settings = {"tokenizer_class": "PreTrainedTokenizerFast", "chat_template": TEMPLATE}
    (folder / "tokenizer_config.json").write_text(json.dumps(settings))
    return folder


def _bpe(tokenizers: Any, said: dict[str, Any]) -> Any:
    config = said["config"]
    count = config["default_vocab_size"] - config["default_num_special_tokens"]
    words = {base64.b64decode(each["token_bytes"]): each["rank"] for each in said["vocab"][:count]}
    merges = [pair for word in words for pair in _splits(word, words)]
    letters = byte_letters()

    def shown(word: bytes) -> str:
        return "".join(letters[byte] for byte in word)

    merges.sort(key=lambda pair: words[pair[0] + pair[1]])
    return tokenizers.models.BPE(
        {shown(word): rank for word, rank in words.items()},
        [(shown(left), shown(right)) for left, right in merges],
        ignore_merges=True,
    )


def _splits(word: bytes, words: dict[bytes, int]) -> list[tuple[bytes, bytes]]:
    pairs = [(word[:at], word[at:]) for at in range(1, len(word))]
    known = [pair for pair in pairs if pair[0] in words and pair[1] in words]
    return sorted(known, key=lambda pair: (words[pair[0]], words[pair[1]]))


def counter(folder: Path) -> Counter:
    """Return what counts a chat's tokens under this tokenizer and template."""
    import tokenizers

    made = tokenizers.Tokenizer.from_file(str(folder / "tokenizer.json"))

    @lru_cache(maxsize=65_536)
    def length(text: str) -> int:
        return len(made.encode(text, add_special_tokens=False).ids)

    # The template puts a mark before and behind each text, one before all and one behind all.
    return lambda messages: 2 + sum(2 + length(each["content"]) for each in messages)
