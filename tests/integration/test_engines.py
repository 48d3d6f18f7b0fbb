"""One-sided engines between real processes: what is stored and read, and what happens when a node,
a client or a carrier dies in the middle."""

from __future__ import annotations

import logging
import os
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pytest

from moonpool import Store
from moonpool.config import ClientConfig
from tests.integration.processes import Master, Node, environment, eventually, freeze, pool
from tests.unit.transport.onesided_place import skip_without

MIB = 1 << 20
ENGINES = ["nixl", "mooncake"]


@pytest.fixture(scope="module", params=ENGINES)
def kind(request: pytest.FixtureRequest) -> str:
    skip_without(request.param)
    return str(request.param)


@pytest.fixture(scope="module")
def running(
    kind: str, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[tuple[Master, list[Node]]]:
    with pool(tmp_path_factory.mktemp("engines"), engines=kind) as found:
        yield found


def connect(master: Master, *ways: str, timeout_s: float = 10.0, **keys: object) -> Store:
    settings = ClientConfig(staging=64 * MIB, **keys)  # type: ignore[arg-type]
    return Store.connect(
        master.address, transports=ways, name="test", timeout_s=timeout_s, engines=settings
    )


def _runs(pid: int) -> bool:
    """Tell whether a process has not ended; one that nobody has waited for yet has."""
    try:
        stat = Path(f"/proc/{pid}/stat").read_text()
    except OSError:
        return False
    return stat.rpartition(")")[2].split()[0] != "Z"


def carriers_of(pid: int) -> list[int]:
    """Return the carriers that a process has started."""
    children = Path(f"/proc/{pid}/task/{pid}/children").read_text().split()
    found = []
    for path in Path(f"/proc/{pid}/task").glob("*/children"):
        children += path.read_text().split()
    for child in set(children):
        try:
            command = Path(f"/proc/{child}/cmdline").read_bytes()
        except OSError:
            continue
        if b"onesided_process" in command:
            found.append(int(child))
    return found


def values(count: int, size: int, seed: int = 0) -> list[bytes]:
    rng = np.random.default_rng(seed)
    return [rng.bytes(size) for _ in range(count)]


def test_what_is_put_is_read_and_other_ways_see_it(
    running: tuple[Master, list[Node]], kind: str
) -> None:
    master, _ = running
    sizes = [1, 4096, 100_000, 3 * MIB, 20 * MIB]  # the last is larger than a window
    stored = [values(1, size, size)[0] for size in sizes]
    keys = [f"{kind}-{size}" for size in sizes]
    with connect(master, kind) as store, connect(master, "shm", "tcp") as other:
        assert store.put_batch(keys, stored) == [0] * len(keys)
        assert other.get_batch(keys) == stored
        assert store.get_batch(keys) == stored
        more = [f"{key}-more" for key in keys]
        assert other.put_batch(more, stored) == [0] * len(keys)
        assert store.get_batch(more) == stored
        assert store.get("nothing" if store.exists("nothing") else keys[0]) == stored[0]
        other.remove_all(force=True)
        assert store.get_batch(keys) == [None] * len(keys)


def test_pieces_of_registered_memory(running: tuple[Master, list[Node]], kind: str) -> None:
    from moonpool import Pieces

    master, _ = running
    count, pieces, size = 20, 7, 9000
    with connect(master, kind) as store:
        source = np.frombuffer(np.random.default_rng(1).bytes(count * pieces * size), np.uint8)
        source = source.copy()
        target = np.zeros_like(source)
        store.register_buffer(source)
        store.register_buffer(target)

        def of(array: np.ndarray[tuple[int], np.dtype[np.uint8]]) -> Pieces:
            first = np.uint64(array.ctypes.data)
            at = first + np.arange(count * pieces, dtype=np.uint64) * np.uint64(size)
            lengths = np.full(count * pieces, size, np.uint64)
            return Pieces(at, lengths, np.arange(0, count * pieces + 1, pieces, dtype=np.int64))

        keys = [f"pieces-{i}" for i in range(count)]
        assert not store.put_pieces(keys, of(source)).any()
        assert not store.get_pieces(keys, of(target)).any()
        assert (source == target).all()
        store.remove_all(force=True)


def test_a_node_without_the_engine_is_reached_by_tcp(
    kind: str, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    before = carriers_of(os.getpid())
    with pool(tmp_path) as (master, _), connect(master, kind, "tcp") as store:
        with caplog.at_level(logging.WARNING, "moonpool.client"):
            assert store.put("key", b"value")
            assert store.put("other", b"value")
        assert store.get("key") == b"value"
        said = [r.getMessage() for r in caplog.records if "is reached by tcp" in r.getMessage()]
        assert len(said) == 1
        assert "it offers none" in said[0]
        assert carriers_of(os.getpid()) == before


def test_a_carrier_of_the_node_that_dies_is_started_anew(
    running: tuple[Master, list[Node]], kind: str
) -> None:
    master, (node,) = running
    with connect(master, kind, "tcp") as store:
        store.put("before", b"1" * 9000)
        (carrier,) = carriers_of(node.process.pid)
        os.kill(carrier, signal.SIGKILL)
        eventually(
            "another carrier serves",
            lambda: store.get_batch(["before"]) == [b"1" * 9000],
            20.0,
        )
        assert node.process.poll() is None
        store.remove_all(force=True)


def test_an_own_carrier_that_dies_is_started_anew(
    running: tuple[Master, list[Node]], kind: str
) -> None:
    master, _ = running
    before = carriers_of(os.getpid())
    with connect(master, kind) as store:
        eventually("it works", lambda: store.put_batch(["before"], [b"1" * 9000]) == [0], 20.0)
        (carrier,) = set(carriers_of(os.getpid())) - set(before)
        os.kill(carrier, signal.SIGKILL)
        eventually("it works again", lambda: store.get_batch(["before"])[0] is not None, 20.0)
        store.remove_all(force=True)
    assert carriers_of(os.getpid()) == before


WRITER = """
import sys, os
from moonpool import Store
from moonpool.config import ClientConfig
store = Store.connect(sys.argv[1], transports=(sys.argv[2],), name="dying", timeout_s=20,
                      engines=ClientConfig(staging=64 << 20))
value = os.urandom(4 << 20)
i = 0
print("ready", flush=True)
while True:
    store.put_batch([f"w{os.getpid()}-{i}-{j}" for j in range(4)], [value] * 4)
    i += 1
"""


@pytest.mark.parametrize("number", [signal.SIGKILL, signal.SIGSTOP])
def test_a_client_that_dies_while_it_writes(
    running: tuple[Master, list[Node]], kind: str, number: signal.Signals
) -> None:
    """Its space comes back, nothing half-written is found, and the node goes on."""
    master, (node,) = running
    with connect(master, kind, "tcp", timeout_s=20.0) as store:
        for _round in range(3):
            writer = subprocess.Popen(
                [sys.executable, "-c", WRITER, master.address, kind],
                stdout=subprocess.PIPE,
                env=environment(),
            )
            assert writer.stdout is not None
            assert writer.stdout.readline()
            time.sleep(0.3)
            carriers = carriers_of(writer.pid)
            for pid in (writer.pid, *carriers):
                os.kill(pid, number) if number == signal.SIGKILL else freeze(pid)
            if number == signal.SIGSTOP:
                time.sleep(1.0)
                for pid in (writer.pid, *carriers):
                    os.kill(pid, signal.SIGKILL)
            writer.wait(10)
            writer.stdout.close()
            assert node.process.poll() is None

            def nothing_waits() -> bool:
                return all(s.pending_bytes == 0 for s in store.status().segments)

            eventually("no space waits for a writer", nothing_waits, 30.0)
            eventually(
                "others write", lambda: store.put_batch(["x"], [b"y" * 5000])[0] in (0, -705), 20.0
            )
            eventually("and read", lambda: store.get_batch(["x"]) == [b"y" * 5000], 20.0)
            store.remove_all(force=True)


def test_a_node_that_is_killed_and_comes_back(kind: str, tmp_path: Path) -> None:
    with pool(tmp_path, engines=kind) as (master, (node,)), connect(master, kind) as store:
        assert store.put("key", b"value" * 1000)
        before = carriers_of(node.process.pid)
        node.kill()
        assert store.get_batch(["key"]) == [None]
        eventually("its carrier ends with it", lambda: not any(map(_runs, before)), 30.0)
        node.start()
        eventually("it is read again", lambda: store.get_batch(["key"])[0] is not None, 30.0)
        assert store.get("key") == b"value" * 1000


def test_a_client_without_a_usable_backend_uses_tcp(
    running: tuple[Master, list[Node]], kind: str, caplog: pytest.LogCaptureFixture
) -> None:
    if kind != "nixl":
        pytest.skip("only NIXL has backends")
    master, _ = running
    with connect(master, "nixl", "tcp", nixl_backends=("POSIX",)) as store:
        assert store.put("key", b"value")
        assert "no usable backend (POSIX reaches no peer" in caplog.text
    with connect(master, "nixl", "tcp", nixl_backends=("LIBFABRIC",)) as store:
        assert store.get("key") == b"value"
        assert "no usable backend (LIBFABRIC" in caplog.text
        store.remove_all(force=True)
