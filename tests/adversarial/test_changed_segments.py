"""Segment files that somebody changes under clients and nodes that have them mapped."""

import json
import os
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest

from moonpool import Store
from moonpool.errors import MoonpoolError
from tests.adversarial.conftest import MakeCluster
from tests.adversarial.harness import ROOT, Cluster, Daemon, environment, eventually
from tests.adversarial.values import fault_in, value_of

SIZE = 300_000
KEYS = [f"kept-{i}" for i in range(40)]
TRIES = 1


def client(address: str, way: str) -> None:
    """Map everything, wait for a line, then use everything; print what happened and go on."""
    store = Store.connect(address, transports=(way,), timeout_s=1.0, put_timeout_s=0.5)
    store.get_batch(KEYS)
    store.put("warm", b"x" * 5000)
    print("up", flush=True)  # noqa: T201
    sys.stdin.readline()
    faults: list[str] = []
    for turn in range(TRIES):
        for name in ("read", "read_one", "write", "write_one", "write_small"):
            try:
                globals()[name](store, turn, faults)
            except MoonpoolError:
                continue
    store.close()
    print(json.dumps(faults), flush=True)  # noqa: T201


def read(store: Store, _: int, faults: list[str]) -> None:
    """Read all in one batch."""
    for key, value in zip(KEYS, store.get_batch(KEYS), strict=True):
        if value is not None and (fault := fault_in(key, value, SIZE)):
            faults.append(fault)


def read_one(store: Store, _: int, faults: list[str]) -> None:
    """Read one after the other."""
    for key in KEYS[:6]:
        try:
            if fault := fault_in(key, store.get(key), SIZE):
                faults.append(fault)
        except MoonpoolError:
            continue


def write(store: Store, turn: int, faults: list[str]) -> None:
    """Put a batch; what is said to be there must be right."""
    keys = [f"new-{os.getpid()}-{turn}-{i}" for i in range(20)]
    codes = store.put_batch(keys, [value_of(key, 0, SIZE) for key in keys])
    for key, code, value in zip(keys, codes, store.get_batch(keys), strict=True):
        if value is not None and (code or fault_in(key, value, SIZE)):
            faults.append(f"{key}: {code}")


def write_one(store: Store, turn: int, _: list[str]) -> None:
    """Put a large object and a small one."""
    store.put(f"one-{os.getpid()}-{turn}", value_of("one", 0, 100_000))


def write_small(store: Store, turn: int, _: list[str]) -> None:
    """Put several small objects: they lie at other places."""
    for i in range(10):
        store.put(f"small-{os.getpid()}-{turn}-{i}", b"x" * 1000)


def spawn(address: str, way: str) -> subprocess.Popen[str]:
    """Start a client that has mapped everything."""
    child = subprocess.Popen(
        [sys.executable, "-m", "tests.adversarial.test_changed_segments", address, way],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
        env=environment(),
        cwd=ROOT,
    )
    assert child.stdout is not None
    assert child.stdout.readline().strip() == "up"
    return child


def delete(path: Path) -> None:
    """Unlink the file."""
    path.unlink()


def replace(path: Path) -> None:
    """Put another file of the same size in its place."""
    size = path.stat().st_size
    path.unlink()
    path.write_bytes(os.urandom(1 << 20) + bytes(size - (1 << 20)))


def swap(path: Path) -> None:
    """Put the other node's segment file in its place."""
    (other,) = (p for p in path.parent.parent.rglob("*.seg") if p != path)
    content = other.read_bytes()
    path.unlink()
    path.write_bytes(content)


def forbid(path: Path) -> None:
    """Take all permissions away."""
    path.chmod(0)
    path.parent.chmod(0)


def shorten(share: float) -> Callable[[Path], None]:
    """Return a function that leaves that share of a file."""
    return lambda path: os.truncate(path, int(path.stat().st_size * share) & ~4095)


CHANGES: dict[str, Callable[[Path], None]] = {
    "deleted": delete,
    "replaced by garbage": replace,
    "replaced by another segment": swap,
    "made unreadable": forbid,
}
SHORTER: dict[str, Callable[[Path], None]] = {
    "emptied": shorten(0.0),
    "cut in the objects": shorten(0.15),
}


