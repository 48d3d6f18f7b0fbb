"""Wrong usage gets one line that names what is wrong, and exit code 2."""

from __future__ import annotations

import json
import socket
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest
from typer.testing import CliRunner

from moonpool.cli.app import app
from moonpool.cli.output import size_text
from moonpool.cli.router import joined

COMMANDS = ("up", "demo", "master", "node", "router", "put", "get", "ls", "stat", "rm", "status")


@pytest.fixture(autouse=True)
def _clean(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("MOONPOOL_MASTER", "MOONPOOL_TOKEN", "MOONCAKE_CONFIG_PATH"):
        monkeypatch.delenv(name, raising=False)


@pytest.fixture
def taken() -> Iterator[int]:
    with socket.create_server(("127.0.0.1", 0)) as sock:
        yield int(sock.getsockname()[1])


def _fails(*arguments: str) -> tuple[int, str]:
    """Run a command that must fail; return its exit code and its one line."""
    result = CliRunner().invoke(app, list(arguments))
    assert "Traceback" not in result.output
    lines = result.stderr.strip().splitlines()
    assert len(lines) == 1, result.stderr
    assert lines[0].startswith("moonpool: ")
    return result.exit_code, lines[0]


@pytest.mark.parametrize(
    ("arguments", "expected"),
    [
        (["up", "--port", "70000"], "port: '70000' (from --port) is not allowed; allowed: 0 to"),
        (["up", "--pool-size", "lots"], "pool_size: 'lots'"),
        (["up", "--replicas", "0"], "replicas: '0'"),
        (["up", "--prefill", "2"], "prefill: needs decode as well"),
        (["up", "--model", "/nowhere"], "model: /nowhere has no config.json"),
        (["master", "--port", "x"], "port: 'x'"),
        (["master", "--watermark-low", "0.99"], "watermark_low: 0.99 is above"),
        (["master", "--config", "/nowhere.toml"], "config: /nowhere.toml cannot be read"),
        (["master", "--ready-file", "/nowhere/x"], "ready_file: '/nowhere/x'"),
        (["node", "--ready-file", "/nowhere/x"], "ready_file: '/nowhere/x'"),
        (["node", "--size", "-1"], "size: '-1'"),
        (["node", "--master", "no port here"], "master: 'no port here'"),
        (["router"], "backends: none given; allowed: --instance"),
        (["router", "--instance", "localhost:8000"], "backends: 'localhost:8000' is no base URL"),
        (["router", "--prefill", "http://a", "0", "--decode", "http://b"], "bootstrap '0' is no"),
        (["router", "--decode", "http://a", "--decode", "http://a"], "named more than once"),
        (["router", "--prefill", "http://a", "--pd", "mooncake"], "a bootstrap is missing"),
        (["router", "--instance", "http://a", "--policy", "best"], "policy: 'best'"),
        (["status", "--master", ":"], "master: ':'"),
        (["demo", "--trace", "/nowhere.jsonl"], "/nowhere.jsonl: No such file"),
        (["demo", "--json", "/nowhere/at/all.json"], "json: /nowhere/at/all.json"),
        (["ls", "--namespace", "zz"], "namespace: 'zz'"),
        (["put", "key", "/nowhere"], "file: /nowhere cannot be read"),
    ],
)
def test_wrong_values_name_the_key(arguments: list[str], expected: str) -> None:
    code, line = _fails(*arguments)
    assert code == 2
    assert expected in line


@pytest.mark.parametrize("role", ["up", "router", "master"])
def test_a_port_in_use_is_named(role: str, taken: int) -> None:
    extra = ["--instance", "http://127.0.0.1:1"] if role == "router" else []
    code, line = _fails(role, "--port", str(taken), *extra)
    assert code == 2
    assert f"port: {taken} on 127.0.0.1 is in use" in line


def test_an_unknown_key_of_a_file_is_named_with_the_nearest(tmp_path: Path) -> None:
    file = tmp_path / "node.json"
    file.write_text(json.dumps({"sise": "1GB"}))
    code, line = _fails("node", "--config", str(file))
    assert code == 2
    assert "sise: no such key of node" in line
    assert "did you mean size?" in line


def test_flags_count_more_than_variables(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("MOONPOOL_MASTER", "127.0.0.1:2")
    code, line = _fails("status", "--master", "127.0.0.1:1")
    assert code == 1
    assert "127.0.0.1:1 " in line


def test_a_wrong_variable_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("MOONPOOL_MASTER_PORT", "99999")
    code, line = _fails("master")
    assert code == 2
    assert "MOONPOOL_MASTER_PORT" in line


def test_no_master_is_not_well(monkeypatch: pytest.MonkeyPatch) -> None:
    with socket.create_server(("127.0.0.1", 0)) as sock:
        port = sock.getsockname()[1]
    code, line = _fails("status", "--master", f"127.0.0.1:{port}")
    assert code == 1
    assert f"127.0.0.1:{port}" in line


@pytest.mark.parametrize("arguments", [["--bogus"], ["bogus"], ["ls", "--limit", "x"], ["rm"]])
def test_wrong_usage_is_2(arguments: list[str]) -> None:
    result = CliRunner().invoke(app, arguments)
    assert result.exit_code == 2
    assert "Traceback" not in result.output


@pytest.mark.parametrize("command", COMMANDS)
def test_every_command_has_help(command: str) -> None:
    result = CliRunner().invoke(app, [command, "--help"])
    assert result.exit_code == 0
    assert command in result.output


def test_version_as_json() -> None:
    result = CliRunner().invoke(app, ["version", "--json"])
    assert json.loads(result.stdout)["moonpool"] == "0.1.0"


def test_help_imports_nothing_heavy() -> None:
    code = (
        "import sys; from moonpool.cli.app import app\n"
        "heavy = {'numpy', 'aiohttp', 'uvloop', 'torch', 'vllm', 'prometheus_client', 'xxhash'}\n"
        "print(sorted(heavy & set(sys.modules)))"
    )
    found = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert found.stdout.strip() == "[]"


@pytest.mark.parametrize(
    ("nbytes", "text"), [(0, "0 B"), (1023, "1023 B"), (1536, "1.5 KiB"), (1 << 50, "1024.0 TiB")]
)
def test_sizes_for_people(nbytes: int, text: str) -> None:
    assert size_text(nbytes) == text


def test_a_bootstrap_may_follow_a_prefill_url() -> None:
    args = ["--prefill", "a", "1", "--prefill", "b", "--prefill=c", "http://x", "--port", "0"]
    assert joined(args) == [
        *("--prefill", "a 1", "--prefill", "b", "--prefill=c http://x", "--port", "0")
    ]
    assert joined(["--prefill", "a", "1", "2"]) == ["--prefill", "a 1", "2"]
    assert joined(["--prefill"]) == ["--prefill"]
