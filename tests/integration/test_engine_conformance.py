"""TransferEngine of the shim and of Mooncake's wheel answer one program alike."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from tests.integration.mooncake_shim import shim_environment
from tests.integration.mooncake_wheel import REASON, WHEEL, lent

PROGRAM = Path(__file__).with_name("engine_program.py")
EXPECTED: dict[str, Any] = {
    "register": 0,
    "register again": -7,
    "register overlapping": -7,
    "write": 0,
    "written": [1, 1, 1, 1, 7, 7, 7, 7],
    "read": 0,
    "was read": [1, 1, 7, 7, 1],
    "over the end": -1,
    "outside": -1,
    "nothing": 0,
    "nobody": -1,
    "no name": -1,
    "batch": 0,
    "ragged batch": -1,
    "empty batch": 0,
    "a batch's number": True,
    "its status": 0,
    "no batches": 0,
    "async to nobody": 0,
    "submitted": 1,
    "with a word": 0,
    "the word": [["name", "word"]],
    "probe": 0,
    "probe of nobody": -102,
    "first buffer": True,
    "nobody's buffer": 0,
    "fill": 0,
    "filled": "hello",
    "free": 0,
    "wrong type": "TypeError",
    "negative": "TypeError",
    "keyword": "TypeError",
    "topology": ["cpu:0"],
    "unregister": 0,
    "unregister again": -3,
    "unregistered here": -1,
    "the dead": -1,
    "probe of the dead": -102,
}
DIFFERENT = {"unregistered here": 0}
"""What the wheel answers where we choose otherwise: over TCP it reads memory that nobody
registered."""


def run(env: dict[str, str]) -> dict[str, Any]:
    done = subprocess.run(
        [sys.executable, str(PROGRAM)],
        env=env,
        capture_output=True,
        text=True,
        timeout=100,
        check=False,
    )
    assert done.returncode == 0, done.stderr[-3000:]
    found: dict[str, Any] = json.loads(done.stdout.splitlines()[-1])
    return found


def test_moonpool() -> None:
    found = run(shim_environment())
    # An async batch always has a number here; its status tells that it failed.
    assert found.pop("async to nobody") >= 0
    assert found == {name: each for name, each in EXPECTED.items() if name != "async to nobody"}


@pytest.mark.skipif(WHEEL is None, reason=REASON)
def test_the_wheel(tmp_path: Path) -> None:
    env = shim_environment() | {"PYTHONPATH": lent(tmp_path), "GLOG_minloglevel": "3"}
    assert run(env) == EXPECTED | DIFFERENT
