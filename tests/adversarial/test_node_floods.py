"""Clients that flood a node's data port, or stop reading what they asked for."""

import contextlib
import random
import socket
import struct
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from moonpool import Store
from tests.adversarial.harness import Cluster, eventually, running
from tests.adversarial.leftovers import descriptors, within
from tests.adversarial.test_hostile import (
    Session,
    connect,
    data_frame,
    opened,
    receive,
    u64,
    write_batch,
)
from tests.adversarial.values import MIB, value_of

BIG = {f"big-{i}": value_of(f"big-{i}", 0, 4 * MIB) for i in range(8)}
CLIENTS = 40
GROWTH = 64 * MIB


@pytest.fixture(scope="module")
def lone(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Cluster]:
    """Run a master and one node with large objects."""
    with running(tmp_path_factory.mktemp("flood"), [("a", "80MB")], put_timeout_s=2.0) as cluster:
        yield cluster


@pytest.fixture(autouse=True)
def filled(lone: Cluster) -> None:
    """Let every test begin with the large objects and nothing else."""
    lone.stores[0].remove_all(force=True)
    lone.stores[0].put_batch(list(BIG), list(BIG.values()))


def place(cluster: Cluster) -> tuple[str, bytes, bytes, bytes]:
    """Return where the large objects are: segment, offsets, sizes, generations."""
    session = Session(cluster.master.ports["port"], peer="looker")
    answer = session.ask(["Get", [b"\0" + key.encode() for key in BIG], 77, 1.0])
    session.close()
    rows = [(slots[0][2], size, generation) for size, _, generation, slots, *_ in answer[1]]
    info = cluster.stores[0].status().segments[0].info
    offsets, sizes, generations = zip(*rows, strict=True)
    return info.name, u64(*offsets), u64(*sizes), u64(*generations)


@contextlib.contextmanager
def served(cluster: Cluster, give_up_s: float = 10.0) -> Iterator[None]:
    """Check around a block that sockets were opened in: the node serves others meanwhile, its
    memory stays bounded, and all that it opened for them is closed soon after they are gone."""
    node = cluster.nodes["a"]
    memory, files = node.rss_bytes(), len(descriptors(node.pid))
    threads = len(node_tasks(node.pid))
    yield
    grown = node.rss_bytes() - memory
    assert grown < GROWTH, f"the node grew by {grown / MIB:.0f} MiB"
    assert node.alive, node.tail()
    eventually(lambda: len(descriptors(node.pid)) <= files + 4, give_up_s, "descriptors are closed")
    eventually(lambda: len(node_tasks(node.pid)) <= threads + 4, give_up_s, "threads have ended")
    others(cluster)


def exactly(sock: socket.socket, nbytes: int) -> bytes:
    """Return so many bytes."""
    got = bytearray()
    while len(got) < nbytes and (part := sock.recv(nbytes - len(got))):
        got += part
    return bytes(got)


def node_tasks(pid: int) -> list[str]:
    """Return the threads of a process."""

    return [path.name for path in Path(f"/proc/{pid}/task").iterdir()]


def others(cluster: Cluster) -> None:
    """Check that others are served, over both ways, also with what is large."""
    for way in ("tcp", "shm"):
        with Store.connect(cluster.address, transports=(way,), timeout_s=2.0) as store, within(5.0):
            assert store.get_batch(list(BIG)) == list(BIG.values())
            name = f"others-{way}-{time.monotonic_ns()}"
            assert store.put(name, value_of(name, 0, MIB))
            assert store.get(name) == value_of(name, 0, MIB)
            store.remove(name)


def test_clients_that_stop_reading_a_large_get(lone: Cluster) -> None:
    request = data_frame(["ReadBatch", *place(lone)])
    port = lone.nodes["a"].ports["port"]
    with served(lone), contextlib.ExitStack() as stack:
        for i in range(CLIENTS):
            sock = stack.enter_context(opened(port, f"deaf-{i}"))
            sock.sendall(request * 3)
        time.sleep(0.3)
        others(lone)
        # What is read from may be removed and its space used again meanwhile.
        store = lone.stores[0]
        assert store.put("more", value_of("more", 0, 20 * MIB))
        assert store.get("more") == value_of("more", 0, 20 * MIB)
        store.remove("more", force=True)


def test_what_a_slow_reader_gets_is_never_taken_for_good(lone: Cluster) -> None:
    store = lone.stores[0]
    segment, *arrays = place(lone)
    with opened(lone.nodes["a"].ports["port"], "slow") as sock:
        sock.sendall(data_frame(["ReadBatch", segment, *arrays]))
        time.sleep(0.1)
        store.remove_batch(list(BIG), force=True)
        for i in range(16):
            store.put(f"over-{i}", value_of(f"over-{i}", 0, 4 * MIB))
        assert receive(sock)[0] == "ReadHead"
        got = [exactly(sock, len(value)) for value in BIG.values()]
        results = struct.unpack(f"<{len(BIG)}q", receive(sock)[1])
    for value, key, code in zip(got, BIG, results, strict=True):
        assert value == BIG[key] or code == -704, key
    assert -704 in results, "nothing was overwritten; the test shows nothing"


def test_floods_of_bytes_that_are_no_request(lone: Cluster) -> None:
    port, noise = lone.nodes["a"].ports["port"], random.Random(3).randbytes(MIB)
    heads = [
        b"", struct.pack("<I", 64 * MIB), data_frame(["OpenData", 1, 1, "flood"]),
        data_frame(["OpenData", 1, 1, "flood"]) + struct.pack("<I", 64 * MIB),
    ]  # fmt: skip
    with served(lone), contextlib.ExitStack() as stack:
        for i in range(CLIENTS):
            sock = stack.enter_context(connect(port))
            sock.settimeout(0.05)
            with contextlib.suppress(OSError):
                sock.sendall(heads[i % len(heads)])
                sock.sendall(noise * 4)
        others(lone)


def test_floods_of_payload_that_was_not_granted(lone: Cluster) -> None:
    info = lone.stores[0].status().segments[0].info
    port = lone.nodes["a"].ports["port"]
    head = write_batch(info.name, 0, 0, 1 << 40, 1 << 40, 2**60, b"", b"\0flood")
    small = write_batch(info.name, 0, 0, MIB, MIB, 2**60, b"", b"\0flood")
    with served(lone), contextlib.ExitStack() as stack:
        for i in range(CLIENTS):
            sock = stack.enter_context(opened(port, f"flood-{i}"))
            sock.settimeout(0.05)
            with contextlib.suppress(OSError):
                sock.sendall((head, small)[i % 2][:-20])
                for _ in range(8):
                    sock.sendall(bytes(MIB))
        others(lone)


def test_requests_that_are_never_answered_because_nobody_waits(lone: Cluster) -> None:
    request = data_frame(["ReadBatch", *place(lone)])
    port = lone.nodes["a"].ports["port"]
    with served(lone):
        for i in range(150):
            with opened(port, f"hasty-{i}") as sock:
                sock.sendall(request)
                if i % 2:
                    sock.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
