"""A shortened demonstration with real vLLM processes."""

from __future__ import annotations

import json
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

from tests.e2e.leftovers import Leftovers

pytestmark = [pytest.mark.e2e, pytest.mark.timeout(600)]
DEMO = [sys.executable, "-m", "moonpool.cli", "demo", "--quick"]
FIGURES = (
    "hit_rate",
    "local_hit_rate",
    "pool_hit_rate",
    "ttft_p50_s",
    "ttft_p99_s",
    "e2e_p50_s",
    "output_tokens_per_s",
)
WAIT_S = 120.0
MORE_PROCESSES = 4


def test_both_runs_give_the_same_answers_and_the_pool_is_hit(tmp_path: Path) -> None:
    leftovers = Leftovers(tmp_path)
    file = tmp_path / "demo.json"
    process = subprocess.Popen(
        [*DEMO, "--json", str(file)],
        env=leftovers.environment(),
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
    )
    with leftovers.watching():
        output, _ = process.communicate()
    assert process.returncode == 0, output
    found = json.loads(file.read_text())
    assert found["requests"] == 12
    assert found["outputs_identical"] + found["near_ties"] == 12
    assert found["outputs_identical"] >= 11
    for run in ("pool", "baseline"):
        assert found[run]["errors"] == 0
        assert all(found[run][name] is not None for name in FIGURES)
    assert found["pool"]["pool_hit_rate"] > 0
    assert found["baseline"]["pool_hit_rate"] == 0
    # A dozen short requests on a busy machine say little of rates; the full size does.
    assert found["pool"]["hit_of_possible"] >= 0.5
    assert "outputs identical" in output
    leftovers.check(process.pid)


def test_ctrl_c_leaves_nothing_behind(tmp_path: Path) -> None:
    leftovers = Leftovers(tmp_path)
    process = subprocess.Popen(
        DEMO,
        env=leftovers.environment(),
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
    )
    assert process.stdout is not None
    with leftovers.watching():
        for line in process.stdout:
            if line.startswith("starting 2 vLLM replicas"):
                break
        # Master, node and both replicas are there, and processes that the replicas started.
        deadline = time.monotonic() + WAIT_S
        while len(leftovers.processes()) < 5 + MORE_PROCESSES:
            assert time.monotonic() < deadline
            time.sleep(0.1)
        process.send_signal(signal.SIGINT)
        rest = process.stdout.read()
        process.stdout.close()
    assert process.wait(WAIT_S) == 130
    assert rest.splitlines()[-1] == "moonpool: interrupted"
    leftovers.check(process.pid)
