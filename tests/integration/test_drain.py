"""A node is drained and stopped under load: no read misses, no byte is wrong."""

from __future__ import annotations

import contextlib
import os
import random
import signal
import subprocess
import sys
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Self

import pytest

from moonpool import MoonpoolError, Store
from moonpool.core.messages import DrainStatus
from tests.integration.processes import Master, Node, environment, eventually, ready_segments

COUNT = 240
KEYS = [f"key-{i}" for i in range(COUNT)]
LONG_S = 60.0


def value_of(key: str) -> bytes:
    """Return the bytes of a key: 20 to 300 KB, like no other's."""
    rng = random.Random(key)
    return rng.randbytes(20_000 + rng.randrange(280_000))


VALUES = {key: value_of(key) for key in KEYS}


class Reader:
    """A client that reads without end, one by one and in batches; every miss is noted."""

    def __init__(self, master: str, way: str, seed: int) -> None:
        self.reads = 0
        self.missed: list[str] = []
        self._rng = random.Random(seed)
        self._master, self._way = master, way
        self._stop = threading.Event()
        self._thread = threading.Thread(target=self._run)

    def _run(self) -> None:
        rng = self._rng
        with Store.connect(self._master, name="reader", transports=(self._way,)) as store:
            while not self._stop.is_set():
                some = rng.sample(KEYS, 12)
                try:
                    found = store.get_batch(some) if rng.random() < 0.7 else map(store.get, some)
                    for key, value in zip(some, found, strict=True):
                        self.reads += 1
                        if value != VALUES[key]:
                            self.missed.append(f"{key}: {value is not None and 'wrong bytes'}")
                except MoonpoolError as error:
                    self.missed.append(repr(error))

    def __enter__(self) -> Self:
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._stop.set()
        self._thread.join(LONG_S)
        assert not self._thread.is_alive()


@contextlib.contextmanager
def three_nodes(folder: Path, **keys: object) -> Iterator[tuple[Master, list[Node], Store]]:
    """A master and three nodes, each a host of its own, with the objects in them."""
    with contextlib.ExitStack() as stack:
        master = stack.enter_context(Master(folder, **keys))
        nodes = [stack.enter_context(Node(folder, master, f"n{i}", size="96MB")) for i in range(3)]
        store = stack.enter_context(Store.connect(master.address, name="operator"))
        eventually("segments are ready", lambda: ready_segments(store) == 3)
        assert not any(store.put_batch(KEYS, [VALUES[key] for key in KEYS]))
        yield master, nodes, store


def moonpool(master: Master, *words: str) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, "-m", "moonpool.cli", *words, "--master", master.address]
    return subprocess.run(
        command, capture_output=True, text=True, check=False, timeout=120, env=environment()
    )


def drain_of(store: Store, node: str) -> DrainStatus | None:
    with contextlib.suppress(MoonpoolError):
        return next((each for each in store.status().drains if each.node == node), None)
    return None


def is_empty(store: Store, node: str) -> bool:
    found = drain_of(store, node)
    return found is not None and found.empty


def objects_on(store: Store, node: str) -> int:
    with contextlib.suppress(MoonpoolError):
        return sum(s.objects for s in store.status().segments if s.info.node == node)
    return -1


def test_a_node_is_drained_and_stopped_and_no_read_misses(tmp_path: Path) -> None:
    with three_nodes(tmp_path) as (master, nodes, store), contextlib.ExitStack() as stack:
        assert objects_on(store, "n0") > COUNT // 6
        readers = [
            stack.enter_context(Reader(master.address, way, seed))
            for seed, way in enumerate(("shm", "tcp", "tcp"))
        ]
        eventually("all read", lambda: all(each.reads > 100 for each in readers), LONG_S)
        done = moonpool(master, "node", "drain", "n0", "--wait")
        assert (done.returncode, done.stderr) == (0, "")
        assert "n0 is drained and may be stopped" in done.stdout
        assert objects_on(store, "n0") == 0
        for number in range(10):  # nothing new goes there
            assert store.put(f"new-{number}", os.urandom(50_000))
        assert objects_on(store, "n0") == 0
        before = [each.reads for each in readers]
        assert nodes[0].end(signal.SIGTERM) == 0
        eventually(
            "all read on",
            lambda: all(r.reads > b + 200 for r, b in zip(readers, before, strict=True)),
            LONG_S,
        )
        for each in readers:
            assert each.missed == []
        assert store.status().objects == COUNT + 10
        assert store.status().drains == []
        reads = sum(each.reads for each in readers)
        print(f"{COUNT} objects, {reads} reads during and after the drain, none missed")  # noqa: T201
        metrics = master.http("/metrics").decode()
        assert "moonpool_drain_copies_total" in metrics


