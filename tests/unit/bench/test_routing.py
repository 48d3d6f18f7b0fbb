"""``moonpool bench routing`` on small traces made here."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from typer.testing import CliRunner

from moonpool.cli.app import app
from moonpool.sim.cluster import Cluster
from moonpool.sim.hardware import H200_8B
from moonpool.sim.saturation import Saturation, saturate
from moonpool.sim.workload import Conversations, Timed, read

CONTEXT = 100_000


def _timed(folder: Path) -> Path:
    """Twelve conversations of ten turns each, all turns five seconds apart."""
    file = folder / "timed.jsonl"
    lines = []
    for turn in range(10):
        for talk in range(12):
            ids = list(range(1000 * talk, 1000 * talk + 8 + 2 * turn))
            lines.append(
                {
                    "timestamp": 5000 * turn + talk,
                    "input_length": 512 * len(ids),
                    "output_length": 20,
                    "hash_ids": ids,
                }
            )
    file.write_text("".join(json.dumps(line) + "\n" for line in lines))
    return file


def _agents(folder: Path) -> Path:
    file = folder / "agents.jsonl"
    turns = [
        {"t": 10.0 * n, "in": 640 + 640 * n, "out": 30, "hash_ids": list(range(10 + 10 * n)),
         "think_time": 4.0}
        for n in range(8)
    ]  # fmt: skip
    talk = {"id": "talk", "block_size": 64, "requests": turns}
    file.write_text(json.dumps(talk) + "\n")
    return file


def test_both_kinds_of_traces_are_read(tmp_path: Path) -> None:
    timed, agents = read(_timed(tmp_path), CONTEXT), read(_agents(tmp_path), CONTEXT)
    assert isinstance(timed, Timed)
    assert (timed.block_tokens, len(timed.asks)) == (512, 120)
    assert len({ask.session for ask in timed.asks}) == 12
    assert isinstance(agents, Conversations)
    # Blocks of 256 tokens, named by the last of the trace's own blocks in each.
    assert agents.block_tokens == 256
    assert [ask.keys for ask in agents.asks[0][:2]] == [[3, 7], [3, 7, 11, 15, 19]]
    assert [ask.gap_s for ask in agents.asks[0][:2]] == [0.0, 4.0]


def test_a_load_is_a_share_of_what_is_answered_at_most(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("moonpool.sim.workload.AGENTS_WARM_S", 60.0)
    monkeypatch.setattr("moonpool.sim.workload.AGENTS_LENGTH_S", 60.0)
    workload = read(_agents(tmp_path), CONTEXT)
    slow = H200_8B.faster(0.1)
    limit = saturate(Cluster(engines=1, hosts=1, hardware=slow), workload)
    rates = [rate for _, rate in limit.curve]
    assert rates == sorted(rates)
    assert limit.rate == rates[-1] > 0.1
    assert 0 < limit.level(0.5, workload) < limit.level(0.9, workload) < limit.curve[-1][0]


def test_levels_between_two_that_were_tried_are_interpolated(tmp_path: Path) -> None:
    limit = Saturation(2.0, ((10.0, 1.0), (20.0, 2.0)))
    agents, timed = read(_agents(tmp_path), CONTEXT), read(_timed(tmp_path), CONTEXT)
    assert limit.level(0.25, agents) == 5.0
    assert limit.level(0.75, agents) == 15.0
    # 120 requests in 45.011 s are 2.67 a second.
    assert limit.level(1.0, timed) == pytest.approx(0.75, rel=0.01)


def test_the_command_writes_tables_and_json(tmp_path: Path) -> None:
    file = tmp_path / "found.json"
    arguments = ["bench", "routing", "--trace", str(_timed(tmp_path)), "--level", "1,1"]
    arguments += ["--seeds", "2", "--engines", "2", "--markdown", "--json", str(file)]
    result = CliRunner().invoke(app, arguments)
    assert result.exit_code in (0, 1), result.output
    assert "| timed, no pool, 1 times the trace's pace | prefix |" in result.output
    found = json.loads(file.read_text())
    assert len(found["rows"]) == 2 * 4
    for row in found["rows"]:
        assert len(row["runs"]) == 2
        for run in row["runs"]:
            assert 0 < run["ttft_p50_s"] <= run["ttft_p99_s"]
            assert run["local_hit_rate"] <= run["hit_rate"] <= run["unforgetting_hit_rate"] + 1e-9


@pytest.mark.parametrize(
    ("flags", "said"),
    [
        (["--policy", "best"], "policy: 'best' is not allowed; allowed: round_robin"),
        (["--load", "much"], "load: 'much' is not allowed"),
        (["--load", "-1"], "load: '-1' is not allowed"),
        (["--level", "1"], "level: '1' is not allowed; allowed: two numbers"),
        (["--json", "/nowhere/x.json"], "/nowhere/x.json cannot be written"),
    ],
)
def test_wrong_usage_is_one_line(tmp_path: Path, flags: list[str], said: str) -> None:
    result = CliRunner().invoke(app, ["bench", "routing", "--trace", str(_timed(tmp_path)), *flags])
    assert result.exit_code == 2
    assert said in result.stderr
    assert len(result.stderr.splitlines()) == 1


def test_a_trace_that_is_none_is_one_line(tmp_path: Path) -> None:
    bad = tmp_path / "bad.jsonl"
    bad.write_text('{"timestamp": 1}\n')
    for file in (bad, tmp_path / "missing"):
        result = CliRunner().invoke(app, ["bench", "routing", "--trace", str(file)])
        assert result.exit_code == 2
        assert str(file) in result.stderr
