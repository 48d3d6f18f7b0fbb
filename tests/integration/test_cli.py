"""The command line against a master and a node that it started itself."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time
import uuid
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import pytest

WAIT_S = 30.0
CLI = [sys.executable, "-m", "moonpool.cli"]


def _environment() -> dict[str, str]:
    return {name: value for name, value in os.environ.items() if not name.startswith("MOONPOOL_")}


def _start(role: str, ready: Path, *flags: str) -> tuple[subprocess.Popen[bytes], dict[str, int]]:
    """Start ``moonpool <role>`` and return it with what its ready file says."""
    process = subprocess.Popen(
        [*CLI, role, "--port", "0", "--ready-file", str(ready), *flags],
        env=_environment(),
        stderr=subprocess.DEVNULL,
    )
    deadline = time.monotonic() + WAIT_S
    while not ready.exists():
        assert process.poll() is None
        assert time.monotonic() < deadline
        time.sleep(0.02)
    return process, json.loads(ready.read_text())


@dataclass(frozen=True)
class Pool:
    """A running pool and how to ask it something."""

    master: str
    http_port: int
    segments: Path
    processes: tuple[subprocess.Popen[bytes], ...]

    def run(self, *arguments: str, value: bytes = b"") -> subprocess.CompletedProcess[bytes]:
        """Run one command against this pool."""
        return subprocess.run(
            [*CLI, *arguments],
            input=value,
            capture_output=True,
            timeout=WAIT_S,
            env={**_environment(), "MOONPOOL_MASTER": self.master},
            check=False,
        )

    def good(self, *arguments: str, value: bytes = b"") -> bytes:
        """Run a command that must succeed; return what it printed."""
        done = self.run(*arguments, value=value)
        assert done.returncode == 0, done.stderr
        return done.stdout

    def bad(self, *arguments: str, value: bytes = b"") -> tuple[int, str]:
        """Run a command that must fail with one line; return its exit code and the line."""
        done = self.run(*arguments, value=value)
        lines = done.stderr.decode().strip().splitlines()
        assert len(lines) == 1, done.stderr
        return done.returncode, lines[0]


@pytest.fixture
def pool(tmp_path: Path) -> Iterator[Pool]:
    segments = Path(f"/dev/shm/moonpool-test-cli-{uuid.uuid4().hex[:8]}")
    master, said = _start("master", tmp_path / "master.json", "--http-port", "0")
    address = f"127.0.0.1:{said['port']}"
    node, _ = _start(
        *("node", tmp_path / "node.json", "--master", address, "--name", "test"),
        *("--size", "32MB", "--segment-dir", str(segments)),
    )
    try:
        yield Pool(address, said["http_port"], segments, (node, master))
    finally:
        for process in (node, master):
            process.kill()
            process.wait()
        for path in sorted(segments.rglob("*"), reverse=True):
            path.unlink() if path.is_file() else path.rmdir()
        if segments.exists():
            segments.rmdir()


def test_objects_by_hand(pool: Pool, tmp_path: Path) -> None:
    file = tmp_path / "value"
    file.write_bytes(os.urandom(100_000))
    pool.good("put", "one", str(file))
    pool.good("put", "two", "-", value=b"from stdin")
    assert pool.good("get", "one") == file.read_bytes()
    pool.good("get", "two", "-o", str(tmp_path / "out"))
    assert (tmp_path / "out").read_bytes() == b"from stdin"
    listed = json.loads(pool.good("ls", "--json"))
    assert [(each["key"], each["size"]) for each in listed] == [("one", 100_000), ("two", 10)]
    assert [each["key"] for each in json.loads(pool.good("ls", "tw", "--json"))] == ["two"]
    assert b"97.7 KiB" in pool.good("ls")
    assert json.loads(pool.good("stat", "two", "--json"))["size"] == 10
    assert b"checksum" in pool.good("stat", "two")
    pool.good("rm", "one", "two")
    assert json.loads(pool.good("ls", "--json")) == []


def test_what_is_not_well_is_exit_code_1(pool: Pool) -> None:
    code, line = pool.bad("get", "nothing")
    assert (code, "nothing" in line) == (1, True)
    assert pool.bad("stat", "nothing") == (1, "moonpool: nothing: not in the pool")
    code, line = pool.bad("rm", "nothing")
    assert (code, "-704" in line) == (1, True)
    pool.good("put", "key", "-", value=b"first")
    code, line = pool.bad("put", "key", "-", value=b"second")
    assert (code, "exists already" in line) == (1, True)
    assert pool.good("get", "key") == b"first"


def test_what_can_never_be_right_is_exit_code_2(pool: Pool) -> None:
    assert pool.bad("put", "", "-", value=b"x")[0] == 2
    assert pool.bad("put", "k" * 5_000, "-", value=b"x")[0] == 2
    code, line = pool.bad("put", "large", "-", value=bytes(64 << 20))
    assert code == 2
    assert "moonpool: " in line


def test_status(pool: Pool) -> None:
    pool.good("put", "key", "-", value=bytes(10_000))
    status = json.loads(pool.good("status", "--json"))
    assert status["objects"] == 1
    (segment,) = status["segments"]
    assert segment["node"] == "test"
    assert segment["ready"]
    assert segment["used_bytes"] >= 10_000
    text = pool.good("status").decode()
    assert "1 objects" in text
    assert "ready" in text


def test_a_pool_without_a_node_is_not_well(pool: Pool) -> None:
    node, _ = pool.processes
    node.send_signal(signal.SIGTERM)
    assert node.wait(WAIT_S) == 0
    code, line = pool.bad("status", "--json")
    assert (code, "no segment takes objects" in line) == (1, True)


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_a_signal_ends_both_and_leaves_nothing(pool: Pool, number: signal.Signals) -> None:
    pool.good("put", "key", "-", value=bytes(10_000))
    assert list(pool.segments.rglob("*.seg"))
    for process in pool.processes:
        process.send_signal(number)
        assert process.wait(WAIT_S) == 0
    assert [path for path in pool.segments.rglob("*") if path.is_file()] == []


def test_pins_and_sessions_by_hand(pool: Pool) -> None:
    pool.good("put", "kept", "-", "--pin", value=b"x")
    pool.good("put", "soft", "-", "--soft-pin", "60", "--session", "talk", value=b"x")
    assert json.loads(pool.good("stat", "kept", "--json"))["pinned"]
    assert json.loads(pool.good("stat", "soft", "--json"))["soft_pin_s"] > 0
    pool.good("unpin", "kept", "soft")
    assert not json.loads(pool.good("stat", "kept", "--json"))["pinned"]
    pool.good("pin", "kept", "--soft", "30")
    assert 0 < json.loads(pool.good("stat", "kept", "--json"))["soft_pin_s"] <= 30
    assert pool.good("end-session", "talk").strip() == b"1"
    assert pool.good("end-session", "talk").strip() == b"0"
    assert pool.bad("pin", "missing") == (1, "moonpool: missing: not in memory (-704)")
    assert pool.bad("end-session", "x" * 129)[0] == 2
