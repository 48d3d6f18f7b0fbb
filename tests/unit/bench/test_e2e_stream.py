"""What a streamed answer says."""

from __future__ import annotations

import json
from typing import Any

import pytest

from moonpool.bench.e2e.stream import Answer, AnswerError, body_of


class Clock:
    """Goes on by one second whenever it is asked."""

    now_s = 0.0

    def __call__(self) -> float:
        self.now_s += 1
        return self.now_s


def _answer(*events: Any, end: bool = True, most: int = 100) -> Answer:
    answer = Answer(Clock(), most)
    for event in events:
        answer.feed(b"data: " + json.dumps(event).encode() + b"\n")
        answer.feed(b"\n")
    if end:
        answer.feed(b"data: [DONE]\n")
    return answer


def _event(tokens: int | None = None, text: str = "x", finish: str | None = None) -> Any:
    event: dict[str, Any] = {"choices": [{"text": text, "finish_reason": finish}]}
    if tokens is not None:
        event["usage"] = {"prompt_tokens": 9, "completion_tokens": tokens}
    return event


def test_events_with_counts_may_hold_several_tokens() -> None:
    answer = _answer(_event(1), _event(4), _event(4, text="", finish="length"))
    assert answer.token_s == [1.0, 2.0, 2.0, 2.0]
    assert answer.output_tokens == 4
    answer.check(9, 4, plain=False)


def test_without_counts_an_event_is_a_token() -> None:
    last = {"choices": [], "usage": {"prompt_tokens": 9, "completion_tokens": 2,
                                     "prompt_tokens_details": {"cached_tokens": 8}}}  # fmt: skip
    answer = _answer(_event(), _event(), _event(text="", finish="stop"), last)
    assert answer.token_s == [1.0, 2.0]
    assert (answer.output_tokens, answer.cached_tokens, answer.prompt_tokens) == (2, 8, 9)
    # What says nothing of itself is not known.
    assert _answer(_event()).cached_tokens is None


@pytest.mark.parametrize(
    ("answer", "kind"),
    [
        (_answer(_event(1), end=False), "broken"),
        (_answer(), "empty"),
        (_answer(_event(1), _event(2)), "prompt"),
        (_answer({"choices": [{"text": "x"}]}), "short"),
    ],
)
def test_what_is_no_answer(answer: Answer, kind: str) -> None:
    with pytest.raises(AnswerError) as caught:
        answer.check(7, 5, plain=False)
    assert caught.value.kind == kind


def test_other_servers_may_answer_shorter() -> None:
    _answer(_event()).check(7, 5, plain=True)


@pytest.mark.parametrize(
    ("line", "kind"),
    [
        (b"data: {nonsense", "garbage"),
        (b"data: \xff", "garbage"),
        (b'data: {"choices": 5}', "garbage"),
        (b'data: {"error": {"message": "dead"}}', "engine"),
        (b'data: {"choices": [{}], "usage": {"completion_tokens": 1000000000000}}', "garbage"),
    ],
)
def test_events_that_are_none(line: bytes, kind: str) -> None:
    with pytest.raises(AnswerError) as caught:
        Answer(Clock(), 100).feed(line)
    assert caught.value.kind == kind


def test_other_lines_are_passed_over() -> None:
    answer = Answer(Clock(), 100)
    for line in (b"", b"\n", b": comment\n", b"event: x\n"):
        answer.feed(line)
    assert answer.token_s == []


def test_what_is_asked() -> None:
    body = json.loads(body_of("m", [1, 2], 7, plain=False))
    assert body["prompt"] == [1, 2]
    assert (body["max_tokens"], body["ignore_eos"], body["stream"]) == (7, True, True)
    plain = json.loads(body_of("m", [1, 2], 7, plain=True))
    assert "ignore_eos" not in plain
    assert plain["stream_options"] == {"include_usage": True}
