"""``moonpool trace``, as it is called."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from typer.testing import CliRunner

from moonpool.cli.app import app

RUN = CliRunner()


def _synth(path: Path) -> Path:
    found = RUN.invoke(app, ["trace", "synth", "chat", str(path), "--conversations", "20"])
    assert found.exit_code == 0, found.output
    return path


def test_made_counted_drawn_and_anonymized(tmp_path: Path) -> None:
    trace = _synth(tmp_path / "chat.jsonl")
    figure = tmp_path / "chat.svg"
    arguments = ["trace", "stats", str(trace), "--block-tokens", "64", "--json"]
    found = RUN.invoke(app, [*arguments, "--figure", str(figure)])
    assert found.exit_code == 0, found.output
    figures = json.loads(found.stdout)
    assert figures["sessions"] == 20
    assert figures["requests"] == len(trace.read_text().splitlines())
    assert figures["bad_lines"] == 0
    assert "<svg" in figure.read_text()
    key = tmp_path / "key"
    key.write_bytes(b"0123456789abcdef")
    hidden = tmp_path / "hidden.jsonl"
    arguments = ["trace", "anonymize", str(trace), str(hidden), "--key-file", str(key)]
    arguments += ["--block-tokens", "64", "--out-block", "64"]
    assert RUN.invoke(app, arguments).exit_code == 0
    again = RUN.invoke(app, ["trace", "stats", str(hidden), "--block-tokens", "64", "--json"])
    assert json.loads(again.stdout)["hit_tokens"] == figures["hit_tokens"]
    assert "chat" not in hidden.read_text()


def test_bad_lines_are_told_on_stderr_and_strict_ends(tmp_path: Path) -> None:
    trace = _synth(tmp_path / "chat.jsonl")
    with trace.open("a") as file:
        file.write("{}\n")
    number = len(trace.read_text().splitlines())
    loose = RUN.invoke(app, ["trace", "convert", str(trace), str(tmp_path / "out.jsonl")])
    assert loose.exit_code == 0
    assert f"{trace}:{number}: " in loose.stderr
    assert "1 bad lines were left out" in loose.stderr
    strict = RUN.invoke(app, ["trace", "stats", str(trace), "--strict"])
    assert strict.exit_code == 2
    assert strict.stderr.startswith(f"moonpool: {trace}:{number}: ")


@pytest.mark.parametrize(
    ("arguments", "reason"),
    [
        (["stats", "nowhere.jsonl"], "nowhere.jsonl: No such file"),
        (["stats", "/dev/null"], "/dev/null: no requests in it"),
        (["synth", "x", "out"], "'x' is not allowed; allowed: codex, scaling, chat, forks"),
        (["synth", "chat", "/nowhere/out", "--conversations", "1"], "/nowhere/out: No such file"),
        (["anonymize", "a", "b", "--key-file", "nowhere"], "key-file: nowhere: No such file"),
        (["stats", __file__, "--format", "chat"], "need a tokenizer"),
        (["stats", __file__, "--format", "chat", "--tokenizer", "/nowhere"], "tokenizer: /nowhere"),
    ],
)
def test_wrong_usage_is_one_line_and_code_2(arguments: list[str], reason: str) -> None:
    found = RUN.invoke(app, ["trace", *arguments])
    assert found.exit_code == 2
    assert reason in found.stderr
    assert len(found.stderr.splitlines()) == 1
