"""An engine's GPU memory, moved by another process, into a pool and out of it.

The GPU is the unit tests' fake one; the processes, the shared memory and the pool are real.
"""

from __future__ import annotations

import json
import subprocess
import sys
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from moonpool import Store
from moonpool.gpu import ipc
from moonpool.gpu.base import GpuError
from tests.integration.processes import Master, environment, pool
from tests.unit.gpu.fake import FakeDriver

BLOCK = 48 * 1024
BLOCKS = 120
ROOT = Path(__file__).parents[2]


@pytest.fixture(scope="module")
def master(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Master]:
    with pool(tmp_path_factory.mktemp("pool")) as (started, _):
        yield started


class Engine:
    """GPU memory as blocks, a stream that computes on them, and the mover beside it."""

    def __init__(self, directory: Path) -> None:
        self.driver = FakeDriver(directory, eager=True)
        self.base = self.driver.memory_alloc(BLOCKS * BLOCK)
        self.blocks = self.driver.bytes_at(self.base, BLOCKS * BLOCK).reshape(BLOCKS, BLOCK)
        self.stream = self.driver.stream_create()
        self.event = self.driver.event_create(ipc=True)

    @contextmanager
    def mover(self, master: Master, ways: list[str]) -> Iterator[subprocess.Popen[str]]:
        memory = ipc.share(self.driver, self.base, BLOCKS * BLOCK)
        told = {
            "directory": str(self.driver.directory),
            "memory": memory | {"handle": memory["handle"].hex()},
            "event": self.driver.event_handle(self.event).hex(),
            "master": master.address,
            "ways": ways,
        }
        with subprocess.Popen(
            [sys.executable, "-m", "tests.integration.gpu_mover"],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
            cwd=ROOT,
            env=environment(),
        ) as process:
            try:
                send(process, told)
                yield process
                assert process.stdin is not None
                process.stdin.close()
                assert process.wait(30) == 0
            finally:
                process.kill()


def send(process: subprocess.Popen[str], message: dict[str, Any]) -> None:
    assert process.stdin is not None
    process.stdin.write(json.dumps(message) + "\n")
    process.stdin.flush()


def answer(process: subprocess.Popen[str]) -> list[int]:
    assert process.stdout is not None
    codes: list[int] = json.loads(process.stdout.readline())
    return codes


def job(verb: str, keys: list[str], blocks: list[list[int]]) -> dict[str, Any]:
    """Describe objects of whole blocks, each block in three pieces."""
    cuts = [0, 10_000, 10_001, BLOCK]
    pieces = [
        (b * BLOCK + cuts[i], cuts[i + 1] - cuts[i]) for bs in blocks for b in bs for i in (0, 1, 2)
    ]
    return {
        "verb": verb,
        "keys": keys,
        "offsets": [at for at, _ in pieces],
        "lengths": [n for _, n in pieces],
        "starts": np.cumsum([0, *(3 * len(bs) for bs in blocks)]).tolist(),
    }


@pytest.mark.parametrize("ways", [["shm"], ["tcp"]], ids="+".join)
def test_a_mover_saves_and_loads(master: Master, tmp_path: Path, ways: list[str]) -> None:
    engine = Engine(tmp_path)
    rng = np.random.default_rng(1)
    order = rng.permutation(BLOCKS).tolist()
    saved, loaded = order[:60], order[60:]
    objects = [saved[i : i + 6] for i in range(0, 60, 6)]
    places = [loaded[i : i + 6] for i in range(0, 60, 6)]
    keys = [f"{ways[0]}-{i}" for i in range(10)]
    payload = np.frombuffer(rng.bytes(60 * BLOCK), np.uint8).reshape(60, BLOCK)
    computed = threading.Event()

    def step() -> None:
        assert computed.wait(60)
        engine.blocks[saved] = payload

    with engine.mover(master, ways) as process:
        engine.driver._streams[engine.stream].put(step)
        engine.driver.event_record(engine.event, engine.stream)
        send(process, job("save", keys, objects))
        computed.set()  # the mover waits for it, or saves the wrong bytes
        assert answer(process) == [0] * 10
        send(process, job("load", keys, places))
        assert answer(process) == [0] * 10
        assert (engine.blocks[loaded] == payload).all()
        send(process, job("load", ["nothing", keys[3]], [places[0], places[1]]))
        assert answer(process) == [-704, 0]
        assert (engine.blocks[places[1]] == payload[18:24]).all()
    with Store.connect(master.address) as store:
        assert store.get(keys[9]) == payload[54:].tobytes()


def test_an_engine_that_has_gone(tmp_path: Path) -> None:
    """Its memory cannot be opened any more, and that is an error like others."""
    engine = Engine(tmp_path)
    shared = ipc.share(engine.driver, engine.base, BLOCK)
    for path in tmp_path.iterdir():
        path.unlink()
    with pytest.raises(GpuError):
        ipc.open(FakeDriver(tmp_path), shared)
