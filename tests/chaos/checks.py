"""What has to hold: nothing promised is lost, no call hangs, no space leaks, nobody dies."""

from __future__ import annotations

import contextlib
import threading
import time
from collections.abc import Callable
from typing import Any, TypeVar

from moonpool import MoonpoolError, Store
from moonpool.core.keys import split
from tests.chaos.client import SPACE, kept_name
from tests.chaos.cluster import TALKS, Cluster
from tests.chaos.content import is_right
from tests.chaos.faults import FLIPS, Faults
from tests.chaos.plan import Fault

T = TypeVar("T")
HANG_S = 20.0
"""A call's deadlines are 2 s; the machine may be busy with other things."""
START_S = 180.0
SETTLE_S = 60.0
"""When all faults have ended and what was started is up, after so long all that was promised has
to be a hit again."""
MIB = 1 << 20


def until(check: Callable[[], bool], within_s: float) -> float | None:
    """Wait until a check holds; return how long it took, None if it does not in time."""
    started = time.monotonic()
    while True:
        with contextlib.suppress(MoonpoolError):
            if check():
                return time.monotonic() - started
        if time.monotonic() - started > within_s:
            return None
        time.sleep(0.05)


def asked(call: Callable[[], T]) -> T:
    """Return what a call returns, once it does: the machine may be slow. Raises MoonpoolError."""
    found: list[T] = []

    def answered() -> bool:
        found.append(call())
        return True

    return call() if until(answered, SETTLE_S) is None else found[0]


class Promises:
    """What has to stay: kept objects that were acknowledged, less what a fault may have cost."""

    def __init__(self, cluster: Cluster, store: Store) -> None:
        self._cluster = cluster
        self._store = store
        self._excused: set[bytes] = set()
        self._doubtful: set[bytes] = set()
        self.lost: list[str] = []
        self.faults: list[str] = []
        self.checked = 0

    def keys(self) -> list[bytes]:
        """Return the keys that have to be hits."""
        every = [kept_name(c.number, n) for c in self._cluster.clients for n in c.kept()]
        return [key for key in every if key not in self._excused]

    def pause(self, held: bool) -> None:
        """Let clients put nothing more, or again; returns when they know."""
        clients = [c for c in self._cluster.clients if c not in self._cluster.down]
        for client in clients:
            client.tally.holds = held
        before = [client.tally.under_way[2] for client in clients]

        def heard() -> bool:
            after = [client.tally.under_way[2] for client in clients]
            return all(b >= a + 2 for a, b in zip(before, after, strict=True))

        if held:
            until(heard, 10.0)

    def place(self) -> dict[bytes, tuple[list[str], str]]:
        """Return for each kept key the nodes that have it in memory, and the one on its disk."""
        return {
            info.key: ([name.rpartition("/")[0] for name in info.segments], info.disk)
            for info in asked(lambda: [*self._store.list(namespace=b"", prefix="kept-")])
        }

    def missing(self) -> list[bytes]:
        """Return the keys that should be hits and are not."""
        keys = self.keys()
        found = self._store.exists_batch(keys)
        return [key for key, there in zip(keys, found, strict=True) if not there]

    def settle(self, what: str, may_miss: Callable[[list[bytes]], bool]) -> float | None:
        """Wait until the pool is whole and all promises hold; note what is lost. Return after how
        many seconds, None if not. What the machine takes to start processes does not count."""
        if until(self._cluster.up, START_S) is None:
            self.faults.append(f"{what}: processes are not up after {START_S:.0f} s")

        def whole() -> bool:
            status = self._store.status()
            for each in status.drains:
                self._store.drain_node(each.node, on=False)
            ready = sum(segment.ready for segment in status.segments)
            return ready == len(self._cluster.nodes) and may_miss(self.missing())

        took = until(whole, SETTLE_S)
        if took is None:
            self._mourn(what, may_miss)
        self.checked += len(self.keys())
        return took

    def _mourn(self, what: str, may_miss: Callable[[list[bytes]], bool]) -> None:
        try:
            gone = self.missing()
        except MoonpoolError as error:
            self.faults.append(f"{what}: no pool after {SETTLE_S:.0f} s: {error!r}")
            return
        if may_miss(gone):
            self.faults.append(f"{what}: nodes are missing after {SETTLE_S:.0f} s")
        else:
            self.lost += [f"{what}: {key[1:].decode()}" for key in gone]
        self.excuse(gone)

    def excuse(self, keys: list[bytes]) -> None:
        """Expect some keys no more."""
        self._excused |= set(keys)

    def drain(self, node: str) -> bool:
        """Drain a node; tell whether it became empty, as it should."""

        def empty() -> bool:
            self._store.drain_node(node)
            return any(each.node == node and each.empty for each in self._store.status().drains)

        if until(empty, SETTLE_S) is None:
            left = [each for each in asked(self._store.status).drains if each.node == node]
            self.faults.append(f"{node} is not drained after {SETTLE_S:.0f} s: {left}")
            return False
        return True

    def doubt(self, keys: list[bytes]) -> None:
        """Take note that what a disk has of some keys may be damaged."""
        self._doubtful |= set(keys)

    def on_disk(self, key: bytes, disk: str) -> bool:
        """Tell whether an object can be had from a disk when its memory is lost."""
        return bool(disk) and key not in self._doubtful

    def read_all(self) -> None:
        """Read every promised object, and compare every byte."""
        keys = self.keys()
        for at in range(0, len(keys), 32):
            some = keys[at : at + 32]
            values: list[Any] = []

            def read(some: list[bytes] = some, values: list[Any] = values) -> bool:
                values[:] = self._store.get_batch(some)
                return None not in values

            until(read, SETTLE_S)
            for key, value in zip(some, values or [None] * len(some), strict=True):
                if value is None:
                    self.lost.append(f"at the end: {key[1:].decode()} cannot be read")
                elif not is_right(key, value):
                    self.faults.append(f"wrong: at the end, {key!r}")

    def sweep(self) -> None:
        """Remove conversations that their client wanted to remove and could not."""
        last = {c.number: c.tally.last(0) for c in self._cluster.clients}
        stale = []
        for info in asked(lambda: [*self._store.list(namespace=SPACE)]):
            name = split(info.key)[1]
            if int(name[4:12]) <= last[int(name[:4])] - TALKS - 1:
                stale.append(info.key)
        asked(lambda: self._store.remove_batch(stale, force=True))


