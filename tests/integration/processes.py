"""Master, nodes and clients as real processes, started and ended by tests."""

from __future__ import annotations

import contextlib
import json
import os
import shutil
import signal
import subprocess
import sys
import time
import uuid
from collections.abc import Callable, Iterator
from pathlib import Path
from types import TracebackType
from typing import Any, Self
from urllib.request import urlopen

from moonpool import Store

START_S = 30.0
STOP_S = 15.0
SHM = Path("/dev/shm")


def eventually(what: str, check: Callable[[], object], within_s: float = 10.0) -> None:
    """Wait until a check holds; AssertionError if it does not in time."""
    deadline = time.monotonic() + within_s
    while not check():
        assert time.monotonic() < deadline, f"not within {within_s} s: {what}"
        time.sleep(0.02)


def freeze(pid: int) -> None:
    """Stop a process and wait until all of its threads have stopped; SIGCONT ends it."""
    os.kill(pid, signal.SIGSTOP)

    def stopped() -> bool:
        states = [path.read_text() for path in Path(f"/proc/{pid}/task").glob("*/stat")]
        return all(state.rpartition(")")[2].split()[0] == "T" for state in states)

    eventually(f"process {pid} stops", stopped)


def environment() -> dict[str, str]:
    """Return the environment without what would configure moonpool."""
    return {k: v for k, v in os.environ.items() if not k.startswith(("MOONPOOL_", "MOONCAKE_"))}


class Daemon:
    """``python -m moonpool.<role>`` with its keys; started with ``with`` or ``start``."""

    def __init__(self, role: str, folder: Path, **keys: object) -> None:
        self.role = role
        self.keys = keys
        self.prefix: tuple[str, ...] = ()
        self.module: tuple[str, ...] = (f"moonpool.{role}",)
        self.ready: dict[str, Any] = {}
        self.log = folder / f"{role}-{uuid.uuid4().hex[:8]}.log"
        self._ready_file = self.log.with_suffix(".ready")
        self._process: subprocess.Popen[bytes] | None = None

    @property
    def process(self) -> subprocess.Popen[bytes]:
        """The running process."""
        assert self._process is not None
        return self._process

    def spawn(self) -> None:
        """Start the process without waiting for it."""
        self._ready_file.unlink(missing_ok=True)
        keys = self.keys | {"ready_file": self._ready_file}
        command = [*self.prefix, sys.executable, "-m", *self.module]
        with self.log.open("ab") as log:
            self._process = subprocess.Popen(
                command + [f"{key}={value}" for key, value in keys.items()],
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=log,
                env=environment(),
            )

    def start(self) -> Self:
        """Start the process and wait until it serves; from then on it keeps its port."""
        self.spawn()
        return self.wait()

    def wait(self) -> Self:
        """Wait until a process that was spawned serves."""
        eventually(f"{self.role} is ready", self._is_ready, START_S)
        self.ready = json.loads(self._ready_file.read_text())
        self.keys["port"] = self.ready["port"]
        return self

    def _is_ready(self) -> bool:
        code = self.process.poll()
        assert code is None, f"{self.role} ended with {code}: {self.text()}"
        return self._ready_file.exists()

    def text(self) -> str:
        """Return what it has logged."""
        return self.log.read_text(errors="replace")

    def end(self, number: int = signal.SIGTERM) -> int:
        """Send a signal and wait; return the exit status."""
        if self.process.poll() is None:
            self.process.send_signal(number)
        return self.process.wait(STOP_S)

    def kill(self) -> None:
        """End it without any warning."""
        self.end(signal.SIGKILL)

    def __enter__(self) -> Self:
        return self.start()

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, _: TracebackType | None
    ) -> None:
        if self._process is not None:
            try:
                self.end()
            except subprocess.TimeoutExpired:
                self.kill()
                raise
        if kind is not None:
            print(f"--- {self.role}\n{self.text()}")  # noqa: T201


class Master(Daemon):
    """A master on free ports."""

    def __init__(self, folder: Path, **keys: object) -> None:
        super().__init__("master", folder, **({"port": 0, "http_port": 0} | keys))

    @property
    def address(self) -> str:
        """Where clients and nodes connect."""
        return f"{self.keys.get('host', '127.0.0.1')}:{self.ready['port']}"

    def http(self, path: str) -> bytes:
        """Return what the HTTP side answers."""
        with urlopen(f"http://127.0.0.1:{self.ready['http_port']}{path}", timeout=10) as response:
            found: bytes = response.read()
        return found


class Node(Daemon):
    """A node of a master, with segments in a directory of its own in shared memory."""

    def __init__(self, folder: Path, master: Master, name: str, **keys: object) -> None:
        defaults: dict[str, object] = {
            "port": 0,
            "name": name,
            "master": master.address,
            "size": "64MB",
            "segment_dir": SHM / f"moonpool-test-{folder.name}-{uuid.uuid4().hex[:8]}",
        }
        super().__init__("node", folder, **(defaults | keys))

    @property
    def segment_dir(self) -> Path:
        """Where its segments are."""
        return Path(str(self.keys["segment_dir"]))

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, _: TracebackType | None
    ) -> None:
        super().__exit__(kind, error, _)
        shutil.rmtree(self.segment_dir, ignore_errors=True)


def ready_segments(store: Store) -> int:
    """Return how many segments take puts."""
    return sum(segment.ready for segment in store.status().segments)


@contextlib.contextmanager
def pool(folder: Path, nodes: int = 1, **keys: object) -> Iterator[tuple[Master, list[Node]]]:
    """Run a master and nodes for the length of a ``with`` block; ``keys`` are the nodes'."""
    with contextlib.ExitStack() as stack:
        master = stack.enter_context(Master(folder))
        started = [stack.enter_context(Node(folder, master, f"n{i}", **keys)) for i in range(nodes)]
        with Store.connect(master.address, name="probe") as probe:
            eventually("segments are ready", lambda: ready_segments(probe) == nodes)
        yield master, started
