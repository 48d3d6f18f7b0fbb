"""One streamed completion: what is asked, and what its events say."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import msgspec

REASON_CHARS_MAX = 200


class AnswerError(Exception):
    """An answer that is none. ``kind``: under what it is counted."""

    def __init__(self, kind: str, reason: str) -> None:
        super().__init__(reason[:REASON_CHARS_MAX])
        self.kind = kind


class _Details(msgspec.Struct):
    cached_tokens: int | None = None


class _Usage(msgspec.Struct):
    prompt_tokens: int = 0
    completion_tokens: int | None = None
    prompt_tokens_details: _Details | None = None


class _Choice(msgspec.Struct):
    text: str = ""
    finish_reason: str | None = None


class _Chunk(msgspec.Struct):
    choices: list[_Choice] = []
    usage: _Usage | None = None
    error: Any = None


_CHUNK = msgspec.json.Decoder(_Chunk)


def body_of(model: str, prompt: list[int], output_tokens: int, *, plain: bool) -> bytes:
    """Return the request. plain: without what only vLLM and its like understand."""
    options: dict[str, Any] = {"include_usage": True}
    more: dict[str, Any] = {}
    if not plain:
        # Counts in every event: an event may hold several tokens.
        options["continuous_usage_stats"] = True
        more["ignore_eos"] = True
    return msgspec.json.encode(
        {
            "model": model,
            "prompt": prompt,
            "max_tokens": output_tokens,
            "temperature": 0.0,
            "stream": True,
            "stream_options": options,
            **more,
        }
    )


class Answer:
    """Reads the server-sent events of one answer. ``token_s``: when each token came; more than
    ``most_tokens`` of them are no answer."""

    def __init__(self, clock: Callable[[], float], most_tokens: int) -> None:
        self.token_s: list[float] = []
        self.prompt_tokens: int | None = None
        self.cached_tokens: int | None = None
        self._counted: int | None = None
        self._done = False
        self._clock, self._most_tokens = clock, most_tokens

    @property
    def output_tokens(self) -> int:
        """How many tokens the answer has, as the engine counts them, where it does."""
        return len(self.token_s) if self._counted is None else self._counted

    def feed(self, line: bytes) -> None:
        """Take a line; raise AnswerError."""
        if not line.startswith(b"data:"):
            return
        data = line[5:].strip()
        if data == b"[DONE]":
            self._done = True
            return
        try:
            chunk = _CHUNK.decode(data)
        except (msgspec.MsgspecError, UnicodeDecodeError) as error:
            raise AnswerError("garbage", f"an event is not valid: {error}") from None
        if chunk.error is not None:
            raise AnswerError("engine", str(chunk.error))
        if chunk.usage is not None:
            self._count(chunk.usage)
        if chunk.choices:
            self._came(chunk)

    def _count(self, usage: _Usage) -> None:
        self.prompt_tokens = usage.prompt_tokens
        if usage.completion_tokens is not None:
            self._counted = usage.completion_tokens
        details = usage.prompt_tokens_details
        if details is not None and details.cached_tokens is not None:
            self.cached_tokens = details.cached_tokens

    def _came(self, chunk: _Chunk) -> None:
        if chunk.usage is not None and chunk.usage.completion_tokens is not None:
            new = chunk.usage.completion_tokens - len(self.token_s)
        else:
            # The last event of an answer may only say that it ends.
            new = sum(bool(each.text) or each.finish_reason is None for each in chunk.choices)
        if len(self.token_s) + new > self._most_tokens:
            raise AnswerError("garbage", f"more than {self._most_tokens} tokens")
        if new > 0:
            self.token_s += [self._clock()] * new

    def check(self, prompt_tokens: int, wanted_tokens: int, *, plain: bool) -> None:
        """Raise AnswerError unless the answer is whole and to what was asked."""
        if not self._done:
            raise AnswerError("broken", f"it broke off after {len(self.token_s)} tokens")
        if not self.token_s:
            raise AnswerError("empty", "an answer without a token")
        if self.prompt_tokens is not None and self.prompt_tokens != prompt_tokens:
            raise AnswerError(
                "prompt", f"sent {prompt_tokens} tokens, {self.prompt_tokens} were counted"
            )
        if not plain and self.output_tokens != wanted_tokens:
            raise AnswerError("short", f"{self.output_tokens} of {wanted_tokens} tokens")
