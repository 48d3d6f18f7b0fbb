"""A master and a node as processes of their own, for the length of a benchmark."""

from __future__ import annotations

import json
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from moonpool.errors import MoonpoolError

START_TIMEOUT_S = 30.0
STOP_TIMEOUT_S = 15.0
POLL_S = 0.02
TOUCH_POLL_S = 0.5


@dataclass(frozen=True, slots=True)
class Cluster:
    """Where a running master is, and the ids of its and its node's process."""

    master_address: str
    master_pid: int
    node_pid: int
    segments: Path

    @classmethod
    @contextmanager
    def start(
        cls,
        pool_bytes: int,
        *,
        host: str = "127.0.0.1",
        prefix: Sequence[str] = (),
        **node_settings: object,
    ) -> Iterator[Cluster]:
        """Run a master and a node with a pool of so many bytes; both end with the context.

        host: where they listen. prefix: the start of their command lines.
        """
        with ExitStack() as stack:
            place = Path(stack.enter_context(tempfile.TemporaryDirectory(prefix="moonpool-bench-")))
            segments = stack.enter_context(
                tempfile.TemporaryDirectory(prefix="moonpool-bench-", dir="/dev/shm")
            )
            base = {"host": host, "port": 0}
            master, told = _service(stack, place, "master", {**base, "http_port": 0}, prefix)
            address = f"{host}:{told['port']}"
            settings = {"master": address, "size": pool_bytes, "segment_dir": segments}
            node, _ = _service(stack, place, "node", {**base, **settings, **node_settings}, prefix)
            _until_touched(Path(segments))
            yield cls(address, master.pid, node.pid, Path(segments))


def _service(
    stack: ExitStack, place: Path, role: str, settings: dict[str, Any], prefix: Sequence[str]
) -> tuple[subprocess.Popen[bytes], dict[str, Any]]:
    """Start ``moonpool <role>``; return it and what it says of itself once it serves."""
    ready = place / f"{role}.ready"
    config = place / f"{role}.json"
    config.write_text(json.dumps({**settings, "ready_file": str(ready)}))
    command = [*prefix, sys.executable, "-m", "moonpool.cli", role, "--config", str(config)]
    log = stack.enter_context((place / f"{role}.log").open("w+b"))
    child = subprocess.Popen(command, stdin=subprocess.DEVNULL, stdout=log, stderr=log)
    stack.callback(_stop, child)
    deadline = time.monotonic() + START_TIMEOUT_S
    while not ready.exists():
        if child.poll() is not None or time.monotonic() > deadline:
            raise MoonpoolError(f"the {role} did not start: {(place / log.name).read_text()}")
        time.sleep(POLL_S)
    said: dict[str, Any] = json.loads(ready.read_text())
    return child, said


def _until_touched(segments: Path) -> None:
    """Wait until the node has touched its memory: it would share a core with what is measured."""
    deadline = time.monotonic() + START_TIMEOUT_S
    before, now = -1, 0
    while now != before and time.monotonic() < deadline:
        time.sleep(TOUCH_POLL_S)
        found = [path.stat() for path in segments.glob("*/*.seg")]
        before, now = now, sum(512 * each.st_blocks for each in found)


def _stop(child: subprocess.Popen[bytes]) -> None:
    child.terminate()
    try:
        child.wait(STOP_TIMEOUT_S)
    except subprocess.TimeoutExpired:
        child.kill()
        child.wait()
