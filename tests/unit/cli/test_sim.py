"""``moonpool sim``: what is wrong with its arguments is said in one line."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from typer.testing import CliRunner

from moonpool.cli.app import app


@pytest.mark.parametrize(
    ("arguments", "named"),
    [
        (["seed-figures", "--gpus", "13"], "gpus"),
        (["seed-figures", "--sessions", "none"], "sessions"),
        (["scale", "--gpus", "100"], "gpus"),
        (["scale", "--gpus", "12", "--json", "/nowhere/file"], "/nowhere/file"),
        (["run", "--model", "gpt-1"], "model"),
        (["run", "--gpu", "abacus"], "gpu"),
        (["run", "--split", "2P"], "split"),
        (["run", "--policy", "guess"], "policy"),
        (["run", "--link", "1G"], "link"),
        (["run", "--kv-dtype", "int1"], "kv_dtype"),
        (["run", "--workload", "poems"], "workload"),
        (["run", "--model", "kimi-k2.5"], "gpus"),
        (["validate", "--real", "/nowhere", "--sent", "/nowhere"], "real"),
        (["validate", "--real", "/x", "--sent", "/x", "--engine-kv", "much"], "engine_kv"),
        (["calibrate", "--endpoint", "x:1", "--json", "/nowhere/file"], "/nowhere/file"),
        (["calibrate", "--endpoint", "x:1", "--json", "/tmp/x", "--lengths", "1,2"], "lengths"),
    ],
)
def test_wrong_arguments(arguments: list[str], named: str) -> None:
    done = CliRunner().invoke(app, ["sim", *arguments])
    assert done.exit_code == 2, done.output
    assert named in done.output
    assert len(done.output.strip().splitlines()) == 1


def test_run_prints_a_table_or_json() -> None:
    arguments = ["sim", "run", "--workload", "chat", "--conversations", "10", "--split", "1P1D"]
    arguments += ["--pool-gb", "10", "--policy", "prefix", "--agents", "4"]
    table = CliRunner().invoke(app, arguments)
    assert table.exit_code == 0
    assert "hit rate" in table.output
    found = json.loads(CliRunner().invoke(app, [*arguments, "--json"]).output)
    assert found["summary"]["requests"] > 10
    assert found["parts"]["master_messages_s"] > 0


def test_scale_writes_figure_and_json(tmp_path: Path) -> None:
    png, file = tmp_path / "f.png", tmp_path / "f.json"
    arguments = ["sim", "scale", "--gpus", "12", "--length-s", "5"]
    done = CliRunner().invoke(app, [*arguments, "--figure", str(png), "--json", str(file)])
    assert done.exit_code == 0, done.output
    assert png.read_bytes().startswith(b"\x89PNG")
    assert json.loads(file.read_text())["loads"][0]["summary"]["hit_rate"] > 0.9


def test_h200() -> None:
    done = CliRunner().invoke(app, ["sim", "h200", "--json"])
    assert set(json.loads(done.output)) == {"fitted", "from the shape"}