def test_a_drain_goes_on_after_the_master_was_killed_and_can_be_ended(tmp_path: Path) -> None:
    with three_nodes(tmp_path, copy_rate="2MB") as (master, nodes, store):
        store.drain_node("n0")
        eventually(
            "some are copied", lambda: store.status().counters.get("drain_copies", 0) > 2, LONG_S
        )
        left = objects_on(store, "n0")
        assert left > 0
        master.kill()
        master.keys["copy_rate"] = "0"
        master.start()
        eventually("n0 is empty", lambda: is_empty(store, "n0"), LONG_S)
        eventually("segments are ready", lambda: ready_segments(store) == 3, LONG_S)
        assert store.get_batch(KEYS) == [VALUES[key] for key in KEYS]
        # Also the node itself remembers, whoever is killed.
        nodes[0].kill()
        nodes[0].start()
        eventually("it is drained still", lambda: is_empty(store, "n0"), LONG_S)
        assert moonpool(master, "node", "undrain", "n0").returncode == 0
        assert store.status().drains == []
        assert not any(store.put_batch([f"new-{i}" for i in range(60)], [b"x" * 5000] * 60))
        assert objects_on(store, "n0") > 0


def test_who_waits_for_a_drain_waits_on_while_the_master_is_killed(tmp_path: Path) -> None:
    with three_nodes(tmp_path, copy_rate="2MB") as (master, _nodes, store):
        command = [sys.executable, "-m", "moonpool.cli", "node", "drain", "n0", "--wait"]
        waiting = subprocess.Popen(
            [*command, "--master", master.address],
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
            env=environment(),
        )
        try:
            eventually(
                "some are copied",
                lambda: store.status().counters.get("drain_copies", 0) > 2,
                LONG_S,
            )
            master.kill()
            master.keys["copy_rate"] = "0"
            assert waiting.poll() is None
            master.start()
            out, err = waiting.communicate(timeout=2 * LONG_S)
            assert waiting.returncode == 0, err
        finally:
            waiting.kill()
            waiting.wait()
        assert "n0 is drained and may be stopped" in out
        eventually("n0 is empty", lambda: objects_on(store, "n0") == 0, LONG_S)
        assert store.get_batch(KEYS) == [VALUES[key] for key in KEYS]


def test_a_drain_that_finds_no_room_says_what_remains(tmp_path: Path) -> None:
    with (
        Master(tmp_path) as master,
        Node(tmp_path, master, "big", size="32MB"),
        Store.connect(master.address, name="operator") as store,
    ):
        assert not any(store.put_batch(KEYS[:80], [VALUES[key] for key in KEYS[:80]]))
        with Node(tmp_path, master, "small", size="8MB"):
            eventually("both are ready", lambda: ready_segments(store) == 2)
            done = moonpool(master, "node", "drain", "big", "--wait")
            assert done.returncode == 1
            assert "find no room elsewhere" in done.stdout
            assert "remain on big: other nodes have no room" in done.stderr
            assert store.get_batch(KEYS[:80]) == [VALUES[key] for key in KEYS[:80]]
            missing = moonpool(master, "node", "drain", "nobody")
            assert missing.returncode == 1
            assert "no node 'nobody' is here" in missing.stderr


@pytest.mark.parametrize("victim", ["source", "target", "master"])
def test_who_is_killed_in_the_middle_of_a_copy_loses_nothing_else(
    tmp_path: Path, victim: str
) -> None:
    with three_nodes(tmp_path, copy_rate="4MB", repair_after_s=0.1) as (master, nodes, store):
        store.drain_node("n0")
        eventually("it is being copied", lambda: store.status().copying > 0, LONG_S)
        killed = {"source": nodes[0], "target": nodes[1], "master": master}[victim]
        killed.kill()
        master.keys["copy_rate"] = "0"
        killed.start()
        if victim != "master":
            master.kill()
            master.start()
        eventually("segments are ready", lambda: ready_segments(store) == 3, LONG_S)
        eventually("n0 is empty", lambda: is_empty(store, "n0"), LONG_S)
        assert store.get_batch(KEYS) == [VALUES[key] for key in KEYS]
        store.drain_node("n0", on=False)
        assert store.remove_all() == COUNT

        def is_clean() -> bool:
            status = store.status()
            return not status.copying and not any(s.used_bytes for s in status.segments)

        eventually("no space is lost", is_clean, LONG_S)


def test_what_only_the_disk_of_a_node_has_goes_with_the_rest(tmp_path: Path) -> None:
    some = {key: random.Random(key).randbytes(120_000) for key in KEYS[:120]}
    disk: dict[str, object] = {"ssd": tmp_path / "ssd", "ssd_size": "256MB"}
    with (
        Master(tmp_path, watermark_high=0.7, watermark_low=0.5) as master,
        Node(tmp_path, master, "n0", size="8MB", **disk) as node,
        Store.connect(master.address, name="operator") as store,
    ):
        for key in some:  # no faster than memory is emptied onto the disk
            assert store.put(key, some[key])
            eventually(
                "there is room", lambda: store.status().segments[0].used_bytes < 6 << 20, LONG_S
            )
        assert store.status().disk_only > 40
        assert all(store.exists_batch([*some])), store.status().counters
        with Node(tmp_path, master, "n1", size="96MB"):
            eventually("both are ready", lambda: ready_segments(store) == 2)
            done = moonpool(master, "node", "drain", "n0", "--wait")
            assert (done.returncode, done.stderr) == (0, "")
            assert "on its disk only" not in done.stdout
            before = store.status().counters
            assert before.get("evicted_unsaved", 0) == 0, before
            assert node.end(signal.SIGTERM) == 0
            assert store.get_batch([*some]) == list(some.values())
