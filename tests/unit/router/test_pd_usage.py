"""Cached-token counts in passing bytes."""

from __future__ import annotations

import json

import pytest

from moonpool.router.pd_usage import HELD_BYTES, CachedTokens

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
