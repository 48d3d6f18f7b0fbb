"""The systems that are measured: servers, and client processes that talk to them."""

from __future__ import annotations

import os
import sys
import tempfile
import time
from collections.abc import Iterator, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import moonpool
from moonpool.bench.batch import Batch
from moonpool.bench.cluster import Cluster
from moonpool.bench.peers import Peer, PeerError, call_all, leave
from moonpool.bench.proc import Usage
from moonpool.bench.worker import Answer

START_S = 60.0
TOGETHER_S = 0.02
"""From the command until all processes begin."""
SYNCHRONOUS = ("put", "get", "exists", "lookup")
"""What several clients begin together."""
TUNED = {
    "MC_TCP_ENABLE_CONNECTION_POOL": "1",
    "MC_TCP_MAX_QUEUED_TRANSFERS_PER_PEER": "65535",
    "MC_TCP_MAX_PENDING_ADMISSIONS_PER_PEER": "65535",
    "MC_TCP_ADMISSION_TIMEOUT_MS": "60000",
    "MC_TCP_SLICE_SIZE": "1048576",
}
"""Without these, batches of many pieces end in code -800 after 60 s."""
TUNED_FROM_PIECES = 1024
"""Pieces in a batch from which they are needed; below, the wheel's own settings are as fast."""


BESIDE = ("Mooncake", "Mooncake, tuned")
"""How tables name it."""


@dataclass(frozen=True, slots=True)
class Placement:
    """Where servers listen, and the starts of the command lines of servers and clients."""

    host: str = "127.0.0.1"
    servers: Sequence[str] = ()
    clients: Sequence[str] = ()


HERE = Placement()


@dataclass(slots=True)
class System:
    """Running servers with their clients; ``roles`` has the ids of each role's processes."""

    name: str
    clients: list[Peer]
    roles: dict[str, list[int]]
    told: list[Answer] = field(default_factory=list)
    verified: int = 0
    mismatches: int = 0
    failure: str = ""
    beside: str = BESIDE[0]
    """How a table names it where it is compared with."""
    segments: Path = Path()

    @property
    def copies(self) -> str:
        """How a moonpool client copies."""
        return str(self.told[0].get("copies", "")) if self.told else ""

    def hold(self, batch: Batch) -> None:
        """Give each client memory and keys for a batch of its own. Raises PeerError."""
        for number, client in enumerate(self.clients):
            client.send("batch", batch=batch.as_json(), seed=number)
        for client in self.clients:
            client.receive()

    def ask(self, clients: Sequence[Peer], do: str, **arguments: Any) -> list[Answer]:
        """Let some of the clients do the same at once. Raises PeerError, from then on always."""
        if self.failure:
            raise PeerError(self.failure)
        if do in SYNCHRONOUS:
            arguments["at"] = time.monotonic() + TOGETHER_S
        try:
            answers = call_all(clients, do, **arguments)
        except PeerError as error:
            self.failure = str(error)
            for client in self.clients:  # They may be busy with it for another minute.
                client.kill()
            raise
        self.verified += sum(answer.get("verified", 0) for answer in answers)
        self.mismatches += sum(answer.get("mismatches", 0) for answer in answers)
        return answers

    def step(self, verb: str, usage: Usage | None = None) -> float:
        """Let all clients do the same at once; return the seconds from the first begin to the
        last end. Raises PeerError."""
        if usage:
            usage.begin()
        answers = self.ask(self.clients, verb)
        if usage:
            usage.end()
            usage.seconds["client"] += sum(answer["cpu"] for answer in answers)
        return float(max(a["end"] for a in answers) - min(a["begin"] for a in answers))

    def usage(self) -> Usage:
        """Return a meter of the servers' processor time; the clients' is in their answers."""
        usage = Usage({role: pids for role, pids in self.roles.items() if role != "client"})
        usage.seconds["client"] = 0.0
        return usage


