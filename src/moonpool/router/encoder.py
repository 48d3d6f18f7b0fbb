"""A model's own tokenizer and chat template, from its directory: no hub, no remote code."""

from __future__ import annotations

import contextlib
import logging
from pathlib import Path
from typing import Any

import msgspec

from moonpool.errors import ConfigError
from moonpool.router.openai import Fields
from moonpool.router.quickbpe import PROOFS, QuickBpe, Unlike

log = logging.getLogger("moonpool.router.tokens")

# Fields with which an engine renders or cuts a prompt in ways that are not repeated here.
FOREIGN = (
    "chat_template", "documents", "prompt_embeds", "truncate_prompt_tokens", "mm_processor_kwargs",
    "media_io_kwargs", "reasoning_effort", "response_format",
)  # fmt: skip
SHORT_CHARS = 32_768


class NotKnown(Exception):
    """A prompt that an engine may render in another way than is done here."""


class LocalEncoder:
    """Renders and encodes prompts as vLLM does. Slow to make: it imports transformers."""

    def __init__(self, folder: Path) -> None:
        try:
            from transformers import AutoTokenizer
        except ImportError:
            raise ConfigError(
                "tokenizer: needs the package transformers; pip install 'moonpool[router]'"
            ) from None
        try:
            made: Any = AutoTokenizer.from_pretrained(
                str(folder), local_files_only=True, trust_remote_code=False
            )
            self._fast = made.backend_tokenizer
        except Exception as error:  # noqa: BLE001
            reason = " ".join(str(error).split())[:200]
            raise ConfigError(f"tokenizer: {folder} cannot be used: {reason}") from None
        self.folder = folder
        self._tokenizer = made
        self._fast.no_truncation()
        self._fast.no_padding()
        self.marks = cut_marks(self._fast.get_added_tokens_decoder().values())
        self._mark_ids = frozenset(self._fast.token_to_id(mark) for mark in self.marks)
        self._before, self._behind = self._added()
        self.quick: QuickBpe | None = None
        try:
            self.quick = _quick(self._fast)
        except (Unlike, ImportError, ValueError, KeyError, TypeError) as error:
            log.info("%s: texts are encoded by its own tokenizer: %s", folder, error)

    def encode(self, text: str) -> tuple[list[int], list[int]]:
        """Return the ids of a text without added ones, and the places of marks among them."""
        marks = self._mark_ids
        if self.quick is not None:
            with contextlib.suppress(Unlike):
                return self.quick.encode(text, marks)
        ids = self._ids(text, False)
        return ids, [place for place, token in enumerate(ids) if token in marks]

    def encode_plain(self, text: str) -> list[int]:
        """Return the ids of a completion's prompt, with those that the model adds to each."""
        if self.quick is not None and self._before is not None:
            with contextlib.suppress(Unlike):
                return [*self._before, *self.quick.encode(text)[0], *self._behind]
        return self._ids(text, True)

    def _added(self) -> tuple[list[int] | None, list[int]]:
        """Return the ids that are put before and behind each text, None where that varies."""
        found = []
        for text in ("a", "b c"):
            ids, all_ids = self._ids(text, False), self._ids(text, True)
            places = [at for at in range(len(all_ids)) if all_ids[at : at + len(ids)] == ids]
            if not ids or not places:
                return None, []
            found.append((all_ids[: places[0]], all_ids[places[0] + len(ids) :]))
        return found[0] if found[0] == found[1] else (None, [])

    def _ids(self, text: str, special: bool) -> list[int]:
        # In a batch other threads can run meanwhile; a short text alone is sooner done.
        try:
            if len(text) > SHORT_CHARS:
                made = self._fast.encode_batch_fast([text], add_special_tokens=special)[0]
            else:
                made = self._fast.encode(text, add_special_tokens=special)
        except (TypeError, ValueError) as error:
            raise NotKnown(f"a text that cannot be encoded: {error}") from None
        ids: list[int] = made.ids
        return ids

    def render(self, fields: Fields) -> str:
        """Return a chat as the model reads it; raise NotKnown."""
        if any(fields.raw(name) for name in FOREIGN):
            raise NotKnown("fields that change the prompt")
        more = fields.get("chat_template_kwargs")
        messages = [_plain(each) for each in _listed(fields.get("messages"))]
        generate = fields.get("add_generation_prompt")
        try:
            text = self._tokenizer.apply_chat_template(
                messages,
                tools=fields.get("tools") or None,
                tokenize=False,
                add_generation_prompt=True if generate is None else bool(generate),
                continue_final_message=bool(fields.get("continue_final_message")),
                **(more if isinstance(more, dict) else {}),
            )
        except Exception as error:  # noqa: BLE001
            # A template is a program of the model's makers: it may raise anything.
            raise NotKnown(f"the chat template: {error}") from None
        if not isinstance(text, str):
            raise NotKnown("the chat template gives no text")
        return text


def _quick(fast: Any) -> QuickBpe:
    """Return what encodes as ``fast`` does, sooner; raise Unlike."""
    made = QuickBpe(msgspec.json.decode(fast.to_str()))
    for proof in PROOFS:
        if made.encode(proof)[0] != fast.encode(proof, add_special_tokens=False).ids:
            raise Unlike(f"other ids for {proof[:20]!r}")
    return made


def cut_marks(added: Any) -> list[str]:
    """Return the special tokens before which a text may be cut without changing any id.

    Not those that take white space from their left, nor those inside of other added tokens.
    """
    tokens = [*added]
    texts = [token.content for token in tokens]
    return [
        token.content
        for token in tokens
        if token.special
        and token.content
        and not (token.lstrip or token.normalized or token.single_word)
        and not any(token.content in text and token.content != text for text in texts)
    ]


def _listed(messages: Any) -> list[Any]:
    if not isinstance(messages, list) or not messages:
        raise NotKnown("no list of messages")
    return messages


def _plain(message: Any) -> dict[str, Any]:
    """Return a message as vLLM gives it to a template; raise NotKnown for media."""
    if not isinstance(message, dict):
        raise NotKnown("a message that is no object")
    content = message.get("content")
    if isinstance(content, str) and "tool_calls" not in message:
        return message
    plain: dict[str, Any] = {**message}
    if isinstance(content, list):
        # Templates differ in how they join parts; one part of text is the same for all.
        (part, *others) = content or [None]
        if others or not isinstance(part, dict) or part.get("type") != "text":
            raise NotKnown("content in parts")
        plain["content"] = part.get("text")
    calls = plain.get("tool_calls")
    if isinstance(calls, list):
        plain["tool_calls"] = [_call(each) for each in calls]
    return plain


def _call(call: Any) -> Any:
    function = call.get("function") if isinstance(call, dict) else None
    arguments = function.get("arguments") if isinstance(function, dict) else None
    if not isinstance(function, dict) or not isinstance(arguments, str):
        return call
    try:
        parsed = msgspec.json.decode(arguments) if arguments else {}
    except (msgspec.DecodeError, RecursionError):
        raise NotKnown("a tool call that is no JSON") from None
    return {**call, "function": {**function, "arguments": parsed}}
