"""Master and node as processes that tests kill, stop, start again and throw bytes at."""

import contextlib
import json
import os
import shutil
import signal
import subprocess
import sys
import time
import uuid
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any

from moonpool import Store
from moonpool.errors import MoonpoolError

ROOT = Path(__file__).resolve().parents[2]
START_S = 20.0


def environment() -> dict[str, str]:
    """Return this process's environment without settings of moonpool."""
    kept = {k: v for k, v in os.environ.items() if not k.startswith(("MOONPOOL", "MOONCAKE"))}
    return kept | {"PYTHONUNBUFFERED": "1"}


def eventually(check: Callable[[], object], within_s: float, what: str) -> float:
    """Wait until ``check`` holds and return how long it took; fail the test otherwise."""
    start = time.monotonic()
    while True:
        if check():
            return time.monotonic() - start
        if time.monotonic() - start > within_s:
            raise AssertionError(f"not within {within_s} s: {what}")
        time.sleep(0.02)


class Daemon:
    """One role's process. ``options`` are its configuration's keys."""

    def __init__(self, role: str, place: Path, options: dict[str, object]) -> None:
        self.role = role
        self.options = options
        self.ready_file = place / f"{role}-{uuid.uuid4().hex[:8]}.ready"
        self.log = self.ready_file.with_suffix(".log")
        self.ports: dict[str, Any] = {}
        self.process: subprocess.Popen[bytes] | None = None

    def spawn(self) -> None:
        """Start the process and do not wait for it."""
        self.ready_file.unlink(missing_ok=True)
        options = {**self.options, "ready_file": self.ready_file}
        with self.log.open("ab") as log:
            self.process = subprocess.Popen(
                [sys.executable, "-m", f"moonpool.{self.role}"]
                + [f"{key}={value}" for key, value in options.items()],
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=log,
                env=environment(),
                cwd=ROOT,
            )

    def wait_ready(self) -> None:
        """Wait until the ready file is there and read the ports from it."""
        process = self.process
        assert process is not None

        def ready() -> bool:
            if process.poll() is not None:
                raise AssertionError(f"{self.role} ended with {process.returncode}:\n{self.tail()}")
            with contextlib.suppress(OSError, ValueError):
                self.ports = json.loads(self.ready_file.read_text())
            return bool(self.ports)

        self.ports = {}
        eventually(ready, START_S, f"{self.role} ready")

    def start(self) -> "Daemon":
        """Start and wait until it serves."""
        self.spawn()
        self.wait_ready()
        return self

    @property
    def pid(self) -> int:
        """Return the process's id."""
        assert self.process is not None
        return self.process.pid

    @property
    def alive(self) -> bool:
        """Tell whether the process runs."""
        return self.process is not None and self.process.poll() is None

    def end(self, how: signal.Signals = signal.SIGKILL, within_s: float = 10.0) -> int:
        """Signal the process and wait for its end; return its exit status."""
        assert self.process is not None
        if self.process.poll() is None:
            self.process.send_signal(how)
        try:
            return self.process.wait(within_s)
        except subprocess.TimeoutExpired:
            self.process.kill()
            self.process.wait()
            raise AssertionError(f"{self.role} did not end within {within_s} s of {how}") from None

    def rss_bytes(self) -> int:
        """Return the anonymous memory that the process has resident."""
        for line in Path(f"/proc/{self.pid}/status").read_text().splitlines():
            if line.startswith("RssAnon:"):
                return int(line.split()[1]) * 1024
        raise AssertionError("no RssAnon")

    def tail(self) -> str:
        """Return the end of its log."""
        return self.log.read_text(errors="replace")[-3000:] if self.log.exists() else ""


