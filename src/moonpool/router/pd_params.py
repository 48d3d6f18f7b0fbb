"""A request's two halves where prefill and decode are split: what each engine is sent."""

from __future__ import annotations

from typing import Any

import msgspec

from moonpool.router.openai import Fields

AUTO, POOL, MOONCAKE, NIXL = "auto", "pool", "mooncake", "nixl"
WAYS = (AUTO, POOL, MOONCAKE, NIXL)
CHAT, COMPLETIONS, MESSAGES = "/v1/chat/completions", "/v1/completions", "/v1/messages"
RANK_HEADER = "X-data-parallel-rank"
PARAMS = "kv_transfer_params"

# What concerns the answer only. A stop or a structure could end the one token that is asked for
# in a way that keeps an engine from handing its KV over, or be at odds with one token.
ANSWER_FIELDS = frozenset((
    "stream", "stream_options", "max_tokens", "max_completion_tokens", "min_tokens", "n",
    "best_of", "logprobs", "top_logprobs", "prompt_logprobs", "logprob_token_ids", "echo", "stop",
    "stop_sequences", "stop_token_ids", "structured_outputs", "use_beam_search", "suffix", PARAMS,
))  # fmt: skip
ONE_TOKEN: dict[str, Any] = {"max_tokens": 1, "stream": False, "n": 1, "ignore_eos": True}
PREFILL_PARAMS = {"do_remote_decode": True, "do_remote_prefill": False}
DECODE_PARAMS = {"do_remote_decode": False, "do_remote_prefill": True}


def whole_because(path: str, fields: Fields, way: str) -> str:
    """Return why a request's prefill cannot be split from its decode, "" if it can."""
    path = path.partition("?")[0]
    # Of a message's first token vLLM cannot be told to go on whatever it is, and a request that
    # ends with it is not handed over by Mooncake.
    if path not in (CHAT, COMPLETIONS, MESSAGES) or (path == MESSAGES and way == MOONCAKE):
        return "path"
    if not _one_prompt(fields, "prompt" if path == COMPLETIONS else "messages"):
        return "prompts"
    # Engines compute the whole prompt for these, whatever they could load.
    if fields.raw("prompt_logprobs") or (fields.is_true("echo") and fields.raw("logprobs")):
        return "prompt logprobs"
    # What is handed over once cannot be taken by several sequences.
    several = any(fields.raw(name) not in (b"", b"1") for name in ("n", "best_of"))
    if way != POOL and (several or fields.is_true("use_beam_search")):
        return "several answers"
    return ""


def _one_prompt(fields: Fields, name: str) -> bool:
    raw = fields.raw(name)
    if name == "messages":
        return raw[:1] == b"[" and raw[1:64].lstrip()[:1] == b"{"
    if fields.raw("prompt_embeds"):
        return False
    return raw[:1] == b'"' or (raw[:1] == b"[" and raw[1:64].lstrip()[:1].isdigit())


def prefill_body(path: str, fields: Fields, params: dict[str, Any]) -> bytes:
    """Return the request that computes the prompt and one token."""
    more = {**ONE_TOKEN, PARAMS: {**PREFILL_PARAMS, **params}}
    if path.partition("?")[0] == CHAT:
        more["max_completion_tokens"] = 1
    return fields.changed(ANSWER_FIELDS, more)


def decode_body(body: bytes, params: dict[str, Any]) -> bytes:
    """Return the request with the parameters by which its prompt's KV is had. The body has none."""
    rest = body.lstrip()[1:].lstrip()
    comma = b"" if rest[:1] == b"}" else b","
    return b'{"' + PARAMS.encode() + b'":' + msgspec.json.encode(params) + comma + rest