def two_nodes(make_cluster: MakeCluster) -> tuple[Cluster, Path]:
    """Return a cluster with objects on two nodes, and the first one's segment file."""
    cluster = make_cluster([("a", "32MB"), ("b", "32MB")])
    values = [value_of(key, 0, SIZE) for key in KEYS]
    assert cluster.stores[0].put_batch(KEYS, values) == [0] * len(KEYS)
    (path,) = (p for p in cluster.segment_files() if p.parent.name == "a")
    return cluster, path


def whole(cluster: Cluster, way: str, least: int) -> None:
    """Check with a new client that objects are right or missing, and so many are there."""
    with Store.connect(cluster.address, transports=(way,), timeout_s=2.0) as store:
        found = store.get_batch(KEYS)
        right = [value for value in found if value is not None]
        for key, value in zip(KEYS, found, strict=True):
            assert value is None or not fault_in(key, value, SIZE)
        assert len(right) >= least, f"{len(right)} of {least} objects of the other node"
        for i in range(4):
            try:
                store.put(f"late-{way}-{i}", value_of("late", 0, SIZE))
            except MoonpoolError:
                continue


def use_while(cluster: Cluster, change: Callable[[], None]) -> None:
    """Change something under clients that have mapped everything; they see nothing wrong."""
    children = {way: spawn(cluster.address, way) for way in ("shm", "tcp")}
    change()
    for way, child in children.items():
        out, _ = child.communicate("go\n", timeout=30)
        assert child.returncode == 0, f"the client over {way} ended with {child.returncode}"
        assert json.loads(out) == []


@pytest.mark.parametrize("kind", SHORTER)
def test_a_segment_that_is_cut_short_ends_its_node_with_a_reason_and_nobody_else(
    make_cluster: MakeCluster, kind: str
) -> None:
    cluster, path = two_nodes(make_cluster)
    use_while(cluster, lambda: SHORTER[kind](path))
    node = cluster.nodes["a"]
    eventually(lambda: not node.alive, 15, "the node ends")
    assert node.process is not None
    assert node.process.returncode == 1
    assert f"the segment {path} was cut short" in node.tail()
    assert cluster.nodes["b"].alive
    for way in ("tcp", "shm"):
        whole(cluster, way, least=len(KEYS) // 4)
    node.spawn()
    eventually(lambda: cluster.ready_nodes() == 2, 15, f"it starts again: {node.tail()[-500:]}")


@pytest.mark.parametrize("kind", CHANGES)
def test_a_changed_segment_kills_nobody_and_gives_no_wrong_bytes(
    make_cluster: MakeCluster, kind: str
) -> None:
    cluster, path = two_nodes(make_cluster)
    use_while(cluster, lambda: CHANGES[kind](path))
    for node in cluster.nodes.values():
        assert node.alive, f"{node.options['name']} died: {node.process}"
    if kind != "made unreadable":
        told = f"the segment {path} was deleted or replaced"
        eventually(lambda: told in cluster.nodes["a"].tail(), 15, "the node says so")
    for way in ("tcp", "shm"):
        whole(cluster, way, least=len(KEYS) // 4)
    node = cluster.nodes["a"]
    assert node.alive, f"the node died: {node.process}"
    node.end()
    path.parent.chmod(0o700)
    node.spawn()
    eventually(lambda: cluster.ready_nodes() == 2, 15, f"it starts again: {node.tail()[-500:]}")
    whole(cluster, "shm", least=len(KEYS) // 4)


if __name__ == "__main__":
    client(*sys.argv[1:3])


def test_a_second_node_does_not_take_the_place_of_one_whose_file_is_gone(
    make_cluster: MakeCluster,
) -> None:
    cluster, path = two_nodes(make_cluster)
    path.unlink()
    second = Daemon("node", cluster.place, cluster.nodes["a"].options | {"port": 0})
    second.spawn()
    assert second.process is not None
    assert second.process.wait(30) == 2
    assert "a node 'a' runs on this host already" in second.tail()
    assert cluster.nodes["a"].alive
    assert cluster.stores[0].get_batch(KEYS) == [value_of(key, 0, SIZE) for key in KEYS]
