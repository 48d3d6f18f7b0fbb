"""The processes of a benchmark of the router: stand-in engines, moonpool's router, a peer's."""

from __future__ import annotations

import contextlib
import json
import os
import select
import socket
import subprocess
import sys
import tempfile
import time
import urllib.request
from collections.abc import Iterator, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from pathlib import Path

from moonpool.errors import MoonpoolError

START_S = 90.0
STOP_S = 10.0


@dataclass(frozen=True, slots=True)
class Target:
    """What a load is sent to; pid 0: the load's own engines, with no router before them."""

    name: str
    port: int
    pid: int = 0


def raise_priority(pid: int) -> None:
    """Let this process's own niceness count for a session of another: where the kernel groups
    processes by session, it does not by itself."""
    with contextlib.suppress(OSError):
        Path(f"/proc/{pid}/autogroup").write_text(str(os.getpriority(os.PRIO_PROCESS, 0)))


def cores() -> tuple[int, int]:
    """Return the core for routers, and the one for the load and the engines."""
    allowed = sorted(os.sched_getaffinity(0))
    return allowed[-1], allowed[0]


@contextmanager
def engines(count: int, root: Path, core: int, interval_ms: float = 0.0) -> Iterator[list[int]]:
    """Run stand-in engines in one process; give their ports."""
    command = [sys.executable, "-m", "moonpool.bench.router_engine", f"--engines={count}"]
    command += [f"--root={root}", f"--interval-ms={interval_ms}"]
    with _process(command, core, stdout=subprocess.PIPE) as process:
        assert process.stdout is not None
        ready, _, _ = select.select([process.stdout], [], [], START_S)
        line = process.stdout.readline() if ready else b""
        if not line:
            raise MoonpoolError("the stand-in engines did not start")
        yield json.loads(line)


@contextmanager
def moonpool(ports: Sequence[int], core: int, *flags: str) -> Iterator[Target]:
    """Run moonpool's router before the engines."""
    port = free_port()
    command = [sys.executable, "-m", "moonpool.cli", "router", f"--port={port}", *flags]
    for each in ports:
        command += ["--instance", f"http://127.0.0.1:{each}"]
    with _router("moonpool router", command, port, core) as target:
        _until_known(target)
        yield target


@contextmanager
def peer(program: str, ports: Sequence[int], core: int, policy: str) -> Iterator[Target]:
    """Run vllm-router before the engines."""
    port = free_port()
    urls = [f"http://127.0.0.1:{each}" for each in ports]
    command = [program, f"--port={port}", f"--policy={policy}", "--log-level=error"]
    command += [f"--prometheus-port={free_port()}", "--worker-urls", *urls]
    with _router(f"vllm-router ({policy})", command, port, core) as target:
        yield target


@contextmanager
def _router(name: str, command: list[str], port: int, core: int) -> Iterator[Target]:
    with ExitStack() as stack:
        place = Path(stack.enter_context(tempfile.TemporaryDirectory(prefix="moonpool-bench-")))
        log = stack.enter_context((place / "log").open("wb"))
        process = stack.enter_context(_process(command, core, stdout=log, stderr=log))
        deadline = time.monotonic() + START_S
        while not _answers(port):
            if process.poll() is not None or time.monotonic() > deadline:
                said = (place / "log").read_text(errors="replace").strip()[-500:]
                raise MoonpoolError(f"{name} did not start: {said}")
            time.sleep(0.1)
        yield Target(name, port, process.pid)


def _answers(port: int) -> bool:
    try:
        with urllib.request.urlopen(f"http://127.0.0.1:{port}/health", timeout=2) as found:
            return bool(found.status == 200)
    except (OSError, ValueError):
        return False


def _until_known(target: Target) -> None:
    """Wait until prompts are known as tokens: the tokenizer has been loaded."""
    deadline = time.monotonic() + START_S
    url = f"http://127.0.0.1:{target.port}/status"
    while time.monotonic() < deadline:
        # On a busy machine an answer may take longer than anybody waits for it.
        with contextlib.suppress(OSError), urllib.request.urlopen(url, timeout=5) as found:
            if json.load(found)["prompts"]["kind"] == "local":
                return
        time.sleep(0.2)
    raise MoonpoolError("moonpool router does not know prompts as tokens")


@contextmanager
def _process(command: list[str], core: int, **pipes: object) -> Iterator[subprocess.Popen[bytes]]:
    pinned = ["taskset", "-c", str(core), *command]
    environment = {**os.environ, "TOKENIZERS_PARALLELISM": "false"}
    process: subprocess.Popen[bytes] = subprocess.Popen(  # type: ignore[call-overload]
        pinned, stdin=subprocess.DEVNULL, env=environment, start_new_session=True, **pipes
    )
    raise_priority(process.pid)
    try:
        yield process
    finally:
        process.terminate()
        try:
            process.wait(STOP_S)
        except subprocess.TimeoutExpired:
            process.kill()
            process.wait()


def free_port() -> int:
    """Return a port that nothing listens on at this moment."""
    with socket.create_server(("127.0.0.1", 0)) as sock:
        return int(sock.getsockname()[1])