def damage(cluster: Cluster, promises: Promises, faults: Faults, fault: Fault) -> float | None:
    """Carry out a fault that may cost objects, and check that it cost no more than it may."""
    promises.pause(True)
    try:
        if promises.settle("before damage", lambda gone: not gone) is None:
            return None
        node = f"n{fault.target}"
        drained = fault.kind == "drain and reboot node" and promises.drain(node)
        before = promises.place()
        faults.carry_out((fault,))
        here = {key for key, (nodes, _) in before.items() if nodes == [node]}
        if drained:
            here = set()
        elif fault.kind in ("reboot node", "corrupt header", "drain and reboot node"):
            # Only what its disk has, as it was written, can come back.
            promises.excuse([key for key in here if not promises.on_disk(key, before[key][1])])
            here = set()
        elif fault.kind == "corrupt disk":
            promises.doubt([key for key, (_, disk) in before.items() if disk == node])
        spared = FLIPS if fault.kind == "corrupt segment" else 0

        def may_miss(gone: list[bytes]) -> bool:
            doubts = list(cluster.segment_dir(fault.target).glob("*.doubt"))
            return not doubts and set(gone) <= here and len(gone) <= spared

        took = promises.settle(fault.kind, may_miss)
        after = promises.place()
        # A disk gives room up as it needs to: what is only there is promised no more.
        promises.excuse([key for key in before if not after.get(key, ([], ""))[0]])
        return took
    finally:
        promises.pause(False)


class HangWatch(threading.Thread):
    """Looks whether a client's call lasts longer than any may, and then ends the client."""

    def __init__(self, cluster: Cluster, faults: Faults) -> None:
        super().__init__(daemon=True)
        self._cluster, self._faults = cluster, faults
        self._ending = threading.Event()
        self.hangs: list[str] = []

    def run(self) -> None:
        told: set[tuple[int, int]] = set()
        while not self._ending.wait(0.5):
            for client in self._cluster.clients:
                kind, began, number = client.tally.under_way
                if not began or client in self._cluster.down or (client.number, number) in told:
                    continue
                stopped = sum(
                    max(0.0, last - max(first, began))
                    for who, first, last in list(self._faults.stopped)
                    if who == client.number
                )
                took = time.monotonic() - began - stopped
                if took > HANG_S:
                    told.add((client.number, number))
                    self.hangs.append(f"client {client.number}: {kind} for {took:.1f} s")

    def stop(self) -> None:
        """End it."""
        self._ending.set()
        self.join(5)


def leaks(store: Store) -> list[str]:
    """Return what space an idle pool does not have any more; it is empty afterwards."""
    found = []

    def idle() -> bool:
        status = store.status()
        pending = sum(segment.pending_bytes for segment in status.segments)
        return not (status.puts_in_progress or status.leases or pending)

    if until(idle, 60.0) is None:
        found.append(f"puts, leases or pending space of dead clients: {_summary(store)}")

    def empty() -> bool:
        store.remove_all(force=True)
        return not sum(segment.used_bytes for segment in store.status().segments)

    if until(empty, 30.0) is None:
        found.append(f"space is used in an empty pool: {_summary(store)}")
    total = sum(segment.info.data_bytes for segment in asked(store.status).segments)
    keys = [f"fill-{i}" for i in range(int(total * 0.9) // MIB)]
    value = bytes(MIB - 64)
    bad = [code for key in keys for code in store.put_batch([key], [value]) if code]
    there = asked(lambda: sum(store.exists_batch(keys)))
    if bad or there < len(keys):
        found.append(f"{there} of {len(keys)} MiB fit, codes {sorted(set(bad))}: {_summary(store)}")
    store.remove_all(force=True)
    return found


def _summary(store: Store) -> str:
    status = asked(store.status)
    used = [(s.info.node, s.used_bytes, s.pending_bytes, s.objects) for s in status.segments]
    return f"puts {status.puts_in_progress}, leases {status.leases}, {used}"
