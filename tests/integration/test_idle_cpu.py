"""A pool that nobody uses costs next to no CPU: master, node and a connected client."""

from __future__ import annotations

import os
import subprocess
import sys
import time
from pathlib import Path

from tests.integration.processes import Master, environment, eventually, pool

IDLE_S = 10.0
SHARE_MAX = 0.02
"""Twice what is promised (1 % of a core): a busy machine charges a little to the wrong process."""

CLIENT = """
import sys
from moonpool import Store
store = Store.connect(sys.argv[1])
store.put("idle", b"x" * 4096)
assert store.get("idle") == b"x" * 4096
print("ready", flush=True)
sys.stdin.read()
"""


def cpu_s(pid: int) -> float:
    """Return the CPU seconds that a process has used."""
    fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
    return (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")


def client_of(master: Master) -> subprocess.Popen[bytes]:
    """Start a process that connects, puts and gets, and then does nothing."""
    return subprocess.Popen(
        [sys.executable, "-c", CLIENT, master.address],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        env=environment(),
    )


def test_idle_roles_use_hardly_any_cpu(tmp_path: Path) -> None:
    with pool(tmp_path) as (master, (node,)), client_of(master) as client:
        assert client.stdout is not None
        assert client.stdout.readline() == b"ready\n"
        pids = {"master": master.process.pid, "node": node.process.pid, "client": client.pid}
        eventually("the node has touched its memory", lambda: _rests(pids["node"]), 30.0)
        before = {role: cpu_s(pid) for role, pid in pids.items()}
        time.sleep(IDLE_S)
        used = {role: cpu_s(pid) - before[role] for role, pid in pids.items()}
        client.communicate(b"")
        assert client.returncode == 0
    assert all(seconds <= SHARE_MAX * IDLE_S for seconds in used.values()), used


def _rests(pid: int) -> bool:
    before = cpu_s(pid)
    time.sleep(0.5)
    return cpu_s(pid) == before
