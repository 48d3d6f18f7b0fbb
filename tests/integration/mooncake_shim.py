"""Mooncake's commands and modules as `moonpool compat env` gives them: real processes."""

from __future__ import annotations

import contextlib
import socket
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any
from urllib.request import urlopen

import moonpool.compat
from tests.integration.processes import environment

SHIM = Path(moonpool.compat.__file__).parent / "shim"
START_S = 60.0
STOP_S = 20.0


def shim_environment(**more: str) -> dict[str, str]:
    """Return the environment in which a program finds the shim."""
    env = environment() | {"MOONPOOL_PYTHON": sys.executable}
    env["PATH"] = f"{SHIM / 'bin'}:{env.get('PATH', '')}"
    source = str(Path(moonpool.compat.__file__).parents[2])
    env["PYTHONPATH"] = f"{SHIM}:{source}"
    return env | more


def free_port() -> int:
    """Return a port that nobody uses at the moment."""
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return int(probe.getsockname()[1])


@contextlib.contextmanager
def running(
    folder: Path, ready: Callable[[], bool], *command: str, **env: str
) -> Iterator[subprocess.Popen[bytes]]:
    """Run a command until the context ends; ``ready`` tells when it serves."""
    name = Path(command[0]).name
    log = folder / f"{name}-{time.monotonic_ns()}.log"
    with log.open("wb") as out:
        process = subprocess.Popen(
            command, stdin=subprocess.DEVNULL, stdout=out, stderr=out, env=shim_environment(**env)
        )
    try:
        deadline = time.monotonic() + START_S
        while not ready():
            assert process.poll() is None, f"{name}: {log.read_text()}"
            assert time.monotonic() < deadline, f"{name} is not ready: {log.read_text()}"
            time.sleep(0.05)
        yield process
    except BaseException:
        print(f"--- {name}\n{log.read_text(errors='replace')}")  # noqa: T201
        raise
    finally:
        process.terminate()
        try:
            process.wait(STOP_S)
        except subprocess.TimeoutExpired:
            process.kill()
            process.wait()
            raise


def answers(url: str) -> bool:
    """Tell whether a page can be had."""
    try:
        with urlopen(url, timeout=5) as reply:
            return bool(reply.status == 200)
    except OSError:
        return False


class MooncakeMaster:
    """``mooncake_master`` on free ports."""

    def __init__(self, folder: Path, *flags: str) -> None:
        self.folder = folder
        self.flags = flags
        self.port, self.http_port = free_port(), free_port()
        self._running: Any = None

    @property
    def address(self) -> str:
        """Where clients connect."""
        return f"127.0.0.1:{self.port}"

    def page(self, path: str) -> str:
        """Return a page of the admin side."""
        with urlopen(f"http://127.0.0.1:{self.http_port}{path}", timeout=10) as reply:
            return str(reply.read().decode())

    def __enter__(self) -> MooncakeMaster:
        self._running = running(
            self.folder,
            lambda: answers(f"http://127.0.0.1:{self.http_port}/health"),
            "mooncake_master",
            "--rpc_address=127.0.0.1",
            f"--port={self.port}",
            f"--metrics_port={self.http_port}",
            *self.flags,
        )
        self._running.__enter__()
        return self

    def __exit__(self, *error: Any) -> None:
        self._running.__exit__(*error)


def program(code: str, *arguments: str, **env: str) -> str:
    """Run a Python program under the shim; return what it prints."""
    done = subprocess.run(
        [sys.executable, "-c", code, *arguments],
        env=shim_environment(**env),
        capture_output=True,
        text=True,
        timeout=100,
        check=False,
    )
    assert done.returncode == 0, done.stderr + done.stdout
    return done.stdout
