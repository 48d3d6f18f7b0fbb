"""What master, node and client cost while nothing happens, and what they keep of what did."""

import threading
import time
from collections.abc import Iterator

import pytest

from moonpool import Store
from moonpool.core.master import MasterConfig as MasterSettings
from tests.adversarial.harness import Cluster, eventually, first_line, running
from tests.adversarial.leftovers import cpu_s, descriptors, nothing_left
from tests.adversarial.values import MIB

IDLE_S = 3.0
SHARE = 0.01
TICK_S = 0.01


@pytest.fixture(scope="module")
def calm(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Cluster]:
    """Run a master and a node for this module alone."""
    with running(tmp_path_factory.mktemp("calm"), [("a", "64MB")]) as cluster:
        yield cluster


def test_connecting_again_and_again_leaves_nothing_anywhere(calm: Cluster) -> None:
    pids = [calm.master.pid, calm.nodes["a"].pid]

    def cycle(count: int) -> None:
        for i in range(count):
            way = ("shm", "tcp")[i % 2]
            with Store.connect(calm.address, transports=(way,)) as store:
                store.put(f"cycle-{i}", b"x" * 5000)
                assert store.get(f"cycle-{i}") == b"x" * 5000

    cycle(10)
    with nothing_left():
        before = [len(descriptors(pid)) for pid in pids]
        memory = [daemon.rss_bytes() for daemon in (calm.master, calm.nodes["a"])]
        cycle(190)

        def given_back() -> bool:
            return [len(descriptors(pid)) for pid in pids] <= [n + 2 for n in before]

        eventually(given_back, 5, "the daemons close what clients closed")
    for daemon, was in zip((calm.master, calm.nodes["a"]), memory, strict=True):
        assert daemon.rss_bytes() - was < 8 * MIB, daemon.role


def test_rounds_of_small_objects_do_not_grow_the_master(calm: Cluster) -> None:
    store = calm.stores[0]
    store.remove_all(force=True)
    sizes = []
    # What was removed last is remembered; from so many keys on no more are.
    forgets = MasterSettings().removed_keys_max // 3000 + 1
    for turn in range(forgets + 8):
        keys = [f"{turn}-{i}" for i in range(3000)]
        assert set(store.put_batch(keys, [b"v"] * len(keys))) == {0}
        assert set(store.remove_batch(keys, force=True)) == {0}
        sizes.append(calm.master.rss_bytes())
    assert max(sizes[forgets + 2 :]) - sizes[forgets + 1] < 8 * MIB, [size / MIB for size in sizes]
    assert store.status().objects == 0


def test_a_client_keeps_nothing_of_what_it_moved(calm: Cluster) -> None:
    for way in ("shm", "tcp"):
        with nothing_left(), Store.connect(calm.address, transports=(way,)) as store:
            threads = files = 0
            for turn in range(12):
                keys = [f"kept-{way}-{turn}-{i}" for i in range(16)]
                store.put_batch(keys, [bytes(MIB)] * 16)
                store.get_batch(keys)
                store.remove_batch(keys, force=True)
                if turn == 1:
                    threads, files = threading.active_count(), len(descriptors())
            eventually(lambda t=threads: threading.active_count() <= t, 2, "no threads")  # type: ignore[misc]
            assert len(descriptors()) <= files + 1


def test_roles_that_have_nothing_to_do_do_nothing(calm: Cluster) -> None:
    calm.stores[0].put("held", b"x")
    client = calm.worker("hold", keys=["held"], ttl_s=60.0)
    assert first_line(client) == "1"
    pids = {"master": calm.master.pid, "node": calm.nodes["a"].pid, "client": client.pid}
    time.sleep(0.5)  # the node's touching of its memory ahead, the last messages
    before = {role: cpu_s(pid) for role, pid in pids.items()}
    time.sleep(IDLE_S)
    used = {role: cpu_s(pid) - before[role] for role, pid in pids.items()}
    assert all(spent <= SHARE * IDLE_S + 2 * TICK_S for spent in used.values()), used
