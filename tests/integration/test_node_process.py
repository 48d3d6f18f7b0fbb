"""The node as a process: its segments over kills, restarts and clean ends."""

from __future__ import annotations

import contextlib
import os
import signal
import socket
from pathlib import Path

import pytest

from moonpool import MoonpoolError, Store
from tests.integration.processes import Master, Node, eventually, pool, ready_segments

KEYS = [f"key-{i}" for i in range(300)]
VALUES = [os.urandom(1 + 37 * i) for i in range(300)]


def fill(store: Store) -> None:
    assert store.put_batch(KEYS, VALUES) == [0] * len(KEYS)


def all_there(store: Store) -> bool:
    with contextlib.suppress(MoonpoolError):
        return store.get_batch(KEYS) == VALUES
    return False


@pytest.mark.parametrize("way", ["shm", "tcp"])
def test_put_here_get_there(tmp_path: Path, way: str) -> None:
    with pool(tmp_path) as (master, _nodes):
        with Store.connect(master.address, transports=(way,)) as one:
            fill(one)
        with Store.connect(master.address, transports=("tcp", "shm")) as two:
            assert all_there(two)


def test_a_clean_end_leaves_no_files(tmp_path: Path) -> None:
    with pool(tmp_path) as (master, (node,)), Store.connect(master.address) as store:
        fill(store)
        assert list(node.segment_dir.rglob("*.seg"))
        assert node.end() == 0
        assert not node.segment_dir.exists()
        eventually("the segment is unmounted", lambda: ready_segments(store) == 0)
        assert store.exists_batch(KEYS) == [False] * len(KEYS)


@pytest.mark.parametrize("way", ["shm", "tcp"])
def test_a_killed_node_comes_back_with_its_objects(tmp_path: Path, way: str) -> None:
    with (
        pool(tmp_path) as (master, (node,)),
        Store.connect(master.address, transports=(way,)) as store,
    ):
        fill(store)
        before = {path: path.stat().st_ino for path in node.segment_dir.rglob("*.seg")}
        node.kill()
        eventually("its objects are gone", lambda: not any(store.exists_batch(KEYS)))
        node.start()
        eventually("they are back", lambda: all_there(store))
        assert {path: path.stat().st_ino for path in node.segment_dir.rglob("*.seg")} == before
        assert store.put("another", b"x") is True
        assert store.get("another") == b"x"


def test_a_master_that_restarts_learns_all_again(tmp_path: Path) -> None:
    with pool(tmp_path, nodes=2) as (master, _nodes), Store.connect(master.address) as store:
        fill(store)
        store.remove(KEYS[0])
        master.kill()
        master.start()
        eventually("both are mounted", lambda: ready_segments(store) == 2, 20.0)
        assert store.get_batch(KEYS[1:]) == VALUES[1:]
        assert not store.exists(KEYS[0])
        assert store.put(KEYS[0], b"new") is True
        assert store.get(KEYS[0]) == b"new"


def test_a_node_waits_for_its_master(tmp_path: Path) -> None:
    with Master(tmp_path) as master:
        address = master.address
        master.kill()
        node = Node(tmp_path, master, "early")
        node.spawn()
        try:
            master.start()
            assert master.address == address
            with Store.connect(address) as store:
                eventually("it is mounted", lambda: ready_segments(store) == 1, 20.0)
            assert node.end(signal.SIGINT) == 0
        finally:
            node.kill()


def test_a_port_in_use(tmp_path: Path) -> None:
    with Master(tmp_path) as master, socket.create_server(("127.0.0.1", 0)) as taken:
        node = Node(tmp_path, master, "n", port=taken.getsockname()[1])
        node.spawn()
        assert node.process.wait(20) == 2
        assert "port: cannot listen" in node.text()
        assert "Traceback" not in node.text()
        assert not node.segment_dir.exists()


def test_two_nodes_of_one_name(tmp_path: Path) -> None:
    with pool(tmp_path) as (master, (node,)), Store.connect(master.address) as store:
        fill(store)
        twin = Node(tmp_path, master, "n0", segment_dir=node.segment_dir)
        twin.spawn()
        assert twin.process.wait(20) == 2
        assert "name: a node 'n0' runs on this host already" in twin.text()
        assert all_there(store)


def test_more_than_the_machine_has(tmp_path: Path) -> None:
    with Master(tmp_path) as master:
        node = Node(tmp_path, master, "n", size="2TB", segment_size="2TB")
        node.spawn()
        assert node.process.wait(20) == 2
        assert "size: " in node.text()
        assert not list(node.segment_dir.rglob("*.seg"))
