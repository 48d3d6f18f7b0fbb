"""The process beside an engine that moves its KV memory: run by test_gpu_processes.py."""

from __future__ import annotations

import json
import sys
from pathlib import Path
from typing import Any

import numpy as np

from moonpool import Pieces, Store
from moonpool.gpu import CudaCopier, ipc
from tests.unit.gpu.fake import FakeDriver


def main() -> None:
    """Open what the engine shares, then save or load what it asks for, one line each."""
    told = json.loads(sys.stdin.readline())
    driver = FakeDriver(Path(told["directory"]))
    base = ipc.open(driver, told["memory"] | {"handle": bytes.fromhex(told["memory"]["handle"])})
    event = driver.event_open(bytes.fromhex(told["event"]))
    copier = CudaCopier(driver, staging_bytes=1 << 20)
    store = Store.connect(told["master"], transports=told["ways"], copier=copier, name="mover")
    store.register_memory(base, told["memory"]["nbytes"])
    with store:
        for line in sys.stdin:
            answer = json.dumps(run(store, copier, event, base, json.loads(line)))
            sys.stdout.write(answer + "\n")
            sys.stdout.flush()
    copier.close()
    assert not driver.wrong, driver.wrong


def run(store: Store, copier: CudaCopier, event: int, base: int, job: dict[str, Any]) -> list[int]:
    """Do one job; return the codes."""
    pieces = Pieces(
        np.array(job["offsets"], np.uint64) + np.uint64(base),
        np.array(job["lengths"], np.uint64),
        np.array(job["starts"], np.int64),
    )
    if job["verb"] == "load":
        return [int(code) for code in store.get_pieces(job["keys"], pieces, exact=True)]
    with copier.after(event):
        return [int(code) for code in store.put_pieces(job["keys"], pieces)]


if __name__ == "__main__":
    main()
