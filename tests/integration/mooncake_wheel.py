"""Mooncake's real wheel, where it is to be had: its master, a segment, programs over its client.

It may be installed beside moonpool, or elsewhere for the interpreter MOONCAKE_PYTHON, which must be
of the same version: then its package alone is lent to our interpreter.
"""

from __future__ import annotations

import contextlib
import importlib.util
import os
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path

from tests.integration.mooncake_shim import answers, free_port
from tests.integration.processes import environment

ROOT = Path(__file__).resolve().parents[2]
START_S = 60.0
OWNER = """
import sys
from mooncake.store import MooncakeDistributedStore
store = MooncakeDistributedStore()
code = store.setup("127.0.0.1", "P2PHANDSHAKE", int(sys.argv[2]), 16 << 20, "tcp", "", sys.argv[1])
print("code", code, flush=True)
sys.stdin.readline()
store.close()
"""


def package() -> Path | None:
    """Return the directory of the wheel's package, None if there is none."""
    python = os.environ.get("MOONCAKE_PYTHON")
    if python:
        code = "import mooncake.store, sys; print(sys.version_info[:2], mooncake.__path__[0])"
        asked = subprocess.run(
            [python, "-c", code], capture_output=True, text=True, timeout=60, check=False
        )
        version, _, found = asked.stdout.strip().rpartition(" ")
        return Path(found) if version == str(sys.version_info[:2]) else None
    spec = importlib.util.find_spec("mooncake")
    where = list(spec.submodule_search_locations or ()) if spec is not None else []
    return Path(where[0]) if where and (Path(where[0]) / "mooncake_master").exists() else None


WHEEL = package()
REASON = (
    "Mooncake's wheel (mooncake-transfer-engine-non-cuda, with libibverbs1) is missing: install it "
    "beside moonpool, or name an interpreter of the same version that has it in MOONCAKE_PYTHON"
)


def lent(folder: Path) -> str:
    """Return a directory in ``folder`` that has the wheel's package and nothing else."""
    assert WHEEL is not None
    alone = folder / "wheel"
    if not alone.exists():
        alone.mkdir()
        (alone / "mooncake").symlink_to(WHEEL)
    return str(alone)


class Cluster:
    """A real ``mooncake_master`` and a process that owns a segment."""

    def __init__(self, folder: Path, nbytes: int = 256 << 20, *flags: str) -> None:
        self.folder = folder
        self.port, self.admin_port = free_port(), free_port()
        self._nbytes = nbytes
        self._flags = flags
        self._stack = contextlib.ExitStack()

    @property
    def address(self) -> str:
        """The master's host:port."""
        return f"127.0.0.1:{self.port}"

    def environment(self, **more: str) -> dict[str, str]:
        """Return the environment of a program that uses the cluster as its pool."""
        env = environment() | {
            "PYTHONPATH": f"{lent(self.folder)}:{ROOT / 'src'}:{ROOT}",
            "MOONPOOL_ENGINE": "mooncake",
            "MOONPOOL_MASTER": self.address,
            "MOONPOOL_CLIENT_MOONCAKE_ADMIN": f"127.0.0.1:{self.admin_port}",
            "GLOG_minloglevel": "2",
        }
        return env | more

    def __enter__(self) -> Cluster:
        assert WHEEL is not None
        ports = f"--port={self.port}", f"--metrics_port={self.admin_port}"
        self._start([str(WHEEL / "mooncake_master"), *ports, *self._flags])
        deadline = time.monotonic() + START_S
        while not answers(f"http://127.0.0.1:{self.admin_port}/health"):
            assert time.monotonic() < deadline
            time.sleep(0.05)
        owner = self._start([sys.executable, "-c", OWNER, self.address, str(self._nbytes)])
        assert owner.stdout is not None
        assert owner.stdout.readline() == b"code 0\n"
        return self

    def _start(self, command: list[str]) -> subprocess.Popen[bytes]:
        log = self._stack.enter_context((self.folder / f"{Path(command[0]).name}.log").open("wb"))
        process = subprocess.Popen(
            command,
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE if command[0] == sys.executable else log,
            stderr=log,
            env=self.environment(),
        )
        self._stack.callback(_end, process)
        return process

    def __exit__(self, *_: object) -> None:
        self._stack.close()

    def run(
        self, *arguments: str, data: bytes = b"", timeout_s: float = 100.0, **env: str
    ) -> subprocess.CompletedProcess[bytes]:
        """Run ``python ARGUMENTS`` on the cluster."""
        return subprocess.run(
            [sys.executable, *arguments],
            input=data,
            capture_output=True,
            env=self.environment(**env),
            timeout=timeout_s,
            check=False,
        )


def _end(process: subprocess.Popen[bytes]) -> None:
    process.terminate()
    try:
        process.wait(20)
    except subprocess.TimeoutExpired:
        process.kill()
        process.wait()
    for pipe in (process.stdin, process.stdout):
        if pipe is not None:
            pipe.close()


@contextlib.contextmanager
def cluster(folder: Path, *flags: str) -> Iterator[Cluster]:
    """Run a cluster."""
    with Cluster(folder, 256 << 20, *flags) as running:
        yield running
