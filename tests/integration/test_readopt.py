"""A node that starts again: it announces at once what it held, and compares it afterwards."""

from __future__ import annotations

import signal
import time
from pathlib import Path

import pytest

from moonpool import Store
from tests.integration.processes import Node, eventually, freeze, pool, ready_segments

MIB = 1 << 20


def value_of(number: int) -> bytes:
    return (number + 1).to_bytes(4, "little") * 25_000


def doubts(node: Node) -> list[Path]:
    return list(node.segment_dir.glob("*/*.doubt"))


@pytest.mark.parametrize("way", ["shm", "tcp"])
def test_what_is_damaged_is_never_read_and_soon_forgotten(tmp_path: Path, way: str) -> None:
    with (
        pool(tmp_path) as (master, (node,)),
        Store.connect(master.address, transports=(way,)) as store,
    ):
        keys = [f"k{i}" for i in range(200)]
        assert store.put_batch(keys, [value_of(i) for i in range(200)]) == [0] * 200
        node.kill()
        (path,) = node.segment_dir.glob("*/*.seg")
        raw = path.read_bytes()
        with path.open("r+b") as file:
            for i in range(0, 200, 10):
                file.seek(raw.index(value_of(i)) + 777)
                file.write(b"\xff")
        del raw
        node.start()
        eventually("the node is back", lambda: ready_segments(store) == 1)
        for i, value in enumerate(store.get_batch(keys)):
            assert value in (None, value_of(i)), f"wrong bytes of {keys[i]}"
            assert (value is None) == (i % 10 == 0)
        eventually("all is compared", lambda: not doubts(node))
        assert "20 damaged objects" in node.text()
        eventually("it is forgotten", lambda: store.status().objects == 180)
        # The keys of what was damaged are free again.
        assert store.put_batch(keys[::10], [value_of(i) for i in range(0, 200, 10)]) == [0] * 20
        assert store.get_batch(keys) == [value_of(i) for i in range(200)]


def test_a_node_that_dies_again_before_all_is_compared(tmp_path: Path) -> None:
    with (
        pool(tmp_path, size="256MB") as (master, (node,)),
        Store.connect(master.address) as store,
    ):
        keys = [f"k{i}" for i in range(1000)]
        assert store.put_batch(keys, [value_of(i) for i in range(1000)]) == [0] * 1000
        for _ in range(3):
            node.kill()
            node.start()
        eventually("the node is back", lambda: ready_segments(store) == 1)
        assert store.get_batch(keys) == [value_of(i) for i in range(1000)]
        eventually("all is compared", lambda: not doubts(node))
        assert store.get_batch(keys) == [value_of(i) for i in range(1000)]
        assert node.end() == 0
        assert not list(node.segment_dir.glob("*/*"))


def test_a_node_that_stalls_for_five_seconds_loses_nothing(tmp_path: Path) -> None:
    with pool(tmp_path) as (master, (node,)), Store.connect(master.address) as store:
        keys = [f"k{i}" for i in range(100)]
        assert store.put_batch(keys, [value_of(i) for i in range(100)]) == [0] * 100
        freeze(node.process.pid)
        time.sleep(5)
        assert store.exists_batch(keys) == [True] * 100
        node.process.send_signal(signal.SIGCONT)
        assert store.get_batch(keys) == [value_of(i) for i in range(100)]
        with Store.connect(master.address, transports=("tcp",)) as far:
            assert far.get_batch(keys) == [value_of(i) for i in range(100)]
        assert "no session" not in node.text()
