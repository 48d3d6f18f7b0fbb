"""How long a pool needs to know everything again after its master, or a node, was killed.

Clients look prefixes up throughout. The clock runs from the start of the new process until 95 % of
what they look up is there again, as it all was before.
"""

from __future__ import annotations

import json
import shutil
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from moonpool.bench.proc import cpu_s
from moonpool.client.store import Store
from moonpool.core.keys import pack
from moonpool.errors import ConfigError, MoonpoolError
from moonpool.transport.base import Pieces
from moonpool.transport.layout import ENTRY_BYTES, PAGE_BYTES

ROLES = ("master", "node")
START_S = 60.0
BACK_S = 120.0
ENOUGH = 0.95
CHAIN = 64
"""Objects in a prefix."""
SAMPLE = 40
"""Prefixes that are looked up each time."""
PUT_BYTES = 64 << 20
SPACE = b"bench-restart-00"
_SLACK = 1.1
"""A tenth more than the objects take: nothing is evicted below the high watermark, 95 %."""
_BESIDE_BYTES = 512 << 20
"""What the processes take beside the pool."""
_MEMINFO = Path("/proc/meminfo")


@dataclass(frozen=True, slots=True)
class Round:
    """Seconds since the start of the new process: until it served, and until all was known; and
    the processor seconds that both processes had used by then (the other one since the kill)."""

    serves_s: float
    back_s: float
    master_cpu_s: float
    node_cpu_s: float


class Service:
    """A master or a node that can be killed and started again on its port."""

    def __init__(self, place: Path, role: str, settings: dict[str, object]) -> None:
        self.role = role
        self.port = 0
        self._place, self._settings = place, settings
        self._ready = place / f"{role}.ready"
        self._child: subprocess.Popen[bytes] | None = None

    @property
    def pid(self) -> int:
        """The id of the running process."""
        return 0 if self._child is None else self._child.pid

    def start(self) -> None:
        """Start it; see ``wait``."""
        self._ready.unlink(missing_ok=True)
        command = [sys.executable, "-m", f"moonpool.{self.role}"]
        settings = self._settings | {"port": self.port, "ready_file": self._ready}
        with (self._place / f"{self.role}.log").open("ab") as log:
            self._child = subprocess.Popen(
                [*command, *(f"{key}={value}" for key, value in settings.items())],
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=log,
            )

    def serves(self) -> bool:
        """Tell whether it has said that it is ready. Raises MoonpoolError if it has ended."""
        if self._child is not None and self._child.poll() is not None:
            log = (self._place / f"{self.role}.log").read_text(errors="replace")
            raise MoonpoolError(f"the {self.role} has ended: {log[-2000:]}")
        return self._ready.exists()

    def wait(self) -> None:
        """Wait until it serves; from then on it keeps its port."""
        _until(f"the {self.role} serves", self.serves, START_S)
        self.port = int(json.loads(self._ready.read_text())["port"])

    def kill(self) -> None:
        """End it without any warning."""
        if self._child is not None:
            self._child.kill()
            self._child.wait()

    def end(self) -> None:
        """End it cleanly."""
        if self._child is not None:
            self._child.send_signal(signal.SIGTERM)
            try:
                self._child.wait(START_S)
            except subprocess.TimeoutExpired:
                self.kill()


def run(
    role: str,
    objects: int,
    object_bytes: int,
    segments: int,
    rounds: int,
    tell: Callable[[str], None] = lambda _text: None,
) -> list[Round]:
    """Measure; raise ConfigError for a role that there is not, MoonpoolError for what fails."""
    if role not in ROLES:
        raise ConfigError(f"role: {role!r} is not allowed; allowed: {', '.join(ROLES)}")
    _check_memory(objects * _room(object_bytes))
    with _pool(objects, object_bytes, segments) as (master, node, store):
        tell(f"puts {objects:,} objects of {object_bytes:,} bytes")
        chains = _fill(store, objects, object_bytes)
        _until("all is there", lambda: _hit(store, chains, np.arange(len(chains))) == 1.0, BACK_S)
        dies, stays = (master, node) if role == "master" else (node, master)
        found = []
        for number in range(rounds):
            tell(f"kills the {role}, round {number + 1} of {rounds}")
            found.append(_round(dies, stays, store, chains))
        return found


