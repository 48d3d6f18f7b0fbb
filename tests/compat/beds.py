"""Mooncake and moonpool, ready for cases: a master, a process that lends, a process that asks."""

from __future__ import annotations

import ast
import contextlib
import json
import os
import select
import socket
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import ExitStack
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

import moonpool
from tests.integration.processes import Daemon, environment

HERE = Path(__file__).parent
SHIM = Path(moonpool.__file__).parent / "compat" / "shim"
REAL = os.environ.get("MOONCAKE_PYTHON", "")
WHY_NOT_REAL = "MOONCAKE_PYTHON names no interpreter that has mooncake-transfer-engine-non-cuda"
SEGMENT = 64 << 20
START_S = 60.0
CASE_S = 100.0


class WorkerGoneError(Exception):
    """The process that ran a case ended: its exit code and its last words."""


class Worker:
    """A process with a connected store."""

    def __init__(self, python: str, env: dict[str, str], log: Path, *arguments: str) -> None:
        self._log = log
        with log.open("ab") as out:
            self.process = subprocess.Popen(
                [python, str(HERE / "worker.py"), *arguments],
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                stderr=out,
                env=env,
            )
        try:
            self.said = self._answer(START_S)
        except BaseException:
            self.close()
            raise
        assert self.said["code"] == 0, f"setup() returned {self.said['code']}"

    def run(self, case: str, **arguments: Any) -> Any:
        """Run a case; return what it found. AssertionError with its traceback if it failed."""
        assert self.process.stdin is not None
        line = json.dumps({"case": case, "arguments": arguments})
        self.process.stdin.write(line.encode() + b"\n")
        self.process.stdin.flush()
        answer = self._answer(CASE_S)
        assert not answer["error"], answer["error"]
        if answer.get("skipped"):
            pytest.skip(answer["skipped"])
        return answer["found"]

    def _answer(self, within_s: float) -> dict[str, Any]:
        out = self.process.stdout
        assert out is not None
        deadline, line = time.monotonic() + within_s, b""
        while not line.endswith(b"\n"):
            left = deadline - time.monotonic()
            ready = left > 0 and select.select([out], [], [], left)[0]
            part = os.read(out.fileno(), 1 << 16) if ready else b""
            if not part:
                raise WorkerGoneError(self._words(within_s))
            line += part
        found: dict[str, Any] = json.loads(line)
        return found

    def _words(self, within_s: float) -> str:
        with contextlib.suppress(subprocess.TimeoutExpired):
            self.process.wait(1.0)
        code = self.process.poll()
        what = f"no answer within {within_s} s" if code is None else f"exit code {code}"
        return f"{what}: {self._log.read_text(errors='replace')[-2000:]}"

    def close(self) -> None:
        """End the process."""
        for pipe in (self.process.stdin, self.process.stdout):
            if pipe is not None:
                with contextlib.suppress(OSError):
                    pipe.close()
        try:
            self.process.wait(15.0)
        except subprocess.TimeoutExpired:
            self.process.kill()
            self.process.wait()


@dataclass
class Bed:
    """One implementation. The worker is started again after a case that ended it."""

    python: str
    env: dict[str, str]
    folder: Path
    master: str
    owner: Worker | None = None
    worker: Worker | None = None
    daemon: Daemon | None = None
    admin: str = ""

    def run(self, case: str, **arguments: Any) -> Any:
        """Run a case; see Worker.run."""
        if self.owner is None:
            self.owner = self.start("owner", SEGMENT, "")
        if self.worker is None:
            self.worker = self.start("worker", 0, self.owner.said["name"])
        try:
            return self.worker.run(case, **arguments)
        except WorkerGoneError:
            self.worker.close()
            self.worker = None
            raise

    def start(self, name: str, nbytes: int, owner: str) -> Worker:
        """Start a process that is connected."""
        log = self.folder / f"{name}.log"
        return Worker(self.python, self.env, log, self.master, str(nbytes), owner)

    def close(self) -> None:
        """End the processes."""
        for each in (self.worker, self.owner):
            if each is not None:
                each.close()


@contextlib.contextmanager
def moonpool_bed(folder: Path, lease_ms: int, **keys: object) -> Iterator[Bed]:
    """Run moonpool's master and its own ``mooncake`` package. ``keys``: of its configuration."""
    env = {**environment(), "PYTHONPATH": str(SHIM), "OMP_NUM_THREADS": "1"}
    with ExitStack() as stack:
        daemon = Daemon("master", folder, host="127.0.0.1", port=0, http_port=0)
        daemon.keys |= {"kv_lease_s": lease_ms / 1000, **keys}
        master = stack.enter_context(daemon)
        bed = Bed(sys.executable, env, folder, f"127.0.0.1:{master.ready['port']}")
        bed.daemon = daemon
        bed.admin = f"http://127.0.0.1:{master.ready['http_port']}"
        stack.callback(bed.close)
        yield bed


@contextlib.contextmanager
def mooncake_bed(folder: Path, lease_ms: int, *more: str) -> Iterator[Bed]:
    """Run the wheel's master, with more flags, and the wheel."""
    kept = {k: v for k, v in environment().items() if k not in ("PYTHONPATH", "VIRTUAL_ENV")}
    env = {**kept, "GLOG_minloglevel": "2", "MC_YLT_LOG_LEVEL": "error", "OMP_NUM_THREADS": "1"}
    where = "import mooncake; print(list(mooncake.__path__)[0])"
    found = subprocess.run([REAL, "-c", where], env=env, capture_output=True, text=True, check=True)
    port, metrics = free_port(), free_port()
    flags = f"--port={port}", f"--metrics_port={metrics}", f"--default_kv_lease_ttl={lease_ms}"
    with ExitStack() as stack:
        log = stack.enter_context((folder / "master.log").open("wb"))
        master = subprocess.Popen(
            [Path(found.stdout.strip()) / "mooncake_master", *flags, *more],
            stdin=subprocess.DEVNULL,
            stdout=log,
            stderr=log,
            env=env,
        )
        stack.callback(master.wait)
        stack.callback(master.kill)
        until_open(port)
        bed = Bed(REAL, env, folder, f"127.0.0.1:{port}", admin=f"http://127.0.0.1:{metrics}")
        stack.callback(bed.close)
        yield bed


def free_port() -> int:
    """Return a port that nobody uses at the moment."""
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return int(probe.getsockname()[1])


def until_open(port: int) -> None:
    """Wait until somebody listens at a port."""
    deadline = time.monotonic() + START_S
    while time.monotonic() < deadline:
        with contextlib.suppress(OSError):
            socket.create_connection(("127.0.0.1", port), 1.0).close()
            return
        time.sleep(0.05)
    raise AssertionError(f"nobody listens at port {port}")


def cases(*modules: str) -> list[str]:
    """Return the names of the cases in some modules, in their order; nothing is imported."""
    found = []
    for module in modules:
        tree = ast.parse((HERE / "cases" / f"{module}.py").read_text())
        names = [each.name for each in tree.body if isinstance(each, ast.FunctionDef)]
        found += [f"{module}.{n.removeprefix('case_')}" for n in names if n.startswith("case_")]
    return found
