"""Rounds, one after the other: a cluster, its clients, what goes wrong, and what must hold."""

from __future__ import annotations

import json
import shutil
import tempfile
import time
import traceback
from collections.abc import Callable
from pathlib import Path

from moonpool import MoonpoolError, Store
from tests.chaos.checks import HangWatch, Promises, asked, damage, leaks
from tests.chaos.cluster import HOSTS, Cluster, name_of
from tests.chaos.faults import Faults
from tests.chaos.hosts import Hosts
from tests.chaos.plan import ACTS, Fault, Round, plan
from tests.chaos.report import Report
from tests.integration import etcd, processes
from tests.integration.etcd import ETCD

Say = Callable[[str], None]
DAMAGES = (
    "corrupt segment",
    "corrupt header",
    "corrupt disk",
    "reboot node",
    "drain and reboot node",
)
WARM_S = 3.0
START_S = 180.0


class Chaos:
    """A run of a seed; ``report`` grows with each round."""

    def __init__(self, seed: int, say: Say, folder: Path | None = None) -> None:
        self.report = Report(seed)
        self._say = say
        self._folder = folder or Path(tempfile.mkdtemp(prefix="chaos-"))
        self._began = time.monotonic()
        # Twelve processes start at once, on a machine that may do much else.
        processes.START_S = etcd.START_S = START_S

    def run(self, minutes: float, acts: int = ACTS) -> Report:
        """Run rounds until so many minutes are over; the last act under way is ended."""
        number, until = 0, self._began + 60 * minutes
        while time.monotonic() < until:
            self._try(plan(self.report.seed, number, etcd=ETCD is not None, acts=acts), until)
            number += 1
        if self.report.good:
            shutil.rmtree(self._folder, ignore_errors=True)
        else:
            self._say(f"logs are in {self._folder}")
        return self.report

    def _try(self, round_: Round, until: float) -> None:
        """Run one round; what breaks it off is a finding, and the next begins."""
        try:
            self.round(round_, until)
        except Exception:  # noqa: BLE001 - whatever it is, it is told
            text = " | ".join(traceback.format_exc().strip().splitlines()[-6:])
            self.report.find("other", [f"round {round_.number} broke off: {text}"])
            self._say(f"round {round_.number} broke off: {text}")

    def round(self, round_: Round, until: float = float("inf")) -> None:
        """Run one round."""
        self._say("\n".join(round_.lines()))
        before = {kind: len(texts) for kind, texts in self.report.found.items()}
        folder = self._folder / f"round-{round_.number}"
        folder.mkdir(parents=True)
        with Hosts(HOSTS) as hosts, Cluster(folder, hosts, round_) as cluster:
            with Store.connect(cluster.pool, transports=("tcp",), timeout_s=5.0) as store:
                _Round(self.report, cluster, store, self._say).run(until)
            self.report.rounds += 1
            self.report.seconds = time.monotonic() - self._began
        self._say(f"round {round_.number} ended: {json.dumps(self.report.as_json()['found'])}")
        for kind, texts in self.report.found.items():
            for text in texts[before.get(kind, 0) :]:
                self._say(f"  {kind}: {text}")


class _Round:
    """One round under way."""

    def __init__(self, report: Report, cluster: Cluster, store: Store, say: Say) -> None:
        self._report, self._cluster, self._store, self._say = report, cluster, store, say
        self._faults = Faults(cluster, store)
        self._promises = Promises(cluster, store)

    def run(self, until: float) -> None:
        watch = HangWatch(self._cluster, self._faults)
        watch.start()
        try:
            self._promises.settle("at the start", lambda gone: not gone)
            time.sleep(WARM_S)
            for number, act in enumerate(self._cluster.round.acts, 1):
                self._act(number, act)
                if time.monotonic() > until:
                    break
        finally:
            watch.stop()
            self._cluster.kill(*self._cluster.clients)
        self._report.find("hangs", watch.hangs)
        self._end()

    def _act(self, number: int, act: tuple[Fault, ...]) -> None:
        what = " + ".join(fault.kind for fault in act)
        text = f"round {self._cluster.round.number}, {number}. {what}"
        if act[0].kind in DAMAGES:
            took = damage(self._cluster, self._promises, self._faults, act[0])
        else:
            self._faults.carry_out(act)
            took = self._promises.settle(text, lambda gone: not gone)
        self._say(f"  {number}. {what}: " + ("not whole" if took is None else f"{took:.2f} s"))
        self._report.acts += 1
        for fault in act:
            self._report.faults[fault.kind] += 1
        if took is not None:
            self._report.settled_s[what if len(act) == 1 else "two at once"].append(took)
        self._look_after(text)

    def _look_after(self, text: str) -> None:
        """Note who died by itself, and remove what clients could not."""
        died = [
            each
            for each in self._cluster.processes()
            if each not in self._cluster.down and each.process.poll() is not None
        ]
        for each in died:
            self._report.find("died", [f"{text}: {name_of(each)}, {each.process.returncode}"])
            self._cluster.down.add(each)
            self._cluster.start(each)
        try:
            if not self._cluster.round.tight:
                self._promises.sweep()
        except MoonpoolError as error:
            self._report.find("other", [f"{text}: {error!r}"])

    def _end(self) -> None:
        """Check what can be checked when nobody works any more."""
        report, cluster, promises = self._report, self._cluster, self._promises
        evicted = asked(self._store.status).counters.get("evicted_objects", 0)
        if evicted and not cluster.round.tight:
            report.find("other", [f"{evicted} objects were evicted where there is room for all"])
        promises.settle("at the end", lambda gone: not gone)
        promises.read_all()
        report.find("leaks", leaks(self._store))
        report.find("lost", promises.lost)
        report.find("wrong", [text for text in promises.faults if text.startswith("wrong")])
        report.find("other", [text for text in promises.faults if not text.startswith("wrong")])
        for client in cluster.clients:
            report.add(client.tally.counts(), client.tally.slowest_s())
            report.kept += len(client.kept())
            for text in client.findings():
                report.find("wrong" if ": wrong:" in text else "other", [text])
        for each in [*cluster.masters, *cluster.nodes]:
            for line in each.text().splitlines():
                if "Traceback" in line or "a bug" in line:
                    report.find("other", [f"{name_of(each)}: {line}"])
        report.checked += promises.checked
