"""A node that is stopped in the middle of large transfers, and goes on later."""

import contextlib
import os
import signal
import threading
import time
from collections.abc import Iterator
from typing import Any

import pytest

from moonpool import Store
from moonpool.errors import MoonpoolError
from tests.adversarial.harness import Cluster, eventually, running
from tests.adversarial.leftovers import nothing_left, within
from tests.adversarial.values import MIB, value_of
from tests.integration.processes import freeze

SIZE = 4 * MIB - 4096
COUNT = 16
TIMEOUT_S = 0.5


@pytest.fixture(scope="module")
def pair(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Cluster]:
    """Run a master and two nodes."""
    nodes = [("a", "100MB"), ("b", "100MB")]
    with running(tmp_path_factory.mktemp("pair"), nodes, put_timeout_s=5.0) as cluster:
        yield cluster


@pytest.fixture
def two(pair: Cluster) -> Cluster:
    """Return two nodes, running and empty."""
    for node in pair.nodes.values():
        os.kill(node.pid, signal.SIGCONT)
    eventually(lambda: pair.ready_nodes() == 2, 10, "both nodes are there")
    pair.stores[0].remove_all(force=True)
    return pair


def values(prefix: str) -> dict[str, bytes]:
    """Return large values."""
    return {f"{prefix}-{i}": value_of(f"{prefix}-{i}", 0, SIZE) for i in range(COUNT)}


@contextlib.contextmanager
def stopped(cluster: Cluster, name: str, after_s: float) -> Iterator[threading.Thread]:
    """Stop a node a moment later; let it go on at the end."""
    pid = cluster.nodes[name].pid

    def stop() -> None:
        time.sleep(after_s)
        freeze(pid)

    thread = threading.Thread(target=stop)
    thread.start()
    try:
        yield thread
    finally:
        thread.join()
        os.kill(pid, signal.SIGCONT)


def works(store: Store, wanted: dict[str, bytes]) -> None:
    """Check that everything is to be had again, and that all that is there is right."""

    def there() -> bool:
        try:
            return store.get_batch(list(wanted)) == list(wanted.values())
        except MoonpoolError:
            return False

    eventually(there, 10, "the pool works again")


@pytest.mark.parametrize("after_s", [0.0, 0.02])
def test_a_node_that_stops_in_the_middle_of_a_large_get(two: Cluster, after_s: float) -> None:
    wanted = values("get")
    assert set(two.stores[0].put_batch(list(wanted), list(wanted.values()))) == {0}
    options: dict[str, Any] = {"transports": ("tcp",), "timeout_s": TIMEOUT_S}
    with nothing_left(), Store.connect(two.address, **options) as store:
        with stopped(two, "a", after_s), within(2 * (TIMEOUT_S + COUNT * SIZE / (32 * MIB))):
            found = store.get_batch(list(wanted))
        for value, key in zip(found, wanted, strict=True):
            assert value in (None, wanted[key])
        right = sum(value is not None for value in found)
        assert right >= COUNT // 4, f"{right} objects; half of them are on the other node"
        works(store, wanted)


@pytest.mark.parametrize("after_s", [0.0, 0.02])
def test_a_node_that_stops_in_the_middle_of_a_large_put(two: Cluster, after_s: float) -> None:
    wanted = values(f"put{after_s}")
    with (
        nothing_left(),
        Store.connect(
            two.address, transports=("tcp",), timeout_s=TIMEOUT_S, put_timeout_s=1.0
        ) as store,
    ):
        with stopped(two, "a", after_s), within(2 * (TIMEOUT_S + COUNT * SIZE / (32 * MIB))):
            codes = store.put_batch(list(wanted), list(wanted.values()))
            assert set(codes) <= {0, -800}, codes
            assert codes.count(0) >= COUNT // 4, codes
        for key, code, there in zip(wanted, codes, store.exists_batch(list(wanted)),
                                    strict=True):  # fmt: skip
            assert there == (code == 0), key
        works(store, {k: v for (k, v), code in zip(wanted.items(), codes, strict=True)
                      if code == 0})  # fmt: skip
        # The node goes on with what it had received; nobody may ever see that.
        again = values(f"again{after_s}")
        assert set(store.put_batch(list(again), list(again.values()))) == {0}
        works(store, again)
    with Store.connect(two.address) as near:
        assert near.get_batch(list(again)) == list(again.values())


def test_a_stopped_node_does_not_hold_up_what_needs_only_others(two: Cluster) -> None:
    store = two.connect(transports=("shm", "tcp"), timeout_s=TIMEOUT_S)
    wanted = {f"small-{i}": value_of(f"small-{i}", 0, 10_000) for i in range(20)}
    store.put_batch(list(wanted), list(wanted.values()))
    with stopped(two, "a", 0.0) as stopping:
        stopping.join()
        with within(1.0):
            assert store.match_prefix(list(wanted)) == len(wanted)
            assert store.get_batch(list(wanted)) == list(wanted.values()), "over shared memory"
    works(store, wanted)
