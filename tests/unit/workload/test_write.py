"""What is written reads back as what was read."""

from __future__ import annotations

import io
import json
from pathlib import Path

import pytest

from moonpool.trace_line import Line
from moonpool.workload import write as writing
from moonpool.workload.anonymize import Keyed
from moonpool.workload.stats import stats_of
from moonpool.workload.traces import read_trace
from moonpool.workload.workloads import WORKLOADS, groups_of
from moonpool.workload.write import Numbers, lines_of, write, written

SECRET = b"a secret of 24 bytes ..."


def test_lines_come_out_in_order_of_time_however_many_runs(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(writing, "RUN_LINES", 7)
    times = [(n * 37) % 101 for n in range(100)]
    out = io.BytesIO()
    assert write((Line(time, 5, n, [n]) for n, time in enumerate(times)), out) == 100
    found = [json.loads(line) for line in out.getvalue().splitlines()]
    assert [line["timestamp"] for line in found] == sorted(times)
    assert sorted(line["output_length"] for line in found) == list(range(100))


@pytest.mark.parametrize("block", [64, 512])
@pytest.mark.parametrize("keyed", [False, True])
def test_a_written_trace_has_the_figures_of_its_source(
    tmp_path: Path, block: int, keyed: bool
) -> None:
    sessions = WORKLOADS["codex"](5, 3)
    renamer = Keyed(SECRET) if keyed else Numbers()
    path = tmp_path / "out.jsonl.gz"
    count = written(lines_of(groups_of(sessions, 3, 64), renamer, block), path)
    assert count == sum(len(session.turns) for session in sessions)
    before = stats_of(groups_of(sessions, 3, 64))
    after = stats_of(read_trace(path, block_tokens=block))
    assert (after.input_tokens, after.sessions) == (before.input_tokens, before.sessions)
    assert after.growth == before.growth
    assert after.hit_rate == pytest.approx(before.hit_rate, abs=0.01)
    if block == 64:
        assert after.hit_tokens == before.hit_tokens


def test_keyed_names_depend_on_the_key_and_say_nothing() -> None:
    one, same, other = Keyed(SECRET), Keyed(SECRET), Keyed(SECRET[::-1])
    assert one.block("s", 5) == same.block("s", 5) != other.block("s", 5)
    assert one.block("s", 5) != one.block("t", 5)
    assert 0 <= one.block("s", 5) < 1 << 63
    assert "name" not in one.session("s", "name")
    assert one.session("s", "") == ""
    with pytest.raises(ValueError, match="16 or more"):
        Keyed(b"short")


def test_a_file_that_cannot_be_written_is_not_left_half_written(tmp_path: Path) -> None:
    def broken() -> object:
        yield Line(0, 1, 1, [1])
        raise OSError("the disk")

    path = tmp_path / "out.jsonl"
    with pytest.raises(OSError, match="the disk"):
        written(broken(), path)  # type: ignore[arg-type]
    assert list(tmp_path.iterdir()) == []
