from __future__ import annotations

import importlib.util
import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from moonpool.demo.model import Shape, build_model
from tests.integration.processes import environment, pool

ROOT = Path(__file__).resolve().parents[3]
TIMEOUT_S = 300
_VLLM = importlib.util.find_spec("vllm")
NEW = _VLLM is None or (Path(str(_VLLM.origin)).parent / "v1" / "kv_cache_layout.py").exists()
"""Whether this is vLLM 0.29 or newer: hashes that are the same in every process, among others."""
SHAPE = Shape(
    layers=2,
    hidden=128,
    intermediate=256,
    heads=4,
    kv_heads=2,
    head_size=32,
    context_tokens=2048,
)

Findings = dict[str, dict[str, Any]]


@pytest.fixture(scope="session")
def findings(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Findings]:
    """What the scenarios found, by group. Three engines, one after the other, share one pool."""
    pytest.importorskip("vllm")
    folder = tmp_path_factory.mktemp("vllm")
    model = build_model(folder, SHAPE)
    with pool(folder, size="256MB") as (master, (node,)):
        facts = {
            "TEST_MASTER": master.address,
            "TEST_NODE_PID": str(node.process.pid),
            "TEST_SEGMENTS": str(node.segment_dir),
        }
        groups = ("plain", "small", "stranger")
        return {name: run_module("scenarios", [name, str(model)], folder, facts) for name in groups}


def run_module(module: str, arguments: list[str], folder: Path, facts: dict[str, str]) -> Findings:
    """Run a module of this package in a process of its own; return what it found."""
    name = f"{module}-{arguments[0].rpartition('/')[2]}"
    output, log = folder / f"{name}.json", folder / f"{name}.log"
    env = environment() | {"PYTHONPATH": str(ROOT)} | facts
    env.pop("PYTHONHASHSEED", None)
    if not NEW:
        env["PYTHONHASHSEED"] = "0"
    with log.open("w") as file:
        ended = subprocess.run(
            [sys.executable, "-m", f"tests.e2e.vllm.{module}", *arguments, str(output)],
            cwd=ROOT,
            env=env,
            stdout=file,
            stderr=subprocess.STDOUT,
            timeout=TIMEOUT_S,
            check=False,
        )
    assert ended.returncode == 0, log.read_text()[-4000:]
    found: Findings = json.loads(output.read_text())
    for scenario, finding in found.items():
        assert "raised" not in finding, f"{name}/{scenario}: {finding['raised']}"
    return found
