"""kill -9 at every point that matters: of the client, the node, the master, and of all at once."""

from __future__ import annotations

import contextlib
import subprocess
import sys
import uuid
from collections.abc import Iterator

import pytest

from moonpool import Store
from tests.integration.failpoints import value_of
from tests.integration.processes import (
    Daemon,
    Master,
    Node,
    environment,
    eventually,
    pool,
    ready_segments,
)

pytestmark = pytest.mark.timeout(180)

SEGMENT = "moonpool.transport.segment:Segment"
HANDLE = "moonpool.core.master:MasterState.handle"
CLIENT = [
    (f"{SEGMENT}.begin@before#2", "shm"),
    (f"{SEGMENT}.begin@after#2", "shm"),
    (f"{SEGMENT}.seal@before#3", "shm"),
    (f"{SEGMENT}.seal@after#3", "shm"),
    ("moonpool.client.channel:SocketChannel.ask[PutStart]@after#2", "shm"),
    ("moonpool.client.channel:SocketChannel.ask[PutEnd]@before#2", "tcp"),
    ("moonpool.client.channel:SocketChannel.ask[PutEnd]@after#2", "tcp"),
]
NODE = [
    (f"{SEGMENT}.begin@before#2", "tcp"),
    (f"{SEGMENT}.begin@after#2", "tcp"),
    (f"{SEGMENT}.seal@before#3", "tcp"),
    (f"{SEGMENT}.seal@after#3", "tcp"),
]
RESTART = [
    ("moonpool.node.storage:Storage._take_over@after#1", "shm"),
    ("moonpool.node.storage:Storage._hold@after#1", "shm"),
    ("moonpool.node.session:MasterSession._mount@before#1", "shm"),
    ("moonpool.node.link:Link.request[AnnouncePacked]@before#1", "shm"),
    (f"{SEGMENT}.damaged@before#1", "shm"),
]
MASTER = [
    (f"{HANDLE}[PutStart]@before#2", "shm"),
    (f"{HANDLE}[PutStart]@after#2", "shm"),
    (f"{HANDLE}[PutEnd]@before#2", "tcp"),
    (f"{HANDLE}[PutEnd]@after#2", "tcp"),
    (f"{HANDLE}[WriterGone]@after#1", "shm"),
]


class Client:
    """A process that puts objects."""

    def __init__(self, address: str, way: str, point: str = "none") -> None:
        name = uuid.uuid4().hex[:8]
        words = ["-m", "tests.integration.failpoints", point, "client", address, way, name]
        self.process = subprocess.Popen(
            [sys.executable, *words], stdout=subprocess.PIPE, text=True, env=environment()
        )

    def ended(self) -> tuple[set[str], set[str]]:
        """Wait for the end; return the keys that were tried and those acknowledged."""
        said, _ = self.process.communicate(timeout=60)
        lines = [line.split() for line in said.splitlines()]
        return tuple(  # type: ignore[return-value]
            {key for line in lines if line[0] == what for key in line[1:]}
            for what in ("try", "done")
        )


@pytest.fixture(scope="module")
def running(tmp_path_factory: pytest.TempPathFactory) -> Iterator[tuple[Master, Node]]:
    with pool(tmp_path_factory.mktemp("pool"), size="128MB") as (master, (node,)):
        yield master, node


def arm(daemon: Daemon, point: str) -> None:
    """Start a daemon that will die; it may do so before it is ready."""
    daemon.kill()
    daemon.module = ("tests.integration.failpoints", point, daemon.role)
    daemon.spawn()
    daemon.module = (f"moonpool.{daemon.role}",)


def restart(*daemons: Daemon) -> None:
    """Start what is dead."""
    for daemon in daemons:
        if daemon.process.poll() is not None:
            daemon.start()


def check(master: Master, node: Node, tried: set[str], done: set[str]) -> None:
    """Assert that what was acknowledged is there, that nothing is wrong, and no space is lost."""
    assert tried
    for way in ("shm", "tcp"):
        with Store.connect(master.address, transports=(way,)) as store:
            eventually("the node is there", lambda: ready_segments(store) == 1, 20)
            keys = sorted(tried)
            for key, found in zip(keys, store.get_batch(keys), strict=True):
                assert found in ((value_of(key),) if key in done else (None, value_of(key))), key
    with Store.connect(master.address) as store:
        listed = {info.key[1:].decode() for info in store.list()}
        assert done <= listed <= tried
        # A key that was not acknowledged is free again, or holds what was put.
        left = sorted(tried - listed)
        if left:
            eventually(
                "left keys can be put",
                lambda: set(store.put_batch(left, [value_of(k) for k in left])) <= {0, -705},
            )
            assert store.get_batch(left) == [value_of(key) for key in left]
        store.remove_all(force=True)
        eventually("no space is lost", lambda: taken(store) == 0, 30)


def taken(store: Store) -> int:
    """Return how much is used, waits for its writer, or is being put."""
    status = store.status()
    space = sum(segment.used_bytes + segment.pending_bytes for segment in status.segments)
    return space + status.puts_in_progress


@pytest.mark.parametrize(("point", "way"), CLIENT, ids=[point for point, _ in CLIENT])
def test_the_client(running: tuple[Master, Node], point: str, way: str) -> None:
    master, node = running
    client = Client(master.address, way, point)
    tried, done = client.ended()
    assert client.process.returncode == -9
    check(master, node, tried, done)


@pytest.mark.parametrize(("point", "way"), NODE, ids=[point for point, _ in NODE])
def test_the_node(running: tuple[Master, Node], point: str, way: str) -> None:
    master, node = running
    arm(node, point)
    node.wait()
    tried, done = Client(master.address, way).ended()
    assert node.process.wait(30) == -9
    restart(node)
    check(master, node, tried, done)


@pytest.mark.parametrize(("point", "way"), RESTART, ids=[point for point, _ in RESTART])
def test_the_node_while_it_starts_again(running: tuple[Master, Node], point: str, way: str) -> None:
    master, node = running
    tried, done = Client(master.address, way).ended()
    assert tried == done
    arm(node, point)
    assert node.process.wait(30) == -9
    restart(node)
    check(master, node, tried, done)


@pytest.mark.parametrize(("point", "way"), MASTER, ids=[point for point, _ in MASTER])
def test_the_master(running: tuple[Master, Node], point: str, way: str) -> None:
    master, node = running
    before = Client(master.address, way).ended()
    assert before[0] == before[1]
    arm(master, point)
    with contextlib.suppress(AssertionError):  # it may die while the node comes back
        master.wait()
    client = Client(master.address, way)
    assert master.process.wait(60) == -9
    restart(master)
    tried, done = client.ended()
    check(master, node, tried | before[0], done | before[1])


@pytest.mark.parametrize("point", [CLIENT[3][0], CLIENT[5][0]])
def test_all_at_once(running: tuple[Master, Node], point: str) -> None:
    master, node = running
    client = Client(master.address, "shm", point)
    tried, done = client.ended()
    master.kill()
    node.kill()
    restart(master, node)
    check(master, node, tried, done)
