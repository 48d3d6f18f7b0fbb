"""A prefix that left memory for a node's disk is loaded from there, with the same logprobs."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import pytest

from moonpool.demo.model import build_model
from tests.e2e.vllm.conftest import NEW, ROOT, SHAPE, TIMEOUT_S
from tests.e2e.vllm.test_engine import SAME
from tests.integration.processes import Master, Node, environment

pytestmark = [pytest.mark.e2e, pytest.mark.timeout(600)]


def test_what_is_on_disk_only_is_loaded(tmp_path: Path) -> None:
    pytest.importorskip("vllm")
    model = build_model(tmp_path, SHAPE)
    disk = {"ssd": tmp_path / "ssd", "ssd_size": "256MB", "ssd_policy": "write-through"}
    output, log = tmp_path / "found.json", tmp_path / "engine.log"
    env = environment() | {"PYTHONPATH": str(ROOT)}
    env.pop("PYTHONHASHSEED", None)
    if not NEW:
        env["PYTHONHASHSEED"] = "0"
    with (
        Master(tmp_path, watermark_high=0.7, watermark_low=0.5) as master,
        Node(tmp_path, master, "n0", size="8MB", **disk),
        log.open("w") as file,
    ):
        ended = subprocess.run(
            [
                *(sys.executable, "-m", "tests.e2e.vllm.on_disk"),
                *(master.address, str(model), str(output)),
            ],
            cwd=ROOT,
            env=env,
            stdout=file,
            stderr=subprocess.STDOUT,
            timeout=TIMEOUT_S,
            check=False,
        )
    assert ended.returncode == 0, log.read_text()[-4000:]
    found = json.loads(output.read_text())
    assert found["objects"] >= 8
    assert found["cold_cached"] == [0, 0]
    assert found["hot_cached"] == [288, 288]
    assert found["difference"] < SAME
    assert found["promotions"] >= 8
