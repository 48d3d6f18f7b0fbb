"""The segment that a program of the Mooncake API lends: a node in a process of its own.

The node ends, and its memory goes, when the program closes it or is gone, however that happened:
the pipe that the program holds is closed then. A process of its own serves others while the
program computes, holds its interpreter's lock or is stopped in a debugger.
"""

from __future__ import annotations

import contextlib
import json
import os
import secrets
import select
import shutil
import signal
import socket
import subprocess
import sys
import tempfile
import threading
import time
from dataclasses import dataclass
from pathlib import Path

from moonpool.errors import InvalidArgumentError, MoonpoolError, TransferError
from moonpool.transport.layout import Geometry

START_S = 60.0
STOP_S = 15.0
POLL_S = 0.01
READY = "ready"
PARENT_S = 1.0
PORT_MIN, PORT_MAX = 12_300, 14_300
TRIES = 20
SMALL = 256 << 20
LARGE = 4 << 30


@dataclass
class Lent:
    """A running node; its name is ``host:port``, under which others find it."""

    name: str
    nbytes: int
    process: subprocess.Popen[bytes]
    place: Path

    def close(self) -> None:
        """End the node and give its memory back. Idempotent."""
        if self.process.stdin is not None:
            with contextlib.suppress(OSError):
                self.process.stdin.close()
        try:
            self.process.wait(STOP_S)
        except subprocess.TimeoutExpired:
            self.process.kill()
            self.process.wait()
        shutil.rmtree(self.place, ignore_errors=True)


def pick_name(hostname: str) -> str:
    """Return ``host:port`` for a host name with or without a port. Raises InvalidArgumentError."""
    host, colon, port = hostname.rpartition(":")
    if colon and port.isdecimal() and host and 0 < int(port) < 1 << 16:
        return hostname
    if not hostname or "/" in hostname:
        raise InvalidArgumentError(f"local_hostname: {hostname!r} names no host")
    low = _port("MC_STORE_CLIENT_MIN_PORT", PORT_MIN)
    high = _port("MC_STORE_CLIENT_MAX_PORT", PORT_MAX)
    for _ in range(TRIES):
        # Not the program's own chance: engines seed it all alike, and start together.
        number = min(low, high) + secrets.randbelow(abs(high - low) + 1)
        with socket.socket() as probe, contextlib.suppress(OSError):
            probe.bind(("", number))
            return f"{hostname}:{number}"
    raise TransferError(f"no free port from {low} to {high}")


def _port(variable: str, default: int) -> int:
    value = os.environ.get(variable, "")
    return int(value) if value.isdecimal() and 0 < int(value) < 1 << 16 else default


def lend(name: str, nbytes: int, master: str) -> Lent:
    """Start a node that gives so many bytes to the pool of a master; it is mounted on return.

    Raises MoonpoolError with what the node said.
    """
    # The node says that it is ready each time that it finds a master: the folder stays, and is
    # removed by the node at its end.
    place = Path(tempfile.mkdtemp(prefix="moonpool-lend-"))
    ready, log = place / READY, place / "log"
    settings = {**_settings(name, nbytes), "master": master, "ready_file": str(ready)}
    try:
        with log.open("wb") as out:
            process = subprocess.Popen(
                [sys.executable, "-m", "moonpool.compat.lending", json.dumps(settings)],
                stdin=subprocess.PIPE,
                stdout=out,
                stderr=out,
                start_new_session=True,
            )
    except BaseException:
        shutil.rmtree(place, ignore_errors=True)
        raise
    lent = Lent(name, nbytes, process, place)
    deadline = time.monotonic() + START_S
    try:
        while not ready.exists():
            if process.poll() is not None or time.monotonic() > deadline:
                raise MoonpoolError(f"the segment cannot be lent: {_last_line(log)}")
            time.sleep(POLL_S)
    except BaseException:
        lent.close()
        raise
    return lent


def _settings(name: str, nbytes: int) -> dict[str, object]:
    host, _, port = name.rpartition(":")
    per_slot = (4 if nbytes <= SMALL else 16 if nbytes <= LARGE else 64) << 10
    total = Geometry.holding(nbytes, per_slot=per_slot).total_bytes
    while Geometry.within(total, per_slot=per_slot).data_bytes < nbytes:
        total += 4096
    return {
        "name": name,
        "host": host if _is_here(host) else "0.0.0.0",
        "port": int(port),
        "advertise": name,
        "size": total,
        "object_size": per_slot,
    }


def _is_here(host: str) -> bool:
    with socket.socket() as probe:
        try:
            probe.bind((host, 0))
        except OSError:
            return False
    return True


def _last_line(log: Path) -> str:
    lines = log.read_text(errors="replace").strip().splitlines()
    return lines[-1] if lines else "the node said nothing"


def main(settings: str) -> None:
    """Run the node until the other end of standard input is closed."""
    from moonpool.config import NodeConfig, load
    from moonpool.node.daemon import run

    signal.signal(signal.SIGINT, signal.SIG_IGN)
    threading.Thread(target=_end_with_parent, args=(os.getppid(),), daemon=True).start()
    config = load(NodeConfig, flags=json.loads(settings))
    try:
        run(config)
    except BaseException:
        # Somebody may want to read the log.
        Path(config.ready_file).unlink(missing_ok=True)
        raise
    shutil.rmtree(Path(config.ready_file).parent, ignore_errors=True)


def _end_with_parent(parent: int) -> None:
    """Wait until the pipe is closed, or the parent is gone and only its forks still hold it."""
    with contextlib.suppress(OSError):
        while os.getppid() == parent:
            if select.select([0], [], [], PARENT_S)[0] and not os.read(0, 4096):
                break
    os.kill(os.getpid(), signal.SIGTERM)


if __name__ == "__main__":
    main(sys.argv[1])
