"""Hosts of one machine, and the network between them as a process that delays, drops and cuts.

A host is a network namespace and a mount namespace with shared memory of its own. Its only link is
a TUN device, of which this process is the other end: it hands IP packets from one to another. For
kernels without ``netem``.
"""

from __future__ import annotations

import fcntl
import heapq
import json
import os
import random
import select
import struct
import sys
import time
from typing import Any

MTU = 32_000
TUNSETIFF = 0x400454CA
IFF_TUN, IFF_NO_PI = 0x0001, 0x1000
QUEUE_PACKETS_MAX = 20_000
READS_PER_TURN = 32
DESTINATION = slice(16, 20)
"""Where an IPv4 packet says to whom it goes."""


def device(name: str) -> int:
    """Make a TUN device; return the descriptor of this end. Raises OSError."""
    made = os.open("/dev/net/tun", os.O_RDWR | os.O_NONBLOCK | os.O_CLOEXEC)
    try:
        fcntl.ioctl(made, TUNSETIFF, struct.pack("16sH22x", name.encode(), IFF_TUN | IFF_NO_PI))
    except OSError:
        os.close(made)
        raise
    return made


class Switch:
    """Packets between hosts; ``ends`` are devices, in the order of ``addresses``."""

    def __init__(self, ends: list[int], addresses: list[bytes], seed: int) -> None:
        self._ends = ends
        self._host = {address: number for number, address in enumerate(addresses)}
        self._number = {end: number for number, end in enumerate(ends)}
        self._delay_s = [0.0] * len(ends)
        self._loss = [0.0] * len(ends)
        self._cut: set[tuple[int, int]] = set()
        self._chance = random.Random(seed)
        self._queue: list[tuple[float, int, int, bytes]] = []
        self._count = 0

    def tell(self, order: dict[str, Any]) -> None:
        """Set a host's delay and loss, or which pairs of hosts do not hear of one another."""
        if "host" in order:
            self._delay_s[order["host"]] = order["delay_s"]
            self._loss[order["host"]] = order["loss"]
        else:
            self._cut = {(a, b) for a, b in order["cut"]}

    def run(self, orders: int) -> None:
        """Hand packets on until ``orders``, of which JSON lines are read, ends."""
        poll = select.poll()
        for end in (*self._ends, orders):
            poll.register(end, select.POLLIN)
        text = b""
        while True:
            wait_s = self._queue[0][0] - time.monotonic() if self._queue else 1.0
            for ready, _ in poll.poll(min(max(wait_s, 0), 1.0) * 1000):
                if ready != orders:
                    self._take(ready)
                    continue
                said = os.read(orders, 65_536)
                if not said:
                    return
                *whole, text = (text + said).split(b"\n")
                for line in whole:
                    self.tell(json.loads(line))
            self._hand_on()

    def _take(self, end: int) -> None:
        source = self._number[end]
        for _ in range(READS_PER_TURN):
            try:
                packet = os.read(end, MTU + 100)
            except OSError:
                return
            target = self._host.get(packet[DESTINATION])
            if target is None or (source, target) in self._cut or (target, source) in self._cut:
                continue
            lost = max(self._loss[source], self._loss[target])
            if lost and self._chance.random() < lost:
                continue
            due_s = self._delay_s[source] + self._delay_s[target]
            if not due_s:
                self._write(target, packet)
            elif len(self._queue) < QUEUE_PACKETS_MAX:
                self._count += 1
                heapq.heappush(self._queue, (time.monotonic() + due_s, self._count, target, packet))

    def _hand_on(self) -> None:
        now = time.monotonic()
        while self._queue and self._queue[0][0] <= now:
            _, _, target, packet = heapq.heappop(self._queue)
            self._write(target, packet)

    def _write(self, target: int, packet: bytes) -> None:
        try:
            os.write(self._ends[target], packet)
        except OSError:
            return  # the device is full or down: a lost packet


def main() -> None:
    """Be the network: ``ENDS ADDRESSES SEED``, the first two with commas."""
    ends, addresses, seed = sys.argv[1:]
    packed = [bytes(map(int, each.split("."))) for each in addresses.split(",")]
    Switch([int(end) for end in ends.split(",")], packed, int(seed)).run(sys.stdin.fileno())


if __name__ == "__main__":
    main()
