"""Hosts on the wire: made, cut, slowed down, started again, removed."""

from __future__ import annotations

import contextlib
import json
import os
import shutil
import subprocess
import sys
import uuid
from pathlib import Path
from typing import Self

from tests.chaos.wire import MTU, device

COMMAND_S = 20.0
SHM_BYTES = 512 << 20
DISK = "/mnt"
"""Where a host has its disk, a small filesystem in memory."""


def why_not() -> str:
    """Return why there can be no hosts here; empty if there can."""
    if os.geteuid():
        return "network namespaces need root"
    if not Path("/dev/net/tun").exists():
        return "there is no /dev/net/tun"
    if missing := [each for each in ("ip", "nsenter", "mount") if shutil.which(each) is None]:
        return f"there is no {' and no '.join(missing)} command"
    name = f"mpc{uuid.uuid4().hex[:8]}"
    try:
        with Hosts(1, name):
            return ""
    except (OSError, subprocess.CalledProcessError, AssertionError) as error:
        return f"namespaces cannot be made here: {error}"


class Hosts:
    """Hosts 0 to ``count`` - 1, and this side as host ``count``; all reach one another."""

    def __init__(self, count: int, name: str = "", disk_bytes: int = 64 << 20) -> None:
        self.count = count
        self._name = name or f"mpc{uuid.uuid4().hex[:6]}"
        self._disk_bytes = disk_bytes
        self._net = f"10.214.{int(uuid.uuid4().hex[:2], 16)}"
        self._anchors: list[subprocess.Popen[str]] = []
        self._stack = contextlib.ExitStack()
        self._cut: set[tuple[int, int]] = set()
        self._wire: subprocess.Popen[bytes]

    def address(self, host: int) -> str:
        """Return a host's address."""
        return f"{self._net}.{host + 10}"

    def command(self, host: int) -> tuple[str, ...]:
        """Return what runs a command on a host; none for this side."""
        if host == self.count:
            return ()
        return ("nsenter", f"--target={self._anchors[host].pid}", "--mount", "--net", "--")

    def path(self, host: int, path: str | Path) -> Path:
        """Return where this side finds a file of a host."""
        return Path(f"/proc/{self._anchors[host].pid}/root/{str(path).lstrip('/')}")

    # --- life -----------------------------------------------------------------------------------

    def __enter__(self) -> Self:
        try:
            ends = [self._device(host) for host in range(self.count + 1)]
            for host in range(self.count):
                self._anchors.append(self._anchor(host))
            addresses = ",".join(map(self.address, range(self.count + 1)))
            words = [",".join(map(str, ends)), addresses, "0"]
            self._wire = subprocess.Popen(
                [sys.executable, "-m", "tests.chaos.wire", *words],
                pass_fds=ends,
                stdin=subprocess.PIPE,
            )
            self._stack.callback(_end, self._wire)
        except BaseException:
            self._stack.close()
            raise
        return self

    def __exit__(self, *_: object) -> None:
        self._stack.close()

    @property
    def died(self) -> bool:
        """Whether the network itself has broken down."""
        return self._wire.poll() is not None

    def _device(self, host: int) -> int:
        name = f"{self._name}{host}"
        end = device(name)
        self._stack.callback(os.close, end)
        inside: tuple[str, ...] = ()
        if host < self.count:
            _run("ip", "netns", "add", name)
            self._stack.callback(_run, "ip", "netns", "delete", name)
            _run("ip", "link", "set", name, "netns", name)
            inside = ("-n", name)
            _run("ip", *inside, "link", "set", "lo", "up")
        _run("ip", *inside, "address", "add", f"{self.address(host)}/24", "dev", name)
        _run("ip", *inside, "link", "set", name, "mtu", str(MTU), "txqueuelen", "5000", "up")
        return end

    def _anchor(self, host: int) -> subprocess.Popen[str]:
        """Start the process that keeps a host's namespaces, with memory and a disk of its own."""
        mounts = f"mount -t tmpfs -o size={SHM_BYTES} shm /dev/shm"
        mounts += f" && mount -t tmpfs -o size={self._disk_bytes} disk {DISK}"
        anchor = subprocess.Popen(
            ["ip", "netns", "exec", f"{self._name}{host}", "sh", "-c", f"{mounts} && exec cat"],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
        )
        self._stack.callback(_end, anchor)
        assert anchor.stdin is not None
        assert anchor.stdout is not None
        anchor.stdin.write("up\n")
        anchor.stdin.flush()
        assert anchor.stdout.readline() == "up\n", "a host has no memory or disk of its own"
        return anchor

    # --- the network ----------------------------------------------------------------------------

    def slow(self, host: int, delay_s: float, loss: float) -> None:
        """Delay each packet to and from a host, and lose a share of them; 0, 0 ends it."""
        self._tell({"host": host, "delay_s": delay_s, "loss": loss})

    def cut(self, host: int, others: list[int] | None = None) -> None:
        """Let nothing through between a host and others, or all."""
        rest = [each for each in range(self.count + 1) if each != host]
        self._cut |= {(host, each) for each in (rest if others is None else others)}
        self._tell({"cut": sorted(self._cut)})

    def heal(self) -> None:
        """End all cuts, delays and losses."""
        self._cut.clear()
        self._tell({"cut": []})
        for host in range(self.count + 1):
            self.slow(host, 0.0, 0.0)

    def _tell(self, order: dict[str, object]) -> None:
        assert self._wire.stdin is not None
        self._wire.stdin.write(json.dumps(order).encode() + b"\n")
        self._wire.stdin.flush()


def _run(*words: str) -> None:
    subprocess.run(words, check=True, capture_output=True, timeout=COMMAND_S)


def _end(child: subprocess.Popen[bytes] | subprocess.Popen[str]) -> None:
    for pipe in (child.stdin, child.stdout):
        if pipe is not None:
            pipe.close()
    try:
        child.wait(COMMAND_S)
    except subprocess.TimeoutExpired:
        child.kill()
        child.wait()
