"""Cached-token counts in passing bytes."""

from __future__ import annotations

import json
from typing import Any

import pytest

from moonpool.router.pd_messages import MessageTokens
from moonpool.router.pd_usage import HELD_BYTES, CachedTokens
from moonpool.router.usage import Tail, Usage

USAGE = {"prompt_tokens": 9000, "prompt_tokens_details": {"cached_tokens": 8999}}
TEXTS = [
    json.dumps({"choices": [{"text": 'say "cached_tokens": 8999'}], "usage": USAGE}),
    json.dumps({"text": '\\"cached_tokens": 8999', "usage": USAGE}, indent=2),
    "".join(f"data: {json.dumps({'n': n, 'usage': USAGE})}\n\n" for n in range(3))
    + "data: [DONE]\n\n",
]


def _expected(text: str, cached: int) -> str:
    at = '"prompt_tokens_details": {"cached_tokens": 8999'
    for form in (at, at.replace("{", "{\n      ")):
        text = text.replace(form, form.replace("8999", f"{cached:4}"))
    return text


@pytest.mark.parametrize("text", TEXTS)
@pytest.mark.parametrize("size", [1, 2, 7, 48, 5000])
@pytest.mark.parametrize("cached", [None, 0, 17, 8000])
def test_counts_are_replaced_wherever_the_bytes_are_cut(
    text: str, size: int, cached: int | None
) -> None:
    counts = CachedTokens()
    counts.cached = cached
    raw, found = text.encode(), b""
    for at in range(0, len(raw), size):
        found += counts.feed(raw[at : at + size])
        assert min(at + size, len(raw)) - len(found) <= HELD_BYTES + 1
    found += counts.end()
    assert found.decode() == _expected(text, cached or 0)
    if not text.startswith("data"):
        json.loads(found)


def test_a_line_is_never_held_back() -> None:
    counts = CachedTokens()
    event = b'data: {"x": 1}\n\n'
    assert counts.feed(event) == event


def test_an_engine_that_found_less_is_believed() -> None:
    counts = CachedTokens()
    counts.cached = 500
    assert counts.feed(b'{"cached_tokens":64}\n') == b'{"cached_tokens":64}\n'


def _counts(read: int, created: int, rest: int) -> dict[str, int]:
    counts = {"input_tokens": rest, "cache_creation_input_tokens": created, "output_tokens": 3}
    return counts | {"cache_read_input_tokens": read}


@pytest.mark.parametrize("size", [1, 7, 5000])
@pytest.mark.parametrize("stream", [False, True])
def test_messages_count_the_prompt_as_the_prefill_did(size: int, stream: bool) -> None:
    counts = MessageTokens(stream=stream)
    counts.prompt = {name: n for name, n in _counts(20, 70, 10).items() if "output" not in name}
    text = "say '\"cache_read_input_tokens\": 99'"
    events: list[dict[str, Any]] = [{"text": text, "usage": _counts(99, 0, 1)}]
    if stream:
        events = [
            {"type": "message_start", "message": {"usage": _counts(99, 0, 1), "text": text}},
            {"type": "content_block_delta", "text": text},
            {"type": "message_delta", "usage": _counts(10, 80, 10)},
        ]
    raw = "".join(f"event: x\ndata: {json.dumps(event)}\n\n" for event in events).encode()
    if not stream:
        raw = json.dumps(events[0]).encode()
    found = b"".join(counts.feed(raw[at : at + size]) for at in range(0, len(raw), size))
    found += counts.end()
    parsed = [json.loads(x.partition("data: ")[2] or x) for x in found.decode().split("\n\n") if x]
    first = parsed[0].get("message", parsed[0])
    assert first == {"usage": _counts(20, 70, 10), "text": text}
    # An engine that found less has computed it for itself, and is believed.
    assert parsed[1:] == events[1:]


def test_messages_whose_prefill_has_not_been_counted_count_all_as_input() -> None:
    counts = MessageTokens(stream=False)
    found = counts.feed(json.dumps({"usage": _counts(99, 0, 1)}).encode()) + counts.end()
    assert json.loads(found) == {"usage": {"input_tokens": 100, "output_tokens": 3}}


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        (b'{"usage":{"input_tokens":52,"cache_read_input_tokens":48}}', Usage(100, 48)),
        (
            b'{"input_tokens": 2, "cache_creation_input_tokens": 50, "cache_read_input_tokens":48}',
            Usage(100, 48),
        ),
        (b'{"usage":{"input_tokens":52}}', Usage(52, None)),
        (b'{"usage":{"prompt_tokens":52,"d":{"cached_tokens":4}}}', Usage(52, 4)),
    ],
)
def test_a_whole_prompt_is_counted_in_either_form(text: bytes, expected: Usage) -> None:
    tail = Tail()
    tail.feed(text)
    assert tail.usage() == expected