@contextmanager
def moonpool_system(
    pool_bytes: int,
    *,
    transports: Sequence[str] = ("shm", "tcp"),
    clients: int = 1,
    checksums: bool = True,
    placement: Placement = HERE,
    **node: object,
) -> Iterator[System]:
    """Run a master, a node with so many bytes, and clients. Raises MoonpoolError."""
    with ExitStack() as stack:
        cluster = stack.enter_context(
            Cluster.start(pool_bytes, host=placement.host, prefix=placement.servers, **node)
        )
        place = Path(stack.enter_context(tempfile.TemporaryDirectory(prefix="moonpool-bench-")))
        peers = [
            _peer(
                stack,
                place,
                [*placement.clients, sys.executable],
                "peer_moonpool",
                f"moonpool client {i + 1}",
                {},
            )
            for i in range(clients)
        ]
        settings = {
            "address": cluster.master_address,
            "transports": list(transports),
            "checksums": checksums,
        }
        told = call_all(peers, "connect", within_s=START_S, settings=settings)
        roles = {
            "client": [peer.pid for peer in peers],
            "node": [cluster.node_pid],
            "master": [cluster.master_pid],
        }
        stack.callback(leave, peers)
        yield System("moonpool", peers, roles, told, segments=cluster.segments)


@contextmanager
def mooncake_system(
    python: str, pool_bytes: int, *, clients: int = 1, tuned: bool = False
) -> Iterator[System]:
    """Run Mooncake's master, an owner of so many bytes, and clients. Raises PeerError."""
    env = TUNED if tuned else {}
    with _of_mooncake("Mooncake", python, env, pool_bytes, clients) as system:
        system.beside = BESIDE[tuned]
        yield system


@contextmanager
def compat_system(pool_bytes: int, *, clients: int = 1) -> Iterator[System]:
    """Run the same programs under what ``moonpool compat env`` exports. Raises PeerError."""
    shim = Path(moonpool.__file__).parent / "compat" / "shim"
    env = {
        "PYTHONPATH": str(shim),
        "PATH": os.pathsep.join((str(shim / "bin"), os.environ.get("PATH", os.defpath))),
        "MOONPOOL_PYTHON": sys.executable,
    }
    with _of_mooncake("moonpool", sys.executable, env, pool_bytes, clients) as system:
        yield system


@contextmanager
def _of_mooncake(
    name: str, python: str, env: dict[str, str], pool_bytes: int, clients: int
) -> Iterator[System]:
    with ExitStack() as stack:
        place = Path(stack.enter_context(tempfile.TemporaryDirectory(prefix="moonpool-bench-")))
        owner = _peer(stack, place, [python], "peer_mooncake", f"{name}'s owner", env)
        told = owner.call("own", nbytes=pool_bytes, within_s=START_S)
        peers = [
            _peer(stack, place, [python], "peer_mooncake", f"{name} client {i + 1}", env)
            for i in range(clients)
        ]
        call_all(peers, "connect", within_s=START_S, settings={"address": told["address"]})
        roles = {
            "client": [peer.pid for peer in peers],
            "node": [owner.pid],
            "master": [told["master_pid"]],
        }
        stack.callback(leave, peers)
        yield System(name, peers, roles)


def _peer(
    stack: ExitStack,
    place: Path,
    python: Sequence[str],
    module: str,
    name: str,
    env: dict[str, str],
) -> Peer:
    command = [*python, "-m", f"moonpool.bench.{module}"]
    log = place / f"{name.replace(' ', '-')}.log"
    try:
        peer = Peer(name, command, _environment(place, env), log)
    except OSError as error:
        raise PeerError(f"{python[-1]}: {error.strerror}") from None
    stack.callback(peer.close)
    return peer


def _environment(place: Path, more: dict[str, str]) -> dict[str, str]:
    """Return the environment of a client process: it finds this package, and nothing beside it."""
    only = place / "path"
    if not only.exists():
        only.mkdir()
        (only / "moonpool").symlink_to(Path(moonpool.__file__).parent)
    kept = {k: v for k, v in os.environ.items() if not k.startswith(("MOONPOOL_", "MC_"))}
    found = os.pathsep.join(filter(None, (more.get("PYTHONPATH"), str(only))))
    return {**kept, "OMP_NUM_THREADS": "1", **more, "PYTHONPATH": found}
