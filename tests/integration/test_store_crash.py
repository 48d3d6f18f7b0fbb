"""What happens to a store's objects when processes die."""

from __future__ import annotations

import signal
import subprocess
import sys
from pathlib import Path

import pytest

from moonpool import MasterUnreachableError, MoonpoolError, NotFoundError, Store
from tests.integration.processes import (
    Master,
    environment,
    eventually,
    freeze,
    pool,
    ready_segments,
)

MIB = 1 << 20
WAYS = [("shm",), ("tcp",)]

DIES_IN_A_PUT = """
import os, signal, sys
import numpy as np
from moonpool import Store
from moonpool.client.putting import Putter

store = Store.connect({address!r}, transports={ways!r})
store.put("before", b"x" * 4096)

def die(*_):
    print("dying", flush=True)
    os.kill(os.getpid(), signal.SIGKILL)

{where} = die
store.put("half", bytes({size}))
"""
AFTER_START = "Putter._fill_one"
AFTER_WRITE = "store._channel.call"


def values(count: int) -> tuple[list[str], list[bytes]]:
    return [f"k{i}" for i in range(count)], [
        bytes([i % 251]) * (1000 + 501 * i) for i in range(count)
    ]


def used_bytes(store: Store) -> int:
    return sum(segment.used_bytes + segment.pending_bytes for segment in store.status().segments)


@pytest.mark.parametrize("ways", WAYS, ids="+".join)
@pytest.mark.parametrize("where", [AFTER_START, AFTER_WRITE], ids=["not written", "not ended"])
def test_a_client_killed_in_a_put_leaves_nothing_behind(
    tmp_path: Path, ways: tuple[str, ...], where: str
) -> None:
    with pool(tmp_path) as (master, _), Store.connect(master.address) as store:
        code = DIES_IN_A_PUT.format(address=master.address, ways=ways, where=where, size=40 * MIB)
        died = subprocess.run(
            [sys.executable, "-c", code],
            env=environment(),
            capture_output=True,
            text=True,
            timeout=60,
            check=False,
        )
        assert (died.returncode, died.stdout) == (-signal.SIGKILL, "dying\n"), died.stderr
        eventually("the put is forgotten", lambda: store.status().puts_in_progress == 0)
        eventually("its space is back", lambda: used_bytes(store) == 4096)
        assert not store.exists("half")
        assert store.get("before") == b"x" * 4096
        assert store.put("half", bytes(40 * MIB))


@pytest.mark.parametrize("ways", WAYS, ids="+".join)
def test_after_a_masters_restart_everything_is_readable_again(
    tmp_path: Path, ways: tuple[str, ...]
) -> None:
    keys, contents = values(60)
    with (
        pool(tmp_path, nodes=2) as (master, _),
        Store.connect(master.address, transports=ways) as store,
    ):
        assert store.put_batch(keys, contents) == [0] * 60
        master.kill()
        with pytest.raises(MasterUnreachableError):
            store.get("k1")
        master.start()
        with Store.connect(master.address) as probe:
            eventually("the nodes are back", lambda: ready_segments(probe) == 2)
        eventually("the store is back", lambda: not is_down(store))
        assert store.get_batch(keys) == contents
        assert store.match_prefix(keys) == 60
        assert store.put("new", b"x" * MIB)
        assert store.get("new") == b"x" * MIB


def is_down(store: Store) -> bool:
    try:
        store.exists("a")
    except MasterUnreachableError:
        return True
    return False


@pytest.mark.parametrize("ways", WAYS, ids="+".join)
def test_a_killed_nodes_objects_are_misses_at_once_and_come_back_with_it(
    tmp_path: Path, ways: tuple[str, ...]
) -> None:
    keys, contents = values(40)
    with (
        pool(tmp_path) as (master, (node,)),
        Store.connect(master.address, transports=ways) as store,
    ):
        assert store.put_batch(keys, contents) == [0] * 40
        assert store.get("k3") == contents[3]
        node.kill()
        eventually("they are misses", lambda: store.match_prefix(keys) == 0, 2.0)
        assert store.get_batch(keys) == [None] * 40
        with pytest.raises(NotFoundError):
            store.get("k3")
        node.start()
        eventually("they are back", lambda: store.match_prefix(keys) == 40)
        assert store.get_batch(keys) == contents
        assert store.put("new", b"x")


@pytest.mark.parametrize("ways", WAYS, ids="+".join)
def test_a_replica_survives_the_other_node(tmp_path: Path, ways: tuple[str, ...]) -> None:
    with (
        pool(tmp_path, nodes=2) as (master, nodes),
        Store.connect(master.address, transports=ways) as store,
    ):
        for i in range(20):
            assert store.put(f"k{i}", bytes([i]) * 50_000, replicas=2)
        keys, contents = values(0)
        keys, contents = [f"b{i}" for i in range(20)], [bytes([i]) * 30_000 for i in range(20)]
        assert store.put_batch(keys, contents, replicas=2) == [0] * 20
        assert len(store.stat("k0").segments) == 2
        nodes[0].kill()
        # Also in the moment in which the master may not know yet.
        assert [store.get(f"k{i}") for i in range(20)] == [bytes([i]) * 50_000 for i in range(20)]
        assert store.get_batch(keys) == contents
        eventually("one replica is left", lambda: len(store.stat("k0").segments) == 1)
        nodes[0].start()
        eventually("both are back", lambda: len(store.stat("k0").segments) == 2)
        nodes[1].kill()
        assert [store.get(f"k{i}") for i in range(20)] == [bytes([i]) * 50_000 for i in range(20)]


def test_a_node_that_dies_in_a_transfer_is_a_code_and_no_exception(tmp_path: Path) -> None:
    keys, contents = values(8)
    with (
        pool(tmp_path) as (master, (node,)),
        Store.connect(master.address, transports=("tcp",), timeout_s=2.0) as store,
    ):
        assert store.put_batch(keys, contents) == [0] * 8
        freeze(node.process.pid)
        try:
            assert store.get_batch(keys[:1]) == [None]
            with pytest.raises(MoonpoolError):
                store.get("k0")
            assert store.put_batch(["new"], [b"x"]) == [-800]
        finally:
            node.process.send_signal(signal.SIGCONT)
        eventually("the node serves again", lambda: store.get_batch(keys) == contents)


def test_the_master_can_be_away_in_the_middle_of_a_put(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    with pool(tmp_path) as (master, _), Store.connect(master.address) as store:
        putter = store._putter
        write = putter._write

        def then_kill(*arguments: object) -> object:
            written = write(*arguments)  # type: ignore[arg-type]
            master.kill()
            return written

        monkeypatch.setattr(putter, "_write", then_kill)
        assert store.put_batch(["a", "b"], [b"x", b"y"]) == [-900, -900]
        monkeypatch.undo()
        master.start()
        eventually("the store is back", lambda: not is_down(store))
        eventually("the node is back", lambda: ready_segments(store) == 1)
        found = store.get_batch(["a", "b"])
        # They were sealed, so the node may well have brought them back; but only with their bytes.
        assert found in ([None, None], [b"x", b"y"])


def test_two_masters_cannot_share_a_port(tmp_path: Path) -> None:
    with Master(tmp_path) as master:
        second = Master(tmp_path, port=master.ready["port"])
        second.spawn()
        assert second.process.wait(30) == 2
