"""Objects that are read much are copied to more hosts, and given up there when they are not."""

from __future__ import annotations

import contextlib
import os
import threading
import time
from pathlib import Path

import pytest

from moonpool import Store
from tests.integration.processes import Master, Node, eventually, ready_segments

pytestmark = pytest.mark.timeout(240)

LONG_S = 120.0
HOT = [f"system-{i}" for i in range(8)]
COLD = [f"turn-{i}" for i in range(40)]


def test_a_prefix_that_everybody_reads_is_on_more_hosts_for_as_long(tmp_path: Path) -> None:
    values = {key: os.urandom(100_000) for key in [*HOT, *COLD]}
    with contextlib.ExitStack() as stack:
        master = stack.enter_context(Master(tmp_path, hot_reads_per_s=20, hot_copies_max=1))
        for i in range(3):
            stack.enter_context(Node(tmp_path, master, f"n{i}", size="32MB"))
        store = stack.enter_context(Store.connect(master.address, transports=("tcp",)))
        eventually("segments are ready", lambda: ready_segments(store) == 3)
        assert not any(store.put_batch(list(values), list(values.values())))
        stop = threading.Event()
        wrong: list[str] = []

        def read() -> None:
            with Store.connect(master.address, transports=("tcp",)) as reader:
                while not stop.wait(0.005):
                    wrong.extend(
                        k for k, v in zip(HOT, reader.get_batch(HOT), strict=True) if v != values[k]
                    )

        threads = [threading.Thread(target=read) for _ in range(2)]
        for each in threads:
            each.start()
        try:
            eventually(
                "each is on two hosts", lambda: all(store.stat(k).hosts == 2 for k in HOT), LONG_S
            )
            assert {store.stat(key).hosts for key in COLD} == {1}
            assert {store.stat(key).replicas for key in HOT} == {1}
            assert "moonpool_spare_objects 8.0" in master.http("/metrics").decode()
            time.sleep(1.0)  # they are read at both places
        finally:
            stop.set()
            for each in threads:
                each.join(LONG_S)
        assert wrong == []
        eventually(
            "each is on one host again", lambda: all(store.stat(k).hosts == 1 for k in HOT), LONG_S
        )
        assert store.get_batch(list(values)) == list(values.values())
        counters = store.status().counters
        assert counters["hot_copies"] >= len(HOT)
        assert counters.get("evicted_objects", 0) == 0
