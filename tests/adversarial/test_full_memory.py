"""Shared memory that has no room left: at a node's start, while it is touched, while one puts."""

import contextlib
import shutil
import subprocess
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from moonpool import Store
from tests.adversarial.harness import Cluster, Daemon, eventually, first_line
from tests.adversarial.leftovers import nothing_left, within
from tests.adversarial.values import MIB, value_of

Mount = Callable[[int], Path]


@pytest.fixture
def small_memory(tmp_path: Path) -> Iterator[Mount]:
    """Return a function that mounts a tmpfs of so many MiB; skip where one may not."""
    mount = shutil.which("mount")
    places: list[Path] = []

    def make(mib: int) -> Path:
        place = tmp_path / f"memory{len(places)}"
        place.mkdir()
        if (
            not mount
            or subprocess.run(
                [mount, "-t", "tmpfs", "-o", f"size={mib}m", "none", place], capture_output=True
            ).returncode
        ):
            pytest.skip("mounting a tmpfs is not allowed here")
        places.append(place)
        return place

    yield make
    for place in places:
        subprocess.run(["umount", "-l", place], check=True)


@pytest.fixture
def bare(tmp_path: Path) -> Iterator[Cluster]:
    """Run a master alone."""
    cluster = Cluster(tmp_path)
    cluster.start_master()
    cluster.connect(timeout_s=2.0)
    yield cluster
    cluster.close()


def fill(place: Path) -> int:
    """Use up what is left of a file system; return how many bytes that were."""
    taken = 0
    with contextlib.suppress(OSError), (place / "filler").open("wb", buffering=0) as file:
        for block in (MIB, 4096):
            with contextlib.suppress(OSError):
                while True:
                    taken += file.write(bytes(block))
    return taken


def settled(node: Daemon) -> bool:
    """Wait until a node serves or has ended; tell whether it serves."""
    eventually(lambda: not node.alive or node.ready_file.exists(), 20, "the node has decided")
    return node.alive


def died_by_signal(node: Daemon) -> bool:
    """Tell whether a node was ended by a signal, such as SIGBUS."""
    return node.process is not None and (node.process.poll() or 0) < 0


def use(store: Store, prefix: str, count: int) -> int:
    """Put and get a few MiB objects; return how many went well. None may be wrong."""
    keys = [f"{prefix}-{i}" for i in range(count)]
    values = [value_of(key, 0, MIB - 100) for key in keys]
    with within(10.0):
        codes = store.put_batch(keys, values)
    assert set(codes) <= {0, -200, -700, -800}, codes
    for key, value, code, read in zip(keys, values, codes, store.get_batch(keys), strict=True):
        assert read in ((value, None) if code == 0 else (None,)), key
    return codes.count(0)


@pytest.mark.parametrize("touch", [True, False])
def test_a_node_larger_than_its_memory_says_so_in_one_line(
    bare: Cluster, small_memory: Mount, touch: bool
) -> None:
    place = small_memory(16)
    node = bare.node("a", "64MB", segment_dir=place / "s", touch_ahead=touch)
    node.spawn()
    if not settled(node):
        assert not died_by_signal(node), node.tail()
        assert len(node.tail().strip().splitlines()) == 1, node.tail()
        assert not list(place.rglob("*.seg")), "a segment that nobody serves is left behind"
        return
    for way in ("shm", "tcp"):
        with Store.connect(
            bare.address, transports=(way,), timeout_s=1.0, put_timeout_s=0.5
        ) as store:
            assert use(store, way, 30) <= 16
    assert node.alive, (node.process, node.tail())


@pytest.mark.parametrize(("when", "touch"), [("at once", True), ("later", True), ("later", False)])
def test_memory_that_others_fill_does_not_kill_anybody(
    bare: Cluster, small_memory: Mount, touch: bool, when: str
) -> None:
    place = small_memory(64)
    node = bare.node("a", "48MB", segment_dir=place / "s", touch_ahead=touch)
    node.spawn()
    if when == "at once":
        eventually(lambda: not node.alive or list(place.rglob("*.seg")), 20, "a segment file")
        fill(place)
    if not settled(node):
        assert not died_by_signal(node), node.tail()
        assert len(node.tail().strip().splitlines()) == 1, node.tail()
        return
    if when == "later":
        time.sleep(0.3)
        fill(place)
    for way in ("shm", "tcp"):
        child = bare.worker("put_loop", prefix=way, size=MIB, count=40, transports=[way],
                            timeout_s=1.0, put_timeout_s=0.5,
                            log=str(node.log.with_suffix(f".{way}")))  # fmt: skip
        assert first_line(child) == "up"
        with within(20.0):
            assert first_line(child) == "done", child.wait()
    with nothing_left(), Store.connect(bare.address, timeout_s=1.0, put_timeout_s=0.5) as store:
        use(store, "late", 10)
    assert not died_by_signal(node), (node.process, node.tail())
    (place / "filler").unlink()
    node.end()
    node.start()
    with Store.connect(bare.address, timeout_s=2.0) as store:
        eventually(lambda: bare.ready_nodes() == 1, 10, "the node is there again")
        store.remove_all(force=True)
        assert use(store, "after", 10) == 10
