"""Real engines while their pool fails: outputs are those of vLLM without a connector, every request
ends, and afterwards the engine holds what it held before.

A Llama whose bytes move over TCP, and a Mistral with a sliding window on shared memory.
"""

from __future__ import annotations

import json
import subprocess
import sys
from typing import Any

import pytest

from moonpool.demo.model import build_model
from tests.e2e.vllm.conftest import NEW, ROOT, SHAPE
from tests.e2e.vllm.models import mistral
from tests.integration.processes import environment

pytestmark = [pytest.mark.e2e, pytest.mark.timeout(900)]

SAME = 1e-4
RUN_S = 600
WINDOW = 80
"""Tokens; not a multiple of the block, and less than a prompt."""
MODELS = {"llama": "tcp", "mistral": "shm"}
WHO = ("node", "master", "all")

Findings = dict[str, Any]


@pytest.fixture(scope="module", params=MODELS)
def faults(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Findings:
    """What was found on one engine per model, whose pool was hurt in one way after the other."""
    pytest.importorskip("vllm")
    if not NEW:
        pytest.skip("block tables in the scheduler's output, requests that begin anew")
    folder = tmp_path_factory.mktemp(request.param)
    model = build_model(folder, SHAPE)
    if request.param == "mistral":
        model = mistral(model, WINDOW)
    way, log = MODELS[request.param], folder / "log"
    with log.open("w") as file:
        ended = subprocess.run(
            [sys.executable, "-m", "tests.e2e.vllm.faults", way, str(model), str(folder)],
            cwd=ROOT,
            env=environment() | {"PYTHONPATH": str(ROOT)},
            stdout=file,
            stderr=subprocess.STDOUT,
            timeout=RUN_S,
            check=False,
        )
    assert ended.returncode == 0, log.read_text()[-4000:]
    found: Findings = json.loads((folder / f"{way}.json").read_text())
    found["way"] = way
    return found


def sound(faults: Findings, case: str) -> Findings:
    """Return what a case found, which must be right and leave nothing behind."""
    found: Findings = faults[case]
    assert "raised" not in found, found["raised"]
    assert found["difference"] < SAME, found
    assert not found["leaks"], (found["held"], faults["engine"])
    return found


@pytest.mark.parametrize("who", WHO)
def test_a_pool_killed_during_a_load_costs_a_recompute(faults: Findings, who: str) -> None:
    found = sound(faults, f"killed_while_loading {who}")
    # Over TCP the bytes were on their way; memory that is mapped outlives its node.
    assert found["failed"] == 1 or faults["way"] == "shm"


@pytest.mark.parametrize("who", WHO)
def test_a_pool_killed_during_a_save_costs_the_save(faults: Findings, who: str) -> None:
    sound(faults, f"killed_while_saving {who}")


def test_a_load_that_is_too_slow_ends_at_its_deadline(faults: Findings) -> None:
    found = sound(faults, "slow")
    assert found["failed"] == 1 or faults["way"] == "shm"
    assert found["again"] < SAME


def test_a_corrupt_object_is_never_used(faults: Findings) -> None:
    assert sound(faults, "corrupt")["corrupt"] >= 1


def test_preemptions_while_loads_run_change_no_output(faults: Findings) -> None:
    found = sound(faults, "preemption")
    assert found["preempted"] >= 1
    assert found["loads"] >= 1


@pytest.mark.parametrize("when", ["loading", "saving"])
def test_an_abort_leaves_nothing_behind(faults: Findings, when: str) -> None:
    assert sound(faults, f"abort_while_{when}")["left"] == 0


def test_nothing_was_kept_from_the_engine_but_counted_as_an_error(faults: Findings) -> None:
    assert faults["engine"]["errors"] == 0
