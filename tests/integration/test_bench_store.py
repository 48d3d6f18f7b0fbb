"""``moonpool bench store``: everything once, small. No figure is asserted: only that all is there,
that every byte was compared, and that none was wrong."""

import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from moonpool.bench.options import PRESETS
from tests.integration.processes import environment, eventually

RUN_S = 300.0


def bench(*arguments: str, within_s: float = RUN_S) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, "-m", "moonpool.cli", "bench", "store", *arguments],
        capture_output=True,
        text=True,
        env=environment(),
        timeout=within_s,
        check=False,
    )


def rows_of(file: Path, section: str) -> list[dict[str, Any]]:
    found: list[dict[str, Any]] = json.loads(file.read_text())["sections"][section]["rows"]
    return found


@pytest.mark.timeout(RUN_S + 60)
def test_the_quick_preset_measures_everything_and_finds_no_wrong_byte(tmp_path: Path) -> None:
    file = tmp_path / "store.json"
    ended = bench("--preset", "quick", "--json", str(file))
    assert ended.returncode == 0, ended.stdout + ended.stderr
    assert "bytes wrong: 0" in ended.stdout
    said = json.loads(file.read_text())
    assert list(said["sections"]) == list(PRESETS["quick"].sections)
    for name, section in said["sections"].items():
        assert section["rows"], name
        assert not any(section["mismatches"].values()), name
        for row in section["rows"]:
            assert row["value"] is not None or row["note"], row
            assert name == "delay" or row["value"] is not None, row
    for name in ("shm", "tcp", "small", "compat", "checksum", "shm-matrix", "tcp-matrix"):
        assert said["sections"][name]["verified_bytes"]["moonpool"] > 0


@pytest.mark.timeout(RUN_S + 60)
@pytest.mark.parametrize("python", [sys.executable, "/nowhere/python"])
def test_a_peer_that_cannot_run_is_a_reason_in_its_rows(python: str, tmp_path: Path) -> None:
    if python == sys.executable:
        pytest.importorskip("numpy")
        try:
            import mooncake.store  # type: ignore[import-not-found] # noqa: F401
        except ImportError:
            pass
        else:
            pytest.skip("the wheel is here")
    file = tmp_path / "store.json"
    flags = ("--preset", "quick", "--only", "shm,small,compat", "--json", str(file))
    ended = bench(*flags, "--vs", "mooncake", "--mooncake-python", python)
    assert ended.returncode == 0, ended.stdout + ended.stderr
    peer = [row for row in rows_of(file, "shm") if row["against"].startswith("Mooncake")]
    assert {row["what"].rpartition(": ")[2] for row in peer} == {"put", "get"}
    peer += [row for row in rows_of(file, "compat") if row["against"].startswith("Mooncake")]
    assert {"put", "get_into", "batch_put_from_multi_buffers"} <= {
        row["what"].partition(",")[0].removesuffix(" 4 KiB") for row in peer
    }
    for row in peer:
        assert row["value"] > 0
        assert row["ratio"] is None
        assert "mooncake" in row["note"] or "/nowhere/python" in row["note"]


def test_told_to_end_it_leaves_nothing_behind(tmp_path: Path) -> None:
    file = tmp_path / "store.json"
    flags = ["--preset", "quick", "--only", "shm,small,lookup,checksum", "--json", str(file)]
    command = [sys.executable, "-m", "moonpool.cli", "bench", "store", *flags]
    env = {**environment(), "TMPDIR": str(tmp_path)}
    child = subprocess.Popen(command, env=env, stdout=subprocess.PIPE, stderr=subprocess.PIPE)
    try:
        eventually("its node runs", lambda: _children(child.pid, "node"), within_s=60)
        started = _children(child.pid, "")
        child.terminate()
        _, said = child.communicate(timeout=60)
    finally:
        child.kill()
    assert child.returncode == 130
    assert b"interrupted" in said
    eventually("all processes end", lambda: not [p for p in started if _runs(p)])
    assert not list(tmp_path.glob("moonpool-bench-*"))


def _children(pid: int, role: str) -> list[int]:
    """Return the processes that a process has started; with a role those of that role."""
    listed = subprocess.run(["ps", "-o", "pid=,args=", "--ppid", str(pid)], capture_output=True)
    lines = listed.stdout.decode().splitlines()
    return [int(line.split()[0]) for line in lines if f" {role} " in line or not role]


def _runs(pid: int) -> bool:
    return Path(f"/proc/{pid}/stat").exists()


@pytest.mark.parametrize(
    "flags", [("--preset", "none"), ("--only", "none"), ("--vs", "none"), ("--batch", "7")]
)
def test_wrong_usage_is_one_line(flags: tuple[str, ...]) -> None:
    ended = bench(*flags)
    assert ended.returncode == 2
    assert len(ended.stderr.strip().splitlines()) == 1
