"""Hosts of a network of their own: namespaces on one bridge, cut and healed by tests."""

from __future__ import annotations

import os
import shutil
import subprocess
import uuid
from typing import Self

import pytest


def _can() -> bool:
    if os.geteuid() or shutil.which("ip") is None:
        return False
    name = f"mp{uuid.uuid4().hex[:8]}"
    made = subprocess.run(["ip", "netns", "add", name], capture_output=True, check=False)
    if made.returncode:
        return False
    return not subprocess.run(
        ["ip", "netns", "del", name], capture_output=True, check=False
    ).returncode


needs_namespaces = pytest.mark.skipif(
    not _can(), reason="network namespaces cannot be made here (root and iproute2 are needed)"
)


def _ip(*words: str) -> None:
    done = subprocess.run(["ip", *words], capture_output=True, text=True, check=False)
    assert done.returncode == 0, f"ip {' '.join(words)}: {done.stderr}"


class Hosts:
    """A bridge with two addresses of this side, and hosts in namespaces on it.

    ``here`` and ``there`` are this side's; host i has ``address(i)``.
    """

    def __init__(self, count: int) -> None:
        mark = uuid.uuid4().hex[:6]
        third = int(mark[:2], 16)
        self._net = f"10.213.{third}"
        self._bridge = f"mp{mark}"
        self._names = [f"mp{mark}-{i}" for i in range(count)]
        self._links = [f"mp{mark}{i}" for i in range(count)]
        self.here = f"{self._net}.1"
        self.there = f"{self._net}.2"

    def address(self, host: int) -> str:
        """Return a host's address."""
        return f"{self._net}.{host + 11}"

    def command(self, host: int) -> tuple[str, ...]:
        """Return what runs a command on a host."""
        return ("ip", "netns", "exec", self._names[host])

    def __enter__(self) -> Self:
        try:
            _ip("link", "add", self._bridge, "type", "bridge")
            for address in (self.here, self.there):
                _ip("addr", "add", f"{address}/24", "dev", self._bridge)
            _ip("link", "set", self._bridge, "up")
            for host, (name, link) in enumerate(zip(self._names, self._links, strict=True)):
                _ip("netns", "add", name)
                _ip("link", "add", link, "type", "veth", "peer", "name", "eth0", "netns", name)
                _ip("link", "set", link, "master", self._bridge, "up")
                _ip("-n", name, "addr", "add", f"{self.address(host)}/24", "dev", "eth0")
                _ip("-n", name, "link", "set", "eth0", "up")
                _ip("-n", name, "link", "set", "lo", "up")
        except BaseException:
            self.__exit__()
            raise
        return self

    def __exit__(self, *_: object) -> None:
        for name in self._names:
            subprocess.run(["ip", "netns", "del", name], capture_output=True, check=False)
        for link in [*self._links, self._bridge]:
            subprocess.run(["ip", "link", "del", link], capture_output=True, check=False)

    def cut(self, host: int) -> None:
        """Let nothing to or from a host through; nobody is told."""
        _ip("link", "set", self._links[host], "nomaster")

    def heal(self, host: int) -> None:
        """Undo ``cut``."""
        _ip("link", "set", self._links[host], "master", self._bridge)

    def cut_from(self, host: int, address: str) -> None:
        """Drop what a host sends to one address."""
        _ip("-n", self._names[host], "route", "add", "blackhole", f"{address}/32")

    def heal_from(self, host: int, address: str) -> None:
        """Undo ``cut_from``."""
        _ip("-n", self._names[host], "route", "del", "blackhole", f"{address}/32")
