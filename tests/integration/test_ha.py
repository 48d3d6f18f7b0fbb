"""Three masters on a real etcd, and the leader killed, frozen, stopped or cut off from it."""

from __future__ import annotations

import contextlib
import signal
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from moonpool import MasterUnreachableError, MoonpoolError, Store
from moonpool.client.connection import Connection
from moonpool.config_values import parse_address
from moonpool.core.messages import Hello, PutItem, PutStart
from moonpool.errors import NotLeaderError
from moonpool.protocol.codec import encode
from moonpool.protocol.versions import PROTOCOL_MAX, PROTOCOL_MIN
from tests.integration.etcd import Etcd, needs_etcd
from tests.integration.processes import Master, Node, eventually, freeze
from tests.integration.trio import FAILOVER_S, Load, Trio, check_kept, epoch_of, thaw, trio

pytestmark = [needs_etcd, pytest.mark.timeout(180)]

HELLO = Hello(PROTOCOL_MIN, PROTOCOL_MAX, "client", "client/by-hand")


@pytest.fixture(scope="module")
def etcd(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Etcd]:
    with Etcd(tmp_path_factory.mktemp("etcd")) as started:
        yield started


def by_hand(master: Master) -> Connection:
    return Connection(parse_address(master.address), HELLO, 10.0)


@pytest.fixture(scope="module")
def shared(tmp_path_factory: pytest.TempPathFactory, etcd: Etcd) -> Iterator[Trio]:
    with trio(tmp_path_factory.mktemp("trio"), etcd) as started:
        yield started


@pytest.fixture
def pool(shared: Trio) -> Iterator[Trio]:
    yield shared
    shared.restore()
    shared.check()


@pytest.mark.parametrize("how", ["killed", "frozen", "stopped"])
def test_the_leader_is_lost_and_another_serves(pool: Trio, how: str) -> None:
    with (
        Store.connect(pool.list, timeout_s=2.0) as store,
        Load(pool.ha) as one,
        Load(pool.list) as other,
    ):
        first = pool.await_leader(store)
        loads = one, other
        eventually("puts", lambda: all(len(load.acknowledged) > 50 for load in loads))
        leader, started = pool.leader(), time.monotonic()
        if how == "killed":
            leader.kill()
        elif how == "frozen":
            freeze(leader.process.pid)
        else:
            assert leader.end() == 0
        second = pool.await_leader(store, above=first)
        took_s = time.monotonic() - started
        print(f"{how}: another leader serves after {took_s:.2f} s")  # noqa: T201
        before = [len(load.acknowledged) for load in loads]
        for load, count in zip(loads, before, strict=True):
            eventually("puts go on", lambda: len(load.acknowledged) > count + 50, FAILOVER_S)  # noqa: B023
        pool.restore()
        eventually("it says who leads", lambda: whom(leader) == pool.leader().address)
        assert store.status().epoch == second
        for load in loads:
            load.stop()
            check_kept(store, load.acknowledged)
        pool.check(*loads)


def whom(master: Master) -> str:
    """Return which leader a master names; empty if it leads itself or knows none."""
    try:
        by_hand(master).close()
    except NotLeaderError as error:
        return error.leader
    return ""


def test_a_leader_that_wakes_up_answers_nothing(pool: Trio) -> None:
    with Store.connect(pool.ha) as store:
        first = pool.await_leader(store)
        store.put("a", b"1" * 5000)
        leader = pool.leader()
        with contextlib.closing(by_hand(leader)) as late:
            freeze(leader.process.pid)
            late._sock.sendall(encode(9, PutStart([PutItem(b"\0b", 5000)])))
            pool.await_leader(store, above=first)
            store.put("b", b"2" * 5000)
            thaw(leader)
            with contextlib.suppress(ConnectionResetError):
                assert late._sock.recv(1 << 16) == b""
        eventually("it notices", lambda: f"no longer leads in epoch {first}" in leader.text())
        assert store.get("a") == b"1" * 5000
        assert store.get("b") == b"2" * 5000


