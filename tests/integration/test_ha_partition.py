"""Masters on hosts of their own, and the leader cut off: from etcd alone, and from everybody."""

from __future__ import annotations

import time
from collections.abc import Iterator

import pytest

from moonpool import Store
from tests.integration.etcd import Etcd, needs_etcd
from tests.integration.networks import Hosts, needs_namespaces
from tests.integration.processes import eventually
from tests.integration.trio import FAILOVER_S, Load, Trio, check_kept, trio

pytestmark = [needs_etcd, needs_namespaces, pytest.mark.timeout(180)]


@pytest.fixture(scope="module")
def hosts() -> Iterator[Hosts]:
    with Hosts(3) as made:
        yield made


@pytest.fixture(scope="module")
def pool(tmp_path_factory: pytest.TempPathFactory, hosts: Hosts) -> Iterator[Trio]:
    folder = tmp_path_factory.mktemp("trio")
    with Etcd(folder, host=hosts.there) as etcd, trio(folder, etcd, hosts=hosts) as started:
        yield started


@pytest.mark.parametrize("cut", ["from etcd", "from everybody"])
def test_a_leader_that_is_cut_off_is_replaced_and_changes_nothing(
    pool: Trio, hosts: Hosts, cut: str
) -> None:
    with Store.connect(pool.ha, timeout_s=2.0) as store, Load(pool.ha) as load:
        first = pool.await_leader(store)
        eventually("puts", lambda: len(load.acknowledged) > 50)
        leader = pool.leader()
        host = pool.masters.index(leader)
        if cut == "from etcd":
            hosts.cut_from(host, hosts.there)
        else:
            hosts.cut(host)
        started = time.monotonic()
        try:
            pool.await_leader(store, above=first)
            took_s = time.monotonic() - started
            print(f"cut {cut}: another leader serves after {took_s:.2f} s")  # noqa: T201
            over = f"no longer leads in epoch {first}"
            eventually("it stopped by itself", lambda: over in leader.text())
            before = len(load.acknowledged)
            eventually("puts go on", lambda: len(load.acknowledged) > before + 50, FAILOVER_S)
        finally:
            if cut == "from etcd":
                hosts.heal_from(host, hosts.there)
            else:
                hosts.heal(host)
        load.stop()
        check_kept(store, load.acknowledged)
        assert pool.leader() is not leader
        pool.check(load)
