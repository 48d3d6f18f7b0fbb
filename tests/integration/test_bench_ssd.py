"""``moonpool bench ssd`` and ``bench tiers``, small."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from typer.testing import CliRunner

from moonpool.bench.tiers import replay, steps_of, working_set
from moonpool.cli.app import app
from moonpool.core.messages import DISK_POLICIES


@pytest.mark.parametrize("limit", ["loop", "found"])
def test_a_disk_is_measured_beside_its_limit(
    tmp_path: Path, limit: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    if limit == "loop":
        monkeypatch.setattr("shutil.which", lambda _name: None)
    arguments = ["bench", "ssd", "--dir", str(tmp_path), "--sizes", "36KB,1MB"]
    result = CliRunner().invoke(app, [*arguments, "--total", "8MB", "--rounds", "1", "--json"])
    assert result.exit_code == 0, result.output
    report = json.loads(result.stdout)
    assert [each["size"] for each in report["sizes"]] == [36 << 10, 1 << 20]
    for each in report["sizes"]:
        assert all(each[what][0] > 0 for what in ("write", "read", "limit_write", "limit_read"))
    assert list(tmp_path.iterdir()) == []


def _trace(path: Path) -> Path:
    """Write a trace of conversations that come back after others have pushed them out."""
    lines = []
    for turn in range(3):
        for chat in range(30):
            blocks = [chat * 100 + block for block in range(10 * (turn + 1))]
            facts = {"timestamp": 1000 * (turn * 30 + chat), "input_length": 512 * len(blocks)}
            lines.append(json.dumps(facts | {"output_length": 1, "hash_ids": blocks}))
    path.write_text("\n".join(lines))
    return path


@pytest.mark.parametrize("policy", DISK_POLICIES)
def test_a_disk_keeps_the_hit_rate_where_memory_alone_loses_it(tmp_path: Path, policy: str) -> None:
    steps = steps_of(_trace(tmp_path / "trace.jsonl"))
    objects = working_set(steps)
    assert objects == 900
    everything = replay("t", steps, objects, 1.5)
    alone = replay("t", steps, objects, 0.125)
    tiered = replay("t", steps, objects, 0.125, 1.5, policy)
    assert everything.hit_rate == pytest.approx(0.5)
    assert alone.hit_rate < 0.1
    if policy == "selective":
        # What is seen for the first time may be lost.
        assert tiered.hit_rate > 2 * alone.hit_rate
    else:
        assert tiered.hit_rate == pytest.approx(everything.hit_rate, rel=0.05)
        assert tiered.from_disk_tokens > 0


def test_tiers_are_shown(tmp_path: Path) -> None:
    trace = str(_trace(tmp_path / "trace.jsonl"))
    result = CliRunner().invoke(app, ["bench", "tiers", trace, "--disks", "0,1.5"])
    assert result.exit_code == 0, result.output
    assert "none" in result.stdout
    assert "150%" in result.stdout
    for wrong in (["--policy", "never"], ["--disks", "x"]):
        assert CliRunner().invoke(app, ["bench", "tiers", trace, *wrong]).exit_code == 2
