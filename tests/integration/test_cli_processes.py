"""Children end, with all that they started, however they and their parent end."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

from moonpool.demo.process import Child, StartError, Supervisor, until_ready

WAIT_S = 20.0
SLEEP = [sys.executable, "-c", "import time; print('up', flush=True); time.sleep(600)"]
# Starts a process of its own, tells its id, and does not obey SIGTERM.
STUBBORN_CODE = """
import signal, subprocess, sys, time
signal.signal(signal.SIGTERM, signal.SIG_IGN)
p = subprocess.Popen([sys.executable, "-c", "import time; time.sleep(600)"])
print(p.pid, flush=True)
time.sleep(600)
"""
STUBBORN = [sys.executable, "-c", STUBBORN_CODE]


def _runs(pid: int) -> bool:
    """Return whether the process is there and no zombie."""
    try:
        stat = Path(f"/proc/{pid}/stat").read_text()
    except (FileNotFoundError, ProcessLookupError):
        return False
    return stat.rsplit(")", 1)[1].split()[0] != "Z"


def _exists(pid: int) -> bool:
    try:
        os.kill(pid, 0)
    except ProcessLookupError:
        return False
    return True


def _until_gone(pid: int) -> None:
    deadline = time.monotonic() + WAIT_S
    while _runs(pid):
        assert time.monotonic() < deadline
        time.sleep(0.02)


def _until_said(log: Path) -> str:
    deadline = time.monotonic() + WAIT_S
    while not (log.exists() and log.read_text().endswith("\n")):
        assert time.monotonic() < deadline
        time.sleep(0.02)
    return log.read_text()


async def test_children_end_with_the_supervisor(tmp_path: Path) -> None:
    async with Supervisor(tmp_path) as supervisor:
        child = supervisor.start("sleeper", SLEEP)
        _until_said(child.log)
        supervisor.check()
    assert not _runs(child.pid)


async def test_a_stubborn_child_and_its_children_are_killed(tmp_path: Path) -> None:
    child = Child("stubborn", STUBBORN, tmp_path / "log")
    grandchild = int(_until_said(child.log))
    await child.stop(grace_s=0.2)
    assert not _runs(child.pid)
    _until_gone(grandchild)


async def test_grandchildren_are_reaped_too(tmp_path: Path) -> None:
    async with Supervisor(tmp_path) as supervisor:
        child = supervisor.start("stubborn", STUBBORN)
        grandchild = int(_until_said(child.log))
        await child.stop(grace_s=0.1)
        # Not even as a zombie: whoever started it is gone, so it was ours to wait for.
        assert not _exists(grandchild)


async def test_a_child_that_ends_by_itself_is_noticed(tmp_path: Path) -> None:
    async with Supervisor(tmp_path) as supervisor:
        child = supervisor.start("bad", [sys.executable, "-c", "print('why'); exit(3)"])

        async def never() -> bool:
            return False

        with pytest.raises(StartError, match=r"(?s)bad ended with 3; .*why"):
            await until_ready(child, never, WAIT_S)
        with pytest.raises(StartError, match="bad ended with 3"):
            supervisor.check()


async def test_a_child_that_is_not_ready_in_time_is_reported(tmp_path: Path) -> None:
    async with Supervisor(tmp_path) as supervisor:
        child = supervisor.start("slow", SLEEP)

        async def never() -> bool:
            return False

        with pytest.raises(StartError, match="slow was not ready after 0 s"):
            await until_ready(child, never, 0.2)
    assert not _runs(child.pid)


def test_children_of_a_killed_parent_end(tmp_path: Path) -> None:
    code = (
        "import sys, time\nfrom pathlib import Path\nfrom moonpool.demo.process import Child\n"
        f"child = Child('sleeper', {SLEEP!r}, Path({str(tmp_path / 'log')!r}))\n"
        "print(child.pid, flush=True)\ntime.sleep(600)\n"
    )
    parent = subprocess.Popen([sys.executable, "-c", code], stdout=subprocess.PIPE, text=True)
    assert parent.stdout is not None
    child = int(parent.stdout.readline())
    parent.stdout.close()
    _until_said(tmp_path / "log")
    parent.send_signal(signal.SIGKILL)
    parent.wait()
    _until_gone(child)
