"""The trace that a router writes of what passes through it."""

from __future__ import annotations

import json
import stat
from pathlib import Path
from typing import Any

import pytest

from moonpool.errors import ConfigError
from moonpool.router import record as recording
from moonpool.router.prompt import NO_PROMPT, Prompt
from moonpool.router.record import Passing, Recorder, key_of
from moonpool.router.usage import Tail, Usage
from moonpool.workload.stats import stats_of
from moonpool.workload.traces import read_trace

KEY = b"a secret of some length"
BLOCK = 16


class Clock:
    """A time that stands until it is moved."""

    def __init__(self) -> None:
        self.now_s = 100.0

    def __call__(self) -> float:
        return self.now_s


def _recorder(path: Path, clock: Clock | None = None, **more: Any) -> Recorder:
    return Recorder(path, KEY, clock=clock or Clock(), **more)


def _prompt(keys: list[int], tokens: int) -> Prompt:
    return Prompt(keys, float(tokens), float(BLOCK), exact=True)


def _answer(
    recorder: Recorder, passing: Passing, keys: list[int], tokens: int, output: int = 5
) -> None:
    usage = Usage(tokens, 0, output)
    recorder.answered(passing, _prompt(keys, tokens), usage, events=99)
    recorder.ended(passing)


def _lines(recorder: Recorder) -> list[dict[str, Any]]:
    recorder.close()
    return [json.loads(line) for line in recorder.path.read_text().splitlines()]


def test_lines_are_in_order_of_arrival_with_times_and_lengths(tmp_path: Path) -> None:
    clock = Clock()
    recorder = _recorder(tmp_path / "t.jsonl", clock)
    first = recorder.arrived("")
    clock.now_s += 1.5
    second = recorder.arrived("")
    _answer(recorder, second, [1], 20, output=7)
    assert recorder.written == 0
    clock.now_s += 10
    _answer(recorder, first, [1, 2], 32, output=3)
    lines = _lines(recorder)
    assert [(x["timestamp"], x["input_length"], x["output_length"]) for x in lines] == [
        (0, 32, 3),
        (1500, 20, 7),
    ]
    assert [len(x["hash_ids"]) for x in lines] == [2, 2]
    assert (recorder.written, recorder.lost, recorder.unknown) == (2, 0, 0)


