"""Every format is read into the same requests, and a bad line is left out and counted."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from moonpool.workload.traces import Group, Problems, Request, TraceError, read_trace, sessions_of

AZURE = (
    "TIMESTAMP,ContextTokens,GeneratedTokens\n"
    "2023-11-16 18:17:03.9799600,4808,10\n"
    "2023-11-16 18:17:05.0299600,110,27\n"
)
BURST = (
    "Timestamp,Session ID,Elapsed time,Model,Request tokens,Response tokens,Total tokens,Log Type\n"
    "5,a,1.2,ChatGPT,472,18,490,Conversation log\n"
    "45,a,0.9,ChatGPT,1087,230,1317,Conversation log\n"
    "118,b,3,GPT-4,417,276,693,API log\n"
)
OLD_BURST = (
    "Timestamp,Model,Request tokens,Response tokens,Total tokens,Log Type\n5,X,7,1,8,API log\n"
)


def _read(tmp_path: Path, text: str, **options: Any) -> tuple[Group, list[Request]]:
    path = tmp_path / "trace"
    path.write_text(text)
    (group,) = read_trace(path, **options)
    return group, list(group.requests)


def _json(*lines: dict[str, Any]) -> str:
    return "".join(json.dumps(line) + "\n" for line in lines)


def test_azure_counts_from_its_first_request(tmp_path: Path) -> None:
    _, requests = _read(tmp_path, AZURE)
    assert [each.time_s for each in requests] == [0.0, pytest.approx(1.05)]
    assert [(each.input_tokens, each.output_tokens) for each in requests] == [(4808, 10), (110, 27)]
    assert not any(each.known for each in requests)


def test_azure_with_a_time_zone(tmp_path: Path) -> None:
    line = "2024-05-10 00:00:00.009930+00:00,2162,5\n2024-05-10 00:00:01.009930+00:00,1,5\n"
    _, requests = _read(tmp_path, AZURE.partition("\n")[0] + "\n" + line)
    assert [each.time_s for each in requests] == [0.0, pytest.approx(1.0)]


def test_burst_gpt_names_sessions(tmp_path: Path) -> None:
    group, requests = _read(tmp_path, BURST)
    assert [each.session for each in requests] == ["a", "a", "b"]
    assert [each.time_s for each in requests] == [0.0, 40.0, 113.0]
    again = Group(group.scope, group.block_tokens, iter(requests), conversation=False)
    assert [len(session.turns) for session in sessions_of(again)] == [2, 1]


def test_burst_gpt_without_sessions(tmp_path: Path) -> None:
    _, (request,) = _read(tmp_path, OLD_BURST)
    assert (request.input_tokens, request.session) == (7, "")


def test_what_is_not_known_shares_nothing(tmp_path: Path) -> None:
    _, requests = _read(tmp_path, BURST)
    ids = [block for each in requests for block in each.blocks.tolist()]
    assert len(set(ids)) == len(ids) == sum(-(-each.input_tokens // 16) for each in requests)


def test_bailian_turns_belong_to_their_first(tmp_path: Path) -> None:
    line = {"timestamp": 1.5, "input_length": 20, "output_length": 3, "type": "text", "turn": 1}
    text = _json(
        {**line, "chat_id": 7, "parent_chat_id": -1, "hash_ids": [1, 2]},
        {**line, "chat_id": 9, "parent_chat_id": 7, "hash_ids": [1, 3]},
        {**line, "chat_id": 12, "parent_chat_id": 9, "hash_ids": [1, 4]},
        {**line, "chat_id": 13, "parent_chat_id": -1, "hash_ids": [5, 6]},
    )
    group, requests = _read(tmp_path, text)
    assert group.block_tokens == 16
    assert [each.session for each in requests] == ["7", "7", "7", "13"]
    assert requests[0].time_s == 1.5


def test_aiperf_adds_sessions_delays_and_lines_without_blocks(tmp_path: Path) -> None:
    text = _json(
        {"session_id": "s", "timestamp": 500, "input_length": 600, "hash_ids": [1, 2]},
        {"session_id": "s", "delay": 250, "input_length": 900, "output_length": 4},
    )
    _, (first, second) = _read(tmp_path, text)
    assert (first.time_s, first.output_tokens, first.known) == (0.5, 0, True)
    assert (second.time_s, second.think_s, second.known) == (0.75, 0.25, False)


@pytest.mark.parametrize("block", [16, 64, 256, 512, 2048])
def test_the_size_of_blocks_follows_from_the_first_lines(tmp_path: Path, block: int) -> None:
    lengths = (5 * block + 3, 12 * block, 7 * block - 1)
    lines = [
        {"timestamp": n, "input_length": length, "hash_ids": list(range(-(-length // block)))}
        for n, length in enumerate(lengths)
    ]
    group, requests = _read(tmp_path, _json(*lines))
    assert group.block_tokens == block
    assert len(requests) == 3
    with pytest.raises(TraceError, match=f"6 blocks of {4 * block} tokens for only"):
        _read(tmp_path, _json(*lines), block_tokens=4 * block)


def _letters(messages: list[dict[str, Any]]) -> list[int]:
    return [ord(letter) for each in messages for letter in f"{each['role']}:{each['content']};"]


def test_each_answer_of_a_chat_is_a_request(tmp_path: Path) -> None:
    said = [
        ("user", "Hi there, you"),
        ("assistant", "Hello"),
        ("user", "More"),
        ("assistant", "No"),
    ]
    messages = [{"role": role, "content": content} for role, content in said]
    _, (first, second) = _read(tmp_path, _json({"messages": messages}), encode=_letters)
    assert first.input_tokens == len(_letters(messages[:1]))
    assert first.output_tokens == len(_letters(messages[1:2]))
    assert second.input_tokens == len(_letters(messages[:3]))
    full = first.input_tokens // 16
    assert second.blocks[:full].tolist() == first.blocks[:full].tolist()
    assert second.blocks[-1] not in first.blocks
    assert first.session == second.session


def test_a_logged_request_asks_for_what_it_may_get(tmp_path: Path) -> None:
    body = {"model": "m", "messages": [{"role": "user", "content": "Hi"}], "max_tokens": 9}
    text = _json({"custom_id": "c", "method": "POST", "body": body, "timestamp": 3.0})
    _, (request,) = _read(tmp_path, text, encode=_letters)
    assert (request.output_tokens, request.time_s, request.session) == (9, 3.0, "c")


def test_chats_need_a_tokenizer(tmp_path: Path) -> None:
    with pytest.raises(TraceError, match="--tokenizer"):
        _read(tmp_path, _json({"messages": []}))


@pytest.mark.parametrize(
    ("good", "bad", "reason"),
    [
        (AZURE, "2023-11-16 18:17:03.97,many,10\n", "invalid literal"),
        (AZURE, "yesterday,1,10\n", "isoformat"),
        (AZURE, "2023-11-16 18:17:03\n", "1 cells for 3 columns"),
        (BURST, "5,a,1.2,ChatGPT,0,18,490,x\n", "0 input"),
        (BURST, "nan,a,1.2,ChatGPT,4,18,490,x\n", "nan s"),
        (BURST, "5,a,1.2,ChatGPT,4,99999999999999999999,490,x\n", "output tokens"),
        (_json({"session_id": 1, "input_length": 5}), '{"input_length": 5}\n', "timestamp"),
    ],
)
def test_bad_lines_are_named_and_counted(tmp_path: Path, good: str, bad: str, reason: str) -> None:
    number = good.count("\n") + 1
    with pytest.raises(TraceError, match=rf"trace:{number}: .*{reason}"):
        _read(tmp_path, good + bad)
    problems = Problems(strict=False)
    _, requests = _read(tmp_path, good + bad * 30, problems=problems)
    assert len(requests) == len(_read(tmp_path, good)[1])
    assert problems.count == 30
    assert len(problems.shown) < 30
    assert reason in problems.shown[0]


def test_a_table_without_its_columns_and_a_format_that_is_not_known(tmp_path: Path) -> None:
    with pytest.raises(TraceError, match="no column 'timestamp'"):
        _read(tmp_path, "a,b\n1,2\n", form="azure")
    with pytest.raises(TraceError, match="'x' is not known; allowed: mooncake"):
        _read(tmp_path, AZURE, form="x")
