"""The processes of a round: etcd, masters, nodes and clients, each on its host."""

from __future__ import annotations

import contextlib
import json
import os
import signal
import subprocess
import sys
import uuid
from pathlib import Path
from typing import Any, Self

from tests.chaos.hosts import DISK, Hosts
from tests.chaos.plan import CLIENTS, DISK_NODE, NODES, Round
from tests.chaos.tally import Tally
from tests.integration.etcd import Etcd
from tests.integration.processes import Daemon, Master, Node, environment

MASTERS = 3
HOSTS = MASTERS + NODES + 1
"""The masters' (a node's or a client's host is not one of these), the nodes', and one of clients
only."""
CLIENT_HOSTS = (MASTERS, MASTERS + DISK_NODE, HOSTS - 1, 0)
"""Where clients run: on two of the nodes' hosts, on one of their own, and beside a master."""
SEGMENTS = "/dev/shm/chaos-segments"
ROOT = Path(__file__).resolve().parents[2]
ROOMY, TIGHT = "64MB", "12MB"
KEPT = 100
KEEP_EVERY_S = 0.4
TALKS = 18
"""What each client keeps, and how many conversations of it there are: all of it fits into one
node, so that a pool that is not tight evicts nothing, whichever nodes are away."""


class ClientProcess:
    """A client; started again it goes on counting."""

    def __init__(self, folder: Path, number: int, hosts: Hosts, options: dict[str, Any]) -> None:
        self.number = number
        self.host = CLIENT_HOSTS[number]
        self.ledger = folder / f"client-{number}.ledger"
        self.log = folder / f"client-{number}.log"
        self.tally = Tally(Path(options["tallies"][number]))
        self._command = hosts.command(self.host)
        ways = ["shm", "tcp"] if self.host != HOSTS - 1 else ["tcp"]
        own = {"number": number, "ledger": str(self.ledger), "transports": ways}
        self._options = json.dumps(options | own)
        self.process: subprocess.Popen[bytes]

    def spawn(self) -> None:
        """Start it."""
        self.tally.drop()
        with self.log.open("ab") as log:
            self.process = subprocess.Popen(
                [*self._command, sys.executable, "-m", "tests.chaos.client", self._options],
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=log,
                env=_environment(),
            )

    def kept(self) -> list[int]:
        """Return the numbers of what it was promised."""
        return [int(line) for line in self._lines() if line.isdecimal()]

    def findings(self) -> list[str]:
        """Return what it has found wrong."""
        return [line[2:] for line in self._lines() if line.startswith("! ")]

    def _lines(self) -> list[str]:
        return self.ledger.read_text().splitlines() if self.ledger.exists() else []


