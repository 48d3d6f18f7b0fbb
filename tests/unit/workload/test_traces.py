"""The trace readers, against real traces where they are at hand and against broken ones."""

from __future__ import annotations

import gzip
import json
from pathlib import Path
from typing import Any

import pytest

from moonpool.workload.session import PromptBuilder, scaled
from moonpool.workload.traces import TraceError, hit_tokens, read_trace, sessions_of

TRACES = Path(__file__).resolve().parents[4] / "shared" / "traces"


def _trace(name: str) -> Path:
    path = TRACES / name
    if not path.is_file():
        pytest.skip(f"needs the trace {name} in {TRACES}")
    return path


def _totals(path: Path) -> tuple[int, int, int, int]:
    requests = input_tokens = output_tokens = hits = 0
    for group in read_trace(path):
        seen: set[int] = set()
        for request in group.requests:
            requests += 1
            input_tokens += request.input_tokens
            output_tokens += request.output_tokens
            hits += hit_tokens(request, group.block_tokens, seen)
    return requests, input_tokens, output_tokens, hits


@pytest.mark.parametrize(
    ("name", "requests", "input_tokens", "output_tokens", "hit_rate"),
    [
        ("claude-code-60.jsonl.gz", 4_604, 498_592_177, 2_132_594, 0.9634),
        ("mooncake-fast25-conversation.jsonl.gz", 12_031, 144_793_823, 4_122_048, 0.3736),
        ("mooncake-fast25-synthetic.jsonl.gz", 3_993, 61_194_628, 595_432, 0.6512),
    ],
)
def test_counts_of_real_traces(
    name: str, requests: int, input_tokens: int, output_tokens: int, hit_rate: float
) -> None:
    found = _totals(_trace(name))
    assert found[:3] == (requests, input_tokens, output_tokens)
    assert found[3] / input_tokens == pytest.approx(hit_rate, abs=5e-5)


def test_hit_tokens_of_claude_code_to_the_token() -> None:
    assert _totals(_trace("claude-code-60.jsonl.gz"))[3] == 480_363_392


def test_sessions_of_a_trace_without_conversations_keep_every_request() -> None:
    path = _trace("mooncake-fast25-conversation.jsonl.gz")
    sessions = [session for group in read_trace(path) for session in sessions_of(group)]
    assert sum(len(session.turns) for session in sessions) == 12_031
    assert max(len(session.turns) for session in sessions) > 10


def _mooncake(**changes: Any) -> dict[str, Any]:
    return {"timestamp": 0, "input_length": 700, "output_length": 5, "hash_ids": [0, 1], **changes}


def _write(path: Path, *lines: object) -> Path:
    text = "".join(line if isinstance(line, str) else json.dumps(line) + "\n" for line in lines)
    path.write_text(text)
    return path


def test_requests_that_repeat_a_prompt_continue_its_conversation(tmp_path: Path) -> None:
    path = _write(
        tmp_path / "trace.jsonl",
        _mooncake(timestamp=0, hash_ids=[0, 1]),
        _mooncake(timestamp=500, hash_ids=[0, 7]),
        _mooncake(timestamp=2_000, input_length=1_600, hash_ids=[0, 7, 8, 9]),
    )
    (group,) = read_trace(path)
    shapes = [[turn.input_tokens for turn in session.turns] for session in sessions_of(group)]
    # The first two share a system prompt of one block, so the second continues the first.
    assert shapes == [[700, 700, 1_600]]


def test_gaps_come_from_timestamps_or_think_times(tmp_path: Path) -> None:
    entry = {"t": 0.0, "in": 64, "out": 3, "hash_ids": [1]}
    conversation = {
        "id": "c",
        "block_size": 64,
        "requests": [entry, {**entry, "t": 9.0, "think_time": 2.5}],
    }
    (group,) = read_trace(_write(tmp_path / "trace.jsonl", conversation))
    (session,) = sessions_of(group)
    assert [turn.gap_s for turn in session.turns] == [0.0, 2.5]