def test_without_etcd_nobody_leads_and_all_is_there_when_it_is_back(pool: Trio) -> None:
    with Store.connect(pool.ha) as store:
        first = pool.await_leader(store)
        store.put("c", b"1" * 5000)
        leader = pool.leader()
        pool.etcd.freeze()
        try:
            over = f"no longer leads in epoch {first}"
            eventually("it stops by itself", lambda: over in leader.text(), 20)
            with pytest.raises(NotLeaderError):
                by_hand(leader)
            # The master is not stuck in a call to etcd: it answers, and says what is so.
            assert b'"standby"' in leader.http("/health")
            assert b"moonpool_leads 0.0" in leader.http("/metrics")
            with pytest.raises(MoonpoolError):
                store.get("c")
        finally:
            pool.etcd.thaw()
        second = pool.await_leader(store, above=first)
        assert store.get("c") == b"1" * 5000
        assert b"moonpool_leads 1.0" in pool.leader().http("/metrics")
        assert f'"epoch":{second}'.encode() in pool.leader().http("/health")


def test_a_node_that_comes_during_a_failover_is_taken_in(pool: Trio, tmp_path: Path) -> None:
    with Store.connect(pool.ha) as store:
        first = pool.await_leader(store)
        leader = pool.leader()
        freeze(leader.process.pid)
        with Node(tmp_path, leader, "late", ha=pool.ha) as late:
            pool.nodes.append(late)
            pool.await_leader(store, above=first)
            thaw(leader)
            pool.check()
            pool.nodes.remove(late)


def test_who_is_told_one_master_that_stands_by_follows(pool: Trio, tmp_path: Path) -> None:
    with Store.connect(pool.ha) as store:
        first = pool.await_leader(store)
        leader = pool.leader()
        standby = next(each for each in pool.masters if each is not leader)
        with (
            Node(tmp_path, standby, "one-master") as node,
            Store.connect(standby.address, timeout_s=2.0) as told_one,
        ):
            pool.nodes.append(node)
            pool.await_leader(store)
            assert told_one.status().epoch == first
            assert told_one.put("d", b"1" * 5000)
            leader.kill()
            second = pool.await_leader(store, above=first)
            eventually("it follows", lambda: epoch_of(told_one) == second, FAILOVER_S)
            assert told_one.get("d") == b"1" * 5000
            pool.restore()
            pool.nodes.remove(node)


def test_all_masters_and_etcd_are_killed_and_come_back(tmp_path: Path) -> None:
    own = tmp_path / "own"
    own.mkdir()
    with Etcd(own) as etcd, trio(tmp_path, etcd) as pool:
        with Store.connect(pool.ha) as store, Load(pool.ha) as load:
            first = pool.await_leader(store)
            eventually("some puts are acknowledged", lambda: len(load.acknowledged) > 50)
            for master in pool.masters:
                master.kill()
            etcd.end()
            etcd.start()
            for master in pool.masters:
                master.start()
            pool.await_leader(store, above=first)
            load.stop()
            check_kept(store, load.acknowledged)
        pool.check(load)


def test_a_wrong_token_is_no_reason_to_look_for_another_leader(tmp_path: Path, etcd: Etcd) -> None:
    with Master(tmp_path, ha=f"etcd://{etcd.address}/token", token="right") as master:
        eventually("it leads", lambda: "leads in epoch" in master.text())
        with pytest.raises(MoonpoolError, match="token"):
            Store.connect(master.address, token="wrong")
        with pytest.raises(MoonpoolError, match="token"):
            Store.connect(f"etcd://{etcd.address}/token", token="wrong")


def test_a_lone_master_is_not_asked_who_leads(tmp_path: Path) -> None:
    with Master(tmp_path) as master, Store.connect(master.address) as store:
        assert store.status().epoch > 0
        assert not store._channel._seeker.follows  # type: ignore[attr-defined]


def test_nobody_leads_is_said(tmp_path: Path, etcd: Etcd) -> None:
    with pytest.raises(MasterUnreachableError, match="no master leads"):
        Store.connect(f"etcd://{etcd.address}/nobody")
    with pytest.raises(MasterUnreachableError, match="cannot be asked"):
        Store.connect("etcd://127.0.0.1:1/nobody")


def test_a_signal_ends_a_master_that_stands_by(tmp_path: Path) -> None:
    with Master(tmp_path, ha="etcd://127.0.0.1:1") as master:
        with pytest.raises(NotLeaderError):
            by_hand(master)
        assert master.end(signal.SIGTERM) == 0
        assert "Traceback" not in master.text()
