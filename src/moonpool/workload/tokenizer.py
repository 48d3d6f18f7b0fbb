"""A model's own tokenizer and chat template (extra ``router``)."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from moonpool.errors import ConfigError
from moonpool.workload.formats.chat import Encoder


def encoder_of(directory: Path) -> Encoder:
    """Return what turns a chat into token ids; raise ConfigError where that cannot be had."""
    try:
        from transformers import AutoTokenizer
    except ImportError:
        raise ConfigError("tokenizer: needs transformers; pip install 'moonpool[router]'") from None
    try:
        tokenizer = AutoTokenizer.from_pretrained(directory, local_files_only=True)
    except (OSError, ValueError) as error:
        reason = str(error).partition("\n")[0]
        raise ConfigError(f"tokenizer: {directory}: {reason}") from None
    if not tokenizer.chat_template:
        raise ConfigError(f"tokenizer: {directory} has no chat template; allowed: one that has")

    def encode(messages: list[dict[str, Any]]) -> list[int]:
        asks = bool(messages) and messages[-1].get("role") != "assistant"
        try:
            text = tokenizer.apply_chat_template(
                messages, tokenize=False, add_generation_prompt=asks
            )
        except Exception as error:  # noqa: BLE001
            # A template is a program of the model's makers: it may raise anything.
            raise ValueError(f"the chat template: {error}") from None
        found: list[int] = tokenizer.encode(text, add_special_tokens=False)
        return found

    return encode
