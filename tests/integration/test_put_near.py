"""Where objects of an engine go."""

from __future__ import annotations

from collections import Counter
from pathlib import Path

from moonpool import Store
from tests.integration.processes import pool

MIB = 1 << 20


def places(store: Store) -> Counter[str]:
    """Return how many objects each node has."""
    return Counter(info.segments[0].split("/")[0] for info in store.list())


def test_puts_stay_on_this_host_while_it_has_room(tmp_path: Path) -> None:
    # Two nodes with directories of their own are two hosts as far as the pool can tell.
    with pool(tmp_path, nodes=2) as (master, _):
        with Store.connect(master.address) as even:
            for i in range(20):
                assert even.put(f"even-{i}", bytes(MIB))
            assert sorted(places(even).values()) == [10, 10]
            even.remove_all()
        with Store.connect(master.address, put_near=True) as near:
            near.open_ways()
            here = near._reach.near_host
            node = next(s.info.node for s in near.status().segments if s.info.host == here)
            for i in range(40):
                assert near.put(f"near-{i}", bytes(MIB))
            assert places(near) == {node: 40}
            assert near.put_batch([f"more-{i}" for i in range(40)], [bytes(MIB)] * 40) == [0] * 40
            assert places(near)[node] >= 60
            assert places(near).total() == 80
