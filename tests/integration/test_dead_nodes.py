"""How soon the objects of a node that is gone stop being hits; how long depends on who can tell."""

from __future__ import annotations

import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from moonpool import Store
from tests.integration.networks import Hosts, needs_namespaces
from tests.integration.processes import Master, Node, eventually, pool, ready_segments

KEYS = [f"k{i}" for i in range(200)]
VALUES = [bytes([i]) * 5000 for i in range(200)]
TTL_S = 3.0
LATE_S = 60.0


def any_hits(store: Store) -> bool:
    return any(store.exists_batch(KEYS))


def test_killed(tmp_path: Path) -> None:
    with pool(tmp_path) as (master, (node,)), Store.connect(master.address) as store:
        took: list[float] = []
        for _ in range(3):
            assert set(store.put_batch(KEYS, VALUES)) <= {0, -705}
            node.kill()
            started = time.monotonic()
            eventually("its objects are misses", lambda: not any_hits(store), LATE_S)
            took.append(time.monotonic() - started)
            node.start()
            eventually("it is back", lambda: store.get_batch(KEYS) == VALUES, LATE_S)
        print(f"killed: misses after {', '.join(f'{s:.3f}' for s in took)} s")  # noqa: T201


@pytest.fixture(scope="module")
def hosts() -> Iterator[Hosts]:
    with Hosts(1) as made:
        yield made


@needs_namespaces
@pytest.mark.parametrize("sent", [False, True], ids=["idle", "something is on its way to it"])
def test_the_host_falls_silent(tmp_path: Path, hosts: Hosts, sent: bool) -> None:
    with Master(tmp_path, host=hosts.here, client_ttl_s=TTL_S) as master:
        node = Node(tmp_path, master, "n0", host=hosts.address(0))
        node.prefix = hosts.command(0)
        with node, Store.connect(master.address, transports=("tcp",)) as store:
            eventually("it is mounted", lambda: ready_segments(store) == 1)
            assert store.put_batch(KEYS, VALUES) == [0] * len(KEYS)
            hosts.cut(0)
            started = time.monotonic()
            try:
                if sent:
                    store.remove(KEYS[0])  # the node is to be told
                eventually("its objects are misses", lambda: not any_hits(store), LATE_S)
                took_s = time.monotonic() - started
                print(f"silent, {sent=}: misses after {took_s:.1f} s of ttl {TTL_S} s")  # noqa: T201
            finally:
                hosts.heal(0)
            eventually("it is back", lambda: ready_segments(store) == 1, LATE_S)
            first = int(sent)
            assert store.get_batch(KEYS[first:]) == VALUES[first:]
            assert not sent or not store.exists(KEYS[0])