class Cluster:
    """A master and nodes, with their own directory of segments."""

    def __init__(self, place: Path, **master: object) -> None:
        self.place = place
        self.segments = Path("/dev/shm") / f"moonpool-adv-{uuid.uuid4().hex[:12]}"
        self.segments.mkdir()
        self.nodes: dict[str, Daemon] = {}
        self.stores: list[Store] = []
        self.children: list[subprocess.Popen[str]] = []
        self.master = Daemon("master", place, {"port": 0, "http_port": 0, **master})

    def start_master(self) -> None:
        """Start the master; a second time on the same port."""
        self.master.start()
        self.master.options["port"] = self.master.ports["port"]

    def node(self, name: str, size: str = "64MB", **options: object) -> Daemon:
        """Make a node's process; it is not started."""
        daemon = Daemon(
            "node",
            self.place,
            {
                "name": name,
                "master": self.address,
                "port": 0,
                "size": size,
                "segment_dir": self.segments,
                **options,
            },
        )
        self.nodes[name] = daemon
        return daemon

    @property
    def address(self) -> str:
        """Return the master's host:port."""
        return f"127.0.0.1:{self.master.ports['port']}"

    def connect(self, **options: Any) -> Store:
        """Return a store that is closed with the cluster."""
        store = Store.connect(self.address, **options)
        self.stores.append(store)
        return store

    def worker(self, mode: str, **options: object) -> subprocess.Popen[str]:
        """Start a process of worker.py; its first line is read: it is up."""
        child = subprocess.Popen(
            [
                sys.executable,
                "-m",
                "tests.adversarial.worker",
                mode,
                json.dumps({"address": self.address, **options}),
            ],
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            text=True,
            env=environment(),
            cwd=ROOT,
        )
        self.children.append(child)
        return child

    def ready_nodes(self) -> int:
        """Return how many segments take puts."""
        return sum(s.ready for s in self.stores[0].status().segments)

    def heal(self) -> None:
        """Bring everything back, empty, after a test that may have failed half way."""
        if not self.master.alive:
            self.start_master()
        node = next(iter(self.nodes.values()))
        if not node.alive or not self.answers():
            node.end()
            shutil.rmtree(self.segments)
            self.segments.mkdir()
            node.start()
            eventually(self.answers, 10, "healed")
        self.stores[0].remove_all(force=True)

    def answers(self) -> bool:
        """Tell whether all nodes are there."""
        try:
            return self.ready_nodes() == len(self.nodes)
        except MoonpoolError:
            return False

    def segment_files(self) -> list[Path]:
        """Return the segment files there are."""
        return sorted(self.segments.rglob("*.seg"))

    def close(self) -> None:
        """Stop everything; nothing may be left in shared memory after a clean stop."""
        for store in self.stores:
            store.close()
        for child in self.children:
            child.kill()
            child.wait()
            if child.stdout is not None:
                child.stdout.close()
        clean = True
        for daemon in [*self.nodes.values(), self.master]:
            if daemon.process is None:
                continue
            clean = clean and daemon.alive
            if daemon.alive:
                with contextlib.suppress(ProcessLookupError):
                    os.kill(daemon.pid, signal.SIGCONT)
                daemon.end(signal.SIGTERM)
        left = self.segment_files()
        shutil.rmtree(self.segments, ignore_errors=True)
        if clean:
            assert not left, f"left in shared memory after a clean stop: {left}"


def first_line(child: subprocess.Popen[str]) -> str:
    """Return the next line of a worker's output."""
    assert child.stdout is not None
    return child.stdout.readline().strip()


@contextlib.contextmanager
def running(place: Path, nodes: Sequence[tuple[str, str]], **master: object) -> Iterator[Cluster]:
    """Run a cluster of a master and nodes of (name, size)."""
    cluster = Cluster(place, **master)
    try:
        cluster.start_master()
        for name, size in nodes:
            cluster.node(name, size).spawn()
        for daemon in cluster.nodes.values():
            daemon.wait_ready()
        cluster.connect(timeout_s=10.0)
        eventually(lambda: cluster.ready_nodes() == len(nodes), 10, "nodes announced")
        yield cluster
    finally:
        cluster.close()