def _room(object_bytes: int) -> int:
    return -(-object_bytes // PAGE_BYTES) * PAGE_BYTES


def _check_memory(nbytes: int) -> None:
    """Raise ConfigError for objects that this machine's memory cannot hold now: they are in it
    once, in the node's shared memory."""
    fields = dict(line.split(":", 1) for line in _MEMINFO.read_text().splitlines())
    free = int(fields["MemAvailable"].split()[0]) * 1024 - _BESIDE_BYTES
    if nbytes > free:
        raise ConfigError(
            f"objects: they take {nbytes} bytes and {max(free, 0)} are free; fewer or smaller ones "
            "are allowed"
        )


@contextmanager
def _pool(
    objects: int, object_bytes: int, segments: int
) -> Iterator[tuple[Service, Service, Store]]:
    room = _room(object_bytes)
    # A segment's files hold its table and page owners as well.
    each = room + ENTRY_BYTES + 8 * (room // PAGE_BYTES)
    size = int(objects * each * _SLACK) + (64 << 20)
    with ExitStack() as stack:
        place = Path(stack.enter_context(tempfile.TemporaryDirectory(prefix="moonpool-bench-")))
        memory = Path(tempfile.mkdtemp(prefix="moonpool-bench-", dir="/dev/shm"))
        stack.callback(shutil.rmtree, memory, ignore_errors=True)
        master = Service(place, "master", {"http_port": 0})
        stack.callback(master.end)
        master.start()
        master.wait()
        settings = {
            "touch_ahead": False,
            "size": size,
            "segment_size": -(-size // segments),
            "object_size": room,
        }
        address = f"127.0.0.1:{master.port}"
        node = Service(
            place, "node", {"master": address, "name": "n", "segment_dir": memory} | settings
        )
        stack.callback(node.end)
        node.start()
        node.wait()
        store = stack.enter_context(Store.connect(address, put_timeout_s=BACK_S))
        yield master, node, store


def _fill(store: Store, objects: int, object_bytes: int) -> list[bytes]:
    """Put chains of objects; return their digests."""
    names = np.random.default_rng(7).bytes(16 * objects)
    step = max(CHAIN, min(8192, PUT_BYTES // object_bytes) // CHAIN * CHAIN)
    memory = np.random.default_rng(8).integers(0, 256, step * object_bytes, np.uint8)
    store.register_buffer(memory)
    at = np.arange(step, dtype=np.uint64) * np.uint64(object_bytes)
    at += np.uint64(memory.ctypes.data)
    for first in range(0, objects, step):
        numbers = range(first, min(first + step, objects))
        keys = [_key(names, number) for number in numbers]
        parents = [_key(names, number - 1) if number % CHAIN else None for number in numbers]
        sizes = np.full(len(keys), object_bytes, np.uint64)
        pieces = Pieces(at[: len(keys)], sizes, np.arange(len(keys) + 1, dtype=np.int64))
        if store.put_pieces(keys, pieces, parents=parents).any():
            raise MoonpoolError("objects could not be put")
    store.unregister_buffer(memory)
    return [names[i : i + 16 * CHAIN] for i in range(0, len(names), 16 * CHAIN)]


def _key(names: bytes, number: int) -> bytes:
    return pack(names[16 * number : 16 * number + 16], SPACE)


def _round(dies: Service, stays: Service, store: Store, chains: list[bytes]) -> Round:
    dies.kill()
    before = cpu_s([stays.pid])
    chance = np.random.default_rng(9)
    serves = 0.0
    began = time.monotonic()
    dies.start()
    while True:
        if not serves and dies.serves():
            serves = time.monotonic() - began
        if _hit(store, chains, chance.integers(len(chains), size=SAMPLE)) >= ENOUGH:
            break
        if time.monotonic() - began > BACK_S:
            raise MoonpoolError(f"not known again within {BACK_S} s")
        time.sleep(0.005)
    back = time.monotonic() - began
    used = cpu_s([dies.pid]), cpu_s([stays.pid]) - before
    _until("all is there", lambda: _hit(store, chains, np.arange(len(chains))) == 1.0, BACK_S)
    dies.wait()
    master, node = used if dies.role == "master" else used[::-1]
    return Round(serves or back, back, master, node)


def _hit(
    store: Store, chains: list[bytes], chosen: np.ndarray[tuple[int], np.dtype[np.int64]]
) -> float:
    """Return the share of the objects of some prefixes that a lookup finds."""
    found = total = 0
    for i in chosen.tolist():
        total += len(chains[i]) // 16
        try:
            found += store.match_digests(SPACE, chains[i])
        except MoonpoolError:
            break
    return found / total if total else 0.0


def _until(what: str, check: Callable[[], bool], within_s: float) -> None:
    deadline = time.monotonic() + within_s
    while not check():
        if time.monotonic() > deadline:
            raise MoonpoolError(f"not within {within_s} s: {what}")
        time.sleep(0.02)