class Cluster:
    """A round's processes. ``down``: those that are not to run now."""

    def __init__(self, folder: Path, hosts: Hosts, round_: Round) -> None:
        self.hosts = hosts
        self.round = round_
        self.down: set[object] = set()
        self._said: dict[object, int] = {}
        self._stack = contextlib.ExitStack()
        several = round_.masters > 1
        self.etcd = Etcd(folder, hosts.address(hosts.count)) if several else None
        self._ha = f"etcd://{self.etcd.address}/{uuid.uuid4().hex}" if self.etcd else ""
        self.masters = [self._master(folder, host) for host in range(round_.masters)]
        self.nodes: list[Node] = []
        self.clients: list[ClientProcess] = []
        self._folder = folder

    def __enter__(self) -> Self:
        with contextlib.ExitStack() as stack:
            if self.etcd is not None:
                stack.enter_context(self.etcd)
            for master in self.masters:
                master.spawn()
                stack.callback(_kill, master)
            for master in self.masters:
                master.wait()
            self.nodes = [self._node(number) for number in range(NODES)]
            for node in self.nodes:
                node.spawn()
                stack.callback(_kill, node)
            for node in self.nodes:
                node.wait()
            self._stack = stack.pop_all()
        self.clients = [self._client(number) for number in range(CLIENTS)]
        for client in self.clients:
            client.spawn()
            self._stack.callback(_kill, client)
        return self

    def __exit__(self, *_: object) -> None:
        self._stack.close()

    def _master(self, folder: Path, host: int) -> Master:
        keys: dict[str, object] = {"ha": self._ha} if self._ha else {}
        master = Master(folder, host=self.hosts.address(host), put_timeout_s=5.0, **keys)
        master.prefix = self.hosts.command(host)
        return master

    def _node(self, number: int) -> Node:
        host = MASTERS + number
        keys: dict[str, object] = {
            "host": self.hosts.address(host),
            "segment_dir": SEGMENTS,
            "size": TIGHT if self.round.tight else ROOMY,
            "object_size": "16KB",
        }
        if self._ha:
            keys["ha"] = self._ha
        if number == DISK_NODE:
            keys |= {"ssd": f"{DISK}/ssd", "ssd_size": "40MB", "ssd_policy": self.round.policy}
        node = Node(self._folder, self.masters[0], f"n{number}", **keys)
        node.prefix = self.hosts.command(host)
        return node

    def _client(self, number: int) -> ClientProcess:
        options = {
            "pool": self.pool,
            "tallies": [str(self._folder / f"client-{n}.tally") for n in range(CLIENTS)],
            "kept": 0 if self.round.tight else KEPT,
            "keep_every_s": KEEP_EVERY_S,
            "talks": 40 if self.round.tight else TALKS,
            "tight": self.round.tight,
        }
        return ClientProcess(self._folder, number, self.hosts, options)

    @property
    def pool(self) -> str:
        """Where the pool is found."""
        return self._ha or self.masters[0].address

    def leader(self) -> Master:
        """Return the master that leads, or led last."""
        if self.etcd is None:
            return self.masters[0]
        with contextlib.suppress(OSError, ValueError):
            raw = self.etcd.value(f"/moonpool/{self._ha.rpartition('/')[2]}/leader")
            address = json.loads(raw or b"{}").get("address")
            return next((m for m in self.masters if m.address == address), self.masters[0])
        return self.masters[0]

    # --- processes ------------------------------------------------------------------------------

    def processes(self) -> list[Daemon | ClientProcess]:
        """Return all of them but etcd."""
        return [*self.masters, *self.nodes, *self.clients]

    def kill(self, *some: Daemon | ClientProcess) -> None:
        """SIGKILL them, all at once; they stay down."""
        for each in some:
            self.down.add(each)
            with contextlib.suppress(ProcessLookupError):
                os.kill(each.process.pid, signal.SIGKILL)
        for each in some:
            each.process.wait(20)

    def start(self, *some: Daemon | ClientProcess) -> None:
        """Start what is down among them; nobody waits for it."""
        for each in some:
            if each in self.down:
                self.down.discard(each)
                self._said[each] = len(each.log.read_bytes())
                each.spawn()

    def up(self) -> bool:
        """Tell whether masters and nodes that were started have got so far that they serve."""
        return all(
            b"listens on" in new or b"serves at" in new
            for each in (*self.masters, *self.nodes)
            if each in self._said and each not in self.down
            for new in [each.log.read_bytes()[self._said[each] :]]
        )

    def segment_dir(self, node: int) -> Path:
        """Return where this side finds a node's segments."""
        return self.hosts.path(MASTERS + node, f"{SEGMENTS}/n{node}")

    def disk(self, node: int = DISK_NODE) -> Path:
        """Return where this side finds a node's disk."""
        return self.hosts.path(MASTERS + node, DISK)


def _environment() -> dict[str, str]:
    """Return the environment of a process that is started in another directory."""
    found = environment()
    path = [str(ROOT), *filter(None, [found.get("PYTHONPATH")])]
    return found | {"PYTHONPATH": os.pathsep.join(path), "OMP_NUM_THREADS": "1"}


def name_of(each: Daemon | ClientProcess) -> str:
    """Return a process's name for people."""
    if isinstance(each, ClientProcess):
        return f"client {each.number}"
    return str(each.keys.get("name", f"{each.role} {each.keys.get('host')}"))


def _kill(each: Daemon | ClientProcess) -> None:
    with contextlib.suppress(ProcessLookupError):
        each.process.kill()
    each.process.wait(20)
