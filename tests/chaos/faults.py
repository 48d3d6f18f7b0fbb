"""Carrying faults out: each has a begin and an end."""

from __future__ import annotations

import contextlib
import errno
import os
import random
import signal
import time
from collections.abc import Callable
from pathlib import Path

from moonpool import MoonpoolError, Store
from tests.chaos.cluster import CLIENT_HOSTS, MASTERS, ClientProcess, Cluster
from tests.chaos.plan import Fault
from tests.integration.processes import Daemon

End = Callable[[], None]
GAP_S = 0.5
"""Between the begins of faults that come together."""
FLIPS = 12
FILL_BYTES = 1 << 20


class Faults:
    """Does to a cluster what a plan says. ``stopped``: (client, from, to) of clients that were
    stopped, as of time.monotonic: what their calls took meanwhile is nobody's fault."""

    def __init__(self, cluster: Cluster, store: Store) -> None:
        self._cluster = cluster
        self._store = store
        self._hosts = cluster.hosts
        self.stopped: list[tuple[int, float, float]] = []

    def carry_out(self, act: tuple[Fault, ...]) -> None:
        """Begin and end an act's faults, then put right whatever is not yet."""
        ends: list[tuple[float, End]] = []
        started = time.monotonic()
        for i, fault in enumerate(act):
            self._wait(started + i * GAP_S, ends)
            ends.append((time.monotonic() + fault.seconds, self._begin(fault)))
        self._wait(float("inf"), ends)
        self.put_right()

    def _wait(self, until: float, ends: list[tuple[float, End]]) -> None:
        """Sleep until then and end what ends meanwhile; without end, until all has ended."""
        while ends and min(ends)[0] <= until:
            ends.sort(key=lambda each: each[0])
            at, end = ends.pop(0)
            time.sleep(max(0.0, at - time.monotonic()))
            end()
        if until != float("inf"):
            time.sleep(max(0.0, until - time.monotonic()))

    def put_right(self) -> None:
        """Heal the network, let everything run, start what is down."""
        self._hosts.heal()
        cluster = self._cluster
        for each in cluster.processes():
            if each not in cluster.down:
                with contextlib.suppress(ProcessLookupError):
                    os.kill(each.process.pid, signal.SIGCONT)
        if cluster.etcd is not None and cluster.etcd.process is None:
            cluster.etcd.start()
        cluster.start(*cluster.processes())

    # --- each kind ------------------------------------------------------------------------------

    def _begin(self, fault: Fault) -> End:
        verb, _, what = fault.kind.partition(" ")
        if fault.kind in ("delay", "loss", "delay and loss"):
            return self._slow(fault)
        if what in ("etcd", "leader from etcd"):
            return self._etcd(fault)
        if verb == "fill":
            return self._fill()
        if fault.kind == "drain node":
            return self._drain(f"n{fault.target}")
        if verb in ("corrupt", "reboot", "drain"):
            return self._damage(fault)
        some = self._chosen(what, fault.target)
        if verb == "kill":
            self._cluster.kill(*some)
            return lambda: self._cluster.start(*some)
        if verb == "stop":
            return self._stop(some[0])
        return self._cut(self._host_of(what, fault.target, some[0]))

    def _chosen(self, what: str, target: int) -> list[Daemon | ClientProcess]:
        cluster = self._cluster
        found: dict[str, list[Daemon | ClientProcess]] = {
            "client": [cluster.clients[target]],
            "node": [cluster.nodes[target % len(cluster.nodes)]],
            "masters": [*cluster.masters],
            "nodes and clients": [*cluster.nodes, *cluster.clients],
            "everything": cluster.processes(),
        }
        return found[what] if what in found else [cluster.leader()]

    def _host_of(self, what: str, target: int, one: Daemon | ClientProcess) -> int:
        if what == "client":
            return CLIENT_HOSTS[target]
        if what == "node":
            return MASTERS + target
        return next(i for i, each in enumerate(self._cluster.masters) if each is one)

    def _stop(self, one: Daemon | ClientProcess) -> End:
        began = time.monotonic()
        with contextlib.suppress(ProcessLookupError):
            os.kill(one.process.pid, signal.SIGSTOP)

        def go_on() -> None:
            with contextlib.suppress(ProcessLookupError):
                os.kill(one.process.pid, signal.SIGCONT)
            if isinstance(one, ClientProcess):
                self.stopped.append((one.number, began, time.monotonic()))

        return go_on

    def _cut(self, host: int) -> End:
        self._hosts.cut(host)
        return self._hosts.heal

    def _slow(self, fault: Fault) -> End:
        chance = random.Random(fault.seed)
        delay_s = chance.uniform(0.005, 0.08) if "delay" in fault.kind else 0.0
        loss = chance.uniform(0.01, 0.2) if "loss" in fault.kind else 0.0
        host = chance.choice([0, *range(MASTERS, self._hosts.count + 1)])
        self._hosts.slow(host, delay_s, loss)
        return lambda: self._hosts.slow(host, 0.0, 0.0)

    def _etcd(self, fault: Fault) -> End:
        etcd = self._cluster.etcd
        assert etcd is not None
        if fault.kind == "stop etcd":
            etcd.freeze()
            return etcd.thaw
        if fault.kind == "kill etcd":
            etcd.end()
            return lambda: None
        leader = self._host_of("leader", 0, self._cluster.leader())
        self._hosts.cut(leader, [self._hosts.count])
        return self._hosts.heal

    def _drain(self, node: str) -> End:
        """Have a node drained for a while; whoever settles ends what could not be ended here."""

        def drain(on: bool) -> None:
            with contextlib.suppress(MoonpoolError):
                self._store.drain_node(node, on)

        drain(True)
        return lambda: drain(False)

    def _fill(self) -> End:
        """Take what is left of the disk, as somebody else's files would."""
        filler = self._cluster.disk() / "filler"
        with filler.open("wb", buffering=0) as file:
            try:
                while True:
                    file.write(bytes(FILL_BYTES))
            except OSError as error:
                if error.errno != errno.ENOSPC:
                    raise
        return filler.unlink

    def _damage(self, fault: Fault) -> End:
        """Damage what a node left behind when it was killed, or lose its memory."""
        cluster, node = self._cluster, self._cluster.nodes[fault.target]
        cluster.kill(node)
        chance = random.Random(fault.seed)
        segments = list(cluster.segment_dir(fault.target).glob("*.seg"))
        if "reboot" in fault.kind:
            for path in cluster.segment_dir(fault.target).iterdir():
                path.unlink()
        elif fault.kind == "corrupt segment":
            flip(segments, chance, FLIPS)
        elif fault.kind == "corrupt header":
            for path in segments:
                break_header(path, chance)
        else:
            flip([p for p in cluster.disk().glob("ssd/*/*.*") if p.stat().st_size], chance, FLIPS)
        return lambda: cluster.start(node)


def break_header(path: Path, chance: random.Random) -> None:
    """Invert a byte of a segment's header, or cut the file short."""
    if chance.random() < 0.5:
        os.truncate(path, chance.randrange(path.stat().st_size))
        return
    with path.open("r+b") as file:
        at = chance.randrange(4096)
        file.seek(at)
        byte = file.read(1)
        file.seek(at)
        file.write(bytes([byte[0] ^ 1 << chance.randrange(8)]))


def flip(paths: list[Path], chance: random.Random, count: int) -> None:
    """Invert bytes at random places of files, half of them among the first 64 KiB or what is of
    it: headers and tables are there."""
    for path in paths:
        size = path.stat().st_size
        with path.open("r+b") as file:
            for i in range(count):
                # The header stays: without it the whole segment is made anew.
                low = min(4096, size // 2) if path.suffix == ".seg" else 0
                at = chance.randrange(low, size if i % 2 else min(size, 1 << 20))
                file.seek(at)
                byte = file.read(1)
                file.seek(at)
                file.write(bytes([byte[0] ^ 0xFF]))