def test_subagents_take_their_place_in_the_conversation(tmp_path: Path) -> None:
    inner = {"t": 1.0, "in": 128, "out": 3, "hash_ids": [5, 6]}
    outer = {"t": 0.0, "in": 64, "out": 3, "hash_ids": [5]}
    subagent = {"type": "subagent", "requests": [inner]}
    conversation = {"id": "c", "block_size": 64, "requests": [outer, subagent, outer]}
    (group,) = read_trace(_write(tmp_path / "trace.jsonl", conversation))
    assert [request.input_tokens for request in group.requests] == [64, 128, 64]


def test_scaling_keeps_what_is_shared(tmp_path: Path) -> None:
    path = _write(
        tmp_path / "trace.jsonl",
        _mooncake(hash_ids=[0, 1]),
        _mooncake(input_length=1_200, hash_ids=[0, 1, 2]),
    )
    (group,) = read_trace(path)
    (session,) = (scaled(session, 16) for session in sessions_of(group))
    builder = PromptBuilder(session, 256)
    first, second = builder.prompt(0, []), builder.prompt(1, [])
    assert (len(first), len(second)) == (22, 38)
    assert second[:22] == first


@pytest.mark.parametrize(
    ("bad", "reason"),
    [
        ("{", "truncated"),
        ('{"timestamp": 0}\n', "input_length"),
        (json.dumps(_mooncake(input_length=0)) + "\n", "0 input"),
        (json.dumps(_mooncake(output_length=-1)) + "\n", "-1 output"),
        (json.dumps(_mooncake(hash_ids=[])) + "\n", "0 blocks"),
        (json.dumps(_mooncake(input_length=5_000)) + "\n", "2 blocks of 512"),
        (json.dumps(_mooncake(hash_ids=["a"])) + "\n", "int"),
        (json.dumps(_mooncake(hash_ids=[1 << 70, 2])) + "\n", ""),
    ],
)
def test_a_bad_line_is_named(tmp_path: Path, bad: str, reason: str) -> None:
    path = _write(tmp_path / "trace.jsonl", _mooncake(), "\n", bad)
    with pytest.raises(TraceError, match=rf"trace\.jsonl:3: .*{reason}") as caught:
        _totals(path)
    assert "\n" not in str(caught.value)


@pytest.mark.parametrize(
    "bad",
    [
        '{"id": "c", "block_size": 0, "requests": []}',
        '{"id": "c", "block_size": 64, "requests": [{"in": 1}]}',
        '{"id": "c", "block_size": 64, "requests": 5}',
        '{"requests": []}',
    ],
)
def test_a_bad_conversation_is_named(tmp_path: Path, bad: str) -> None:
    path = _write(tmp_path / "trace.jsonl", bad)
    with pytest.raises(TraceError, match=r"trace\.jsonl:1: "):
        _totals(path)


def test_subagents_nested_without_end_are_refused(tmp_path: Path) -> None:
    entry: dict[str, Any] = {"in": 64, "out": 1, "hash_ids": [1]}
    for _ in range(20):
        entry = {"requests": [entry]}
    path = _write(tmp_path / "t.jsonl", {"id": "c", "block_size": 64, "requests": [entry]})
    with pytest.raises(TraceError, match="nested"):
        _totals(path)


def test_no_file_an_empty_one_and_a_truncated_one(tmp_path: Path) -> None:
    with pytest.raises(TraceError, match=r"missing\.jsonl: No such file"):
        _totals(tmp_path / "missing.jsonl")
    with pytest.raises(TraceError, match="no requests"):
        _totals(_write(tmp_path / "empty.jsonl", "\n\n"))
    whole = gzip.compress((json.dumps(_mooncake()) + "\n").encode() * 2000)
    (tmp_path / "cut.jsonl.gz").write_bytes(whole[: len(whole) // 2])
    with pytest.raises(TraceError, match=r"cut\.jsonl\.gz"):
        _totals(tmp_path / "cut.jsonl.gz")
    (tmp_path / "no.jsonl.gz").write_bytes(b"not gzip at all")
    with pytest.raises(TraceError, match=r"no\.jsonl\.gz"):
        _totals(tmp_path / "no.jsonl.gz")
