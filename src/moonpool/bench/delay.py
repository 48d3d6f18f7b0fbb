"""Two network namespaces with a delay between them, carried by a small relay in user space.

For kernels without ``netem``: each namespace has a TUN device whose packets this process holds for
the delay and then hands to the other. The MTU is large, so that Python keeps up. Needs root,
``/dev/net/tun`` and ``ip``.
"""

from __future__ import annotations

import contextlib
import fcntl
import os
import select
import struct
import subprocess
import sys
import threading
import time
from collections import deque
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

MTU = 65_000
TUNSETIFF = 0x400454CA
IFF_TUN, IFF_NO_PI = 0x0001, 0x1000
QUEUE_BYTES_MAX = 64 * 1024 * 1024
"""Packets on the way in one direction; more are dropped, as a router does."""
READS_PER_TURN = 64
COMMAND_S = 10.0


@dataclass(frozen=True, slots=True)
class Link:
    """Two namespaces that reach each other at these addresses, ``delay_s`` each way."""

    near: str
    far: str
    near_address: str
    far_address: str
    delay_s: float

    def inside(self, namespace: str, command: Sequence[str]) -> list[str]:
        """Return a command that runs another one in one of the namespaces."""
        return ["ip", "netns", "exec", namespace, *command]


def why_not() -> str:
    """Return why there can be no such link here; empty if there can."""
    if os.geteuid() != 0:
        return "namespaces need root"
    if not Path("/dev/net/tun").exists():
        return "there is no /dev/net/tun"
    try:
        made = subprocess.run(["ip", "netns", "list"], capture_output=True, timeout=COMMAND_S)
    except OSError:
        return "there is no ip command"
    return "" if made.returncode == 0 else made.stderr.decode().strip()


@contextmanager
def delayed(delay_s: float, name: str = "") -> Iterator[Link]:
    """Run a link for the length of a ``with`` block; ``delay_s`` in each direction.

    Raises OSError, subprocess.CalledProcessError.
    """
    name = name or f"mp{os.getpid() % 100_000}"
    link = Link(f"{name}a", f"{name}b", "10.213.0.1", "10.213.0.2", delay_s)
    with contextlib.ExitStack() as stack:
        for namespace in (link.near, link.far):
            _ip("netns", "add", namespace)
            stack.callback(_ip, "netns", "delete", namespace)
        ends = [_device(f"{name}{side}") for side in "ab"]
        for end in ends:
            stack.callback(os.close, end)
        sides = ((link.near, link.near_address), (link.far, link.far_address))
        for (namespace, address), device in zip(sides, (f"{name}a", f"{name}b"), strict=True):
            _ip("link", "set", device, "netns", namespace)
            inside = ("-n", namespace)
            _ip(*inside, "address", "add", f"{address}/24", "dev", device)
            _ip(*inside, "link", "set", device, "mtu", str(MTU), "txqueuelen", "10000", "up")
            _ip(*inside, "link", "set", "lo", "up")
        relay = subprocess.Popen(
            [sys.executable, str(Path(__file__).resolve()), *map(str, ends), str(delay_s)],
            pass_fds=ends,
            stdin=subprocess.PIPE,
        )
        stack.callback(_end, relay)
        yield link


def relay(near: int, far: int, delay_s: float, stop: int) -> None:
    """Hand packets from each device to the other after the delay, until ``stop`` is readable."""
    ways = [_Way(near, far, delay_s), _Way(far, near, delay_s)]
    ended = threading.Event()
    threads = [threading.Thread(target=way.run, args=(ended,)) for way in ways]
    for thread in threads:
        thread.start()
    select.select([stop], [], [])
    ended.set()
    for thread in threads:
        thread.join()


class _Way:
    """One direction: packets in order, each due at its own moment."""

    def __init__(self, source: int, target: int, delay_s: float) -> None:
        self._source, self._target, self._delay_s = source, target, delay_s
        self._queue: deque[tuple[float, bytes]] = deque()
        self._nbytes = 0

    def run(self, ended: threading.Event) -> None:
        poll = select.poll()
        poll.register(self._source, select.POLLIN)
        while not ended.is_set():
            wait_s = self._queue[0][0] - time.monotonic() if self._queue else 0.2
            if (wait_s > 0 and poll.poll(min(wait_s, 0.2) * 1000)) or wait_s <= 0:
                self._take()
            self._hand_on()

    def _take(self) -> None:
        for _ in range(READS_PER_TURN):
            try:
                packet = os.read(self._source, MTU + 100)
            except BlockingIOError:
                return
            if self._nbytes + len(packet) <= QUEUE_BYTES_MAX:
                self._queue.append((time.monotonic() + self._delay_s, packet))
                self._nbytes += len(packet)

    def _hand_on(self) -> None:
        now = time.monotonic()
        while self._queue and self._queue[0][0] <= now:
            packet = self._queue.popleft()[1]
            self._nbytes -= len(packet)
            with contextlib.suppress(OSError):  # the device is full or down: a lost packet
                os.write(self._target, packet)


def _device(name: str) -> int:
    device = os.open("/dev/net/tun", os.O_RDWR | os.O_NONBLOCK | os.O_CLOEXEC)
    try:
        fcntl.ioctl(device, TUNSETIFF, struct.pack("16sH22x", name.encode(), IFF_TUN | IFF_NO_PI))
    except OSError:
        os.close(device)
        raise
    return device


def _ip(*arguments: str) -> None:
    subprocess.run(["ip", *arguments], check=True, capture_output=True, timeout=COMMAND_S)


def _end(child: subprocess.Popen[bytes]) -> None:
    if child.stdin is not None:
        child.stdin.close()
    try:
        child.wait(COMMAND_S)
    except subprocess.TimeoutExpired:
        child.kill()
        child.wait()


if __name__ == "__main__":
    relay(int(sys.argv[1]), int(sys.argv[2]), float(sys.argv[3]), sys.stdin.fileno())
