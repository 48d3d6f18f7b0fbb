"""LMCache's and SGLang's backends for Mooncake on moonpool: their real classes, without a GPU.

Their wheels want much that is no dependency of moonpool; they may be unpacked anywhere with what
they import (docs/mooncake.md), and MOONPOOL_CLIENT_WHEELS names the directories.
"""

from __future__ import annotations

import contextlib
import importlib.util
import os
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from tests.integration.mooncake_programs import PROGRAMS
from tests.integration.mooncake_shim import (
    MooncakeMaster,
    answers,
    free_port,
    running,
    shim_environment,
)

pytestmark = pytest.mark.timeout(600)

ROOT = Path(__file__).resolve().parents[2]
WHEELS = [each for each in os.environ.get("MOONPOOL_CLIENT_WHEELS", "").split(":") if each]


def _is_there(package: str) -> bool:
    named = any((Path(each) / package).is_dir() for each in WHEELS)
    return named or importlib.util.find_spec(package) is not None


@pytest.fixture(scope="module")
def master(tmp_path_factory: pytest.TempPathFactory) -> Iterator[MooncakeMaster]:
    with MooncakeMaster(tmp_path_factory.mktemp("clients")) as running:
        yield running


@pytest.mark.parametrize("name", PROGRAMS)
def test_client(master: MooncakeMaster, name: str, tmp_path: Path) -> None:
    package = name.partition("-")[0]
    if not _is_there(package) or importlib.util.find_spec("torch") is None:
        pytest.skip(f"{package} is not here: MOONPOOL_CLIENT_WHEELS may name where it is unpacked")
    with contextlib.ExitStack() as stack:
        client = f"127.0.0.1:{free_port()}"
        if name == "sglang-dummy":
            stack.enter_context(lending(tmp_path, master, client))
        check(name, master, client)


def lending(folder: Path, master: MooncakeMaster, address: str) -> Any:
    host, _, port = address.partition(":")
    return running(
        folder,
        lambda: answers(f"http://{address}/health"),
        *("mooncake_client", f"--host={host}", f"--port={port}", "--global_segment_size=64MB"),
        f"--master_server_address={master.address}",
    )


def check(name: str, master: MooncakeMaster, client: str) -> None:
    env = shim_environment(OMP_NUM_THREADS="1", TEST_CLIENT=client)
    env["PYTHONPATH"] = ":".join([env["PYTHONPATH"], str(ROOT), *WHEELS])
    done = subprocess.run(
        [sys.executable, "-m", "tests.integration.mooncake_programs", name, master.address],
        cwd=ROOT,
        env=env,
        capture_output=True,
        text=True,
        timeout=500,
        check=False,
    )
    assert done.stdout.endswith("done\n"), done.stderr[-4000:] + done.stdout[-1000:]
    assert done.returncode == 0, done.stderr[-4000:]