def test_one_that_takes_long_is_not_waited_for_for_ever(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(recording, "WAITING_MAX", 3)
    recorder = _recorder(tmp_path / "t.jsonl")
    slow = recorder.arrived("")
    for n in range(5):
        _answer(recorder, recorder.arrived(""), [n], 16, output=n)
    _answer(recorder, slow, [9], 16, output=9)
    assert [x["output_length"] for x in _lines(recorder)] == [0, 1, 2, 3, 4, 9]


def test_what_was_not_answered_is_no_line(tmp_path: Path) -> None:
    recorder = _recorder(tmp_path / "t.jsonl")
    recorder.ended(recorder.arrived("s"))
    still_open = recorder.arrived("s")
    _answer(recorder, recorder.arrived("s"), [1], 16)
    assert len(_lines(recorder)) == 1
    recorder.ended(still_open)
    recorder.close()


def test_names_are_hashes_that_only_the_key_gives(tmp_path: Path) -> None:
    found = []
    for name, key in (("a", KEY), ("b", KEY), ("c", b"another secret, as long"), ("d", b"")):
        recorder = Recorder(tmp_path / f"{name}.jsonl", key, clock=Clock())
        _answer(recorder, recorder.arrived("alice@example.org"), [11, 12, 13], 50)
        found.append(_lines(recorder)[0])
    names = [line["hash_ids"][:3] for line in found]
    assert names[0] == names[1]
    assert not set(names[0]) & ({11, 12, 13} | set(names[2]) | set(names[3]))
    assert found[0]["session_id"] == found[1]["session_id"] != found[2]["session_id"]
    assert "alice" not in (tmp_path / "a.jsonl").read_text()
    # The last block, which is not full, is nobody else's.
    assert found[0]["hash_ids"][3] != found[1]["hash_ids"][3]


def test_it_reads_back_as_the_trace_that_it_is(tmp_path: Path) -> None:
    clock = Clock()
    recorder = _recorder(tmp_path / "t.jsonl", clock)
    keys = list(range(40))
    for turn in range(4):
        clock.now_s += 2
        passing = recorder.arrived("s")
        clock.now_s += 1
        _answer(recorder, passing, keys[: 10 + 5 * turn], 16 * (10 + 5 * turn) + 3)
    recorder.close()
    stats = stats_of(read_trace(recorder.path))
    assert (stats.requests, stats.sessions, stats.output_tokens) == (4, 1, 20)
    assert stats.pause_s.p50 == 2.0
    assert stats.hit_rate == (10 + 15 + 20) * 16 / stats.input_tokens


def test_prompts_that_are_known_as_text_only_have_lengths_only(tmp_path: Path) -> None:
    recorder = _recorder(tmp_path / "t.jsonl")
    text, counted, other = (recorder.arrived("") for _ in range(3))
    recorder.answered(text, Prompt([1, 2], 31.4, 15.7), None, 3)
    recorder.answered(counted, Prompt([1, 2], 31.4, 15.7), Usage(33, None), 3)
    # An engine that counts otherwise has other blocks than the router thinks.
    recorder.answered(other, _prompt([1, 2], 32), Usage(40, 0, 1), 1)
    for each in (text, counted, other):
        recorder.ended(each)
    lines = _lines(recorder)
    assert lines == [
        {"timestamp": 0, "input_length": 33, "output_length": 3},
        {"timestamp": 0, "input_length": 40, "output_length": 1},
    ]
    assert recorder.unknown == 2
    empty = _recorder(tmp_path / "e.jsonl")
    passing = empty.arrived("")
    empty.answered(passing, NO_PROMPT, None, 0)
    empty.ended(passing)
    assert _lines(empty) == []


def test_a_file_grows_no_further_than_it_may(tmp_path: Path) -> None:
    recorder = _recorder(tmp_path / "t.jsonl", size=200)
    for _ in range(10):
        _answer(recorder, recorder.arrived(""), [1], 16)
    lines = _lines(recorder)
    assert 0 < len(lines) < 10
    assert recorder.path.stat().st_size <= 200
    assert recorder.lost == 10 - len(lines)


def test_a_file_that_exists_is_left_alone_and_only_the_owner_reads(tmp_path: Path) -> None:
    path = tmp_path / "t.jsonl"
    path.write_text("mine")
    recorder = _recorder(path)
    assert recorder.path == tmp_path / "t-1.jsonl"
    assert stat.S_IMODE(recorder.path.stat().st_mode) == 0o600
    recorder.close()
    recorder.close()
    assert path.read_text() == "mine"
    with pytest.raises(ConfigError, match="record:"):
        _recorder(tmp_path / "nowhere" / "t.jsonl")


def test_keys_are_long_enough_secrets(tmp_path: Path) -> None:
    path = tmp_path / "key"
    path.write_bytes(b"short\n")
    for bad in (str(path), str(tmp_path / "nowhere")):
        with pytest.raises(ConfigError, match="record_key_file"):
            key_of(bad)
    path.write_bytes(KEY + b"\n")
    assert key_of(str(path)) == KEY
    assert key_of("") == b""


def test_events_are_counted_across_reads() -> None:
    tail = Tail()
    for part in (b'data: {"a": 1}\n\nda', b'ta: {"b": 2}\n\ndata: ', b"{}\n\ndata: [DONE]\n\n"):
        tail.feed(part)
    assert tail.events == 3
    tail.feed(b'{"usage": {"prompt_tokens": 9, "completion_tokens": 4}}')
    assert tail.usage() == Usage(9, None, 4)
