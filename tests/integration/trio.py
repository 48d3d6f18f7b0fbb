"""Three masters that elect their leader, nodes, and clients that note who led in which epoch."""

from __future__ import annotations

import contextlib
import json
import re
import signal
import threading
import time
import uuid
from collections.abc import Iterator
from pathlib import Path
from typing import Self

from moonpool import MoonpoolError, Store
from moonpool.errors import MasterUnreachableError
from tests.integration.etcd import Etcd
from tests.integration.networks import Hosts
from tests.integration.processes import Master, Node, eventually, freeze, ready_segments

FAILOVER_S = 30.0
"""The bar is 5 s; this is for a machine that does much else."""
MOUNTED = re.compile(r"mounted at the master at (\S+), epoch (\d+)")
LEADS = re.compile(r"leads in epoch (\d+)")


def value_of(key: str) -> bytes:
    """Return the bytes of a key; no two keys' are equal."""
    return (key.encode() * 400)[:5000]


class Load:
    """A client that puts without end and reads back; what it was promised is checked later."""

    def __init__(self, where: str) -> None:
        self.acknowledged: list[str] = []
        self.led: set[tuple[int, str]] = set()
        self.wrong: list[str] = []
        self.slowest_s = 0.0
        self._where = where
        self._name = uuid.uuid4().hex
        self._stop = threading.Event()
        self._thread = threading.Thread(target=self._run)

    def _run(self) -> None:
        with Store.connect(self._where, name="load", timeout_s=2.0, put_timeout_s=1.0) as store:
            number = 0
            while not self._stop.wait(0.002):
                number += 1
                key = f"{self._name}-{number}"
                started = time.monotonic()
                with contextlib.suppress(MoonpoolError):
                    if store.put(key, value_of(key)):
                        self.acknowledged.append(key)
                with contextlib.suppress(MoonpoolError):
                    for past in self.acknowledged[-(number % 97) - 1 :][:1]:
                        if store.get(past) != value_of(past):
                            self.wrong.append(past)
                self.slowest_s = max(self.slowest_s, time.monotonic() - started)
                seeker = store._channel._seeker  # type: ignore[attr-defined]
                leader, epoch = seeker._leader, seeker.epoch
                if leader is not None:
                    self.led.add((epoch, f"{leader[0]}:{leader[1]}"))

    def __enter__(self) -> Self:
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self.stop()

    def stop(self) -> None:
        """Stop, and wait for the last call."""
        self._stop.set()
        self._thread.join(60)
        assert not self._thread.is_alive()


class Trio:
    """The masters and their nodes."""

    def __init__(self, etcd: Etcd, masters: list[Master], nodes: list[Node], ha: str) -> None:
        self.etcd = etcd
        self.masters = masters
        self.nodes = nodes
        self.ha = ha

    @property
    def list(self) -> str:
        """The masters' addresses."""
        return ",".join(each.address for each in self.masters)

    def record(self) -> dict[str, object]:
        """Return the election's record."""
        raw = self.etcd.value(f"/moonpool/{self.ha.rpartition('/')[2]}/leader")
        found: dict[str, object] = json.loads(raw or b"{}")
        return found

    def leader(self) -> Master:
        """Return the master that the record names."""
        address = self.record().get("address")
        return next(each for each in self.masters if each.address == address)

    def restore(self) -> None:
        """Let all masters run again."""
        for each in self.masters:
            if each.process.poll() is None:
                thaw(each)
            else:
                each.spawn()
        for each in self.masters:
            each.wait()

    def await_leader(self, store: Store, above: int = 0) -> int:
        """Wait until a leader of an epoch above serves all nodes; return its epoch."""
        found: list[int] = []

        def serves() -> bool:
            with contextlib.suppress(MoonpoolError):
                epoch = store.status().epoch
                if epoch > above and ready_segments(store) == len(self.nodes):
                    found.append(epoch)
            return bool(found)

        eventually("a new leader serves", serves, FAILOVER_S)
        return found[0]

    def check(self, *loads: Load) -> None:
        """Assert that nobody ever saw two leaders in one epoch, nor an epoch go back."""
        led = {pair for load in loads for pair in load.led}
        for master in self.masters:
            led |= {(int(epoch), master.address) for epoch in LEADS.findall(master.text())}
        for node in self.nodes:
            seen = [(int(epoch), where) for where, epoch in MOUNTED.findall(node.text())]
            assert [epoch for epoch, _ in seen] == sorted(epoch for epoch, _ in seen)
            led |= set(seen)
        assert len({epoch for epoch, _ in led}) == len(led), f"two led in one epoch: {sorted(led)}"
        for load in loads:
            assert load.wrong == []
        assert not any("Traceback" in each.text() for each in [*self.masters, *self.nodes])


def epoch_of(store: Store) -> int:
    """Return the leader's epoch; 0 if none answers."""
    with contextlib.suppress(MoonpoolError):
        return store.status().epoch
    return 0


def check_kept(store: Store, keys: list[str]) -> None:
    """Assert that every object that was acknowledged is there, byte for byte."""
    assert keys
    for first in range(0, len(keys), 500):
        part = keys[first : first + 500]
        for key, value in zip(part, _got(store, part), strict=True):
            assert value == value_of(key), f"{key} is lost or damaged"


def _got(store: Store, keys: list[str]) -> list[bytes | None]:
    """Read objects. A client may notice only now that a leader has gone, and follow."""
    deadline = time.monotonic() + FAILOVER_S
    while True:
        try:
            return store.get_batch(keys)
        except MasterUnreachableError:
            if time.monotonic() > deadline:
                raise
            time.sleep(0.1)


@contextlib.contextmanager
def trio(folder: Path, etcd: Etcd, nodes: int = 2, hosts: Hosts | None = None) -> Iterator[Trio]:
    """Run three masters, and nodes that are told the store and the masters in turn.

    hosts: where the masters run; the nodes are on this side of the bridge.
    """
    ha = f"etcd://{etcd.address}/{uuid.uuid4().hex}"
    with contextlib.ExitStack() as stack:
        masters = [Master(folder, ha=ha) for _ in range(3)]
        for number, each in enumerate(masters):
            if hosts is not None:
                each.prefix = hosts.command(number)
                each.keys["host"] = hosts.address(number)
            each.spawn()
            stack.push(each.__exit__)
        for each in masters:
            each.wait()
        found = Trio(etcd, masters, [], ha)
        for number in range(nodes):
            node = Node(folder, masters[0], f"n{number}")
            node.keys |= {"master": found.list} if number % 2 else {"ha": ha}
            if hosts is not None:
                node.keys["host"] = hosts.here
            found.nodes.append(node)
            node.spawn()
            stack.push(node.__exit__)
        for node in found.nodes:
            node.wait()
        yield found


def thaw(master: Master) -> None:
    """Let a frozen master go on."""
    master.process.send_signal(signal.SIGCONT)


__all__ = [
    "FAILOVER_S",
    "Load",
    "Trio",
    "check_kept",
    "epoch_of",
    "freeze",
    "thaw",
    "trio",
    "value_of",
]
