"""Hosts die and what they had copies of is copied anew, whoever is killed in the middle of it."""

from __future__ import annotations

import contextlib
import signal
from collections.abc import Iterator
from pathlib import Path

import pytest

from moonpool import MoonpoolError, Store
from tests.integration.processes import Master, Node, eventually, freeze, ready_segments
from tests.integration.test_drain import COUNT, KEYS, LONG_S, VALUES

pytestmark = pytest.mark.timeout(240)

ALL = [VALUES[key] for key in KEYS]
COPIER = "moonpool.node.copier:Copier"
SEGMENT = "moonpool.transport.segment:Segment"


@contextlib.contextmanager
def replicated(
    folder: Path, point: str = "", **keys: object
) -> Iterator[tuple[Master, list[Node], Store]]:
    """A master and three nodes, each a host of its own, with two copies of each object.

    point: where n1 is to die.
    """
    with contextlib.ExitStack() as stack:
        master = stack.enter_context(Master(folder, **({"repair_after_s": 0.3} | keys)))
        nodes = [Node(folder, master, f"n{i}", size="96MB") for i in range(3)]
        if point:
            nodes[1].module = ("tests.integration.failpoints", point, "node")
        for node in nodes:
            stack.enter_context(node)
        store = stack.enter_context(
            Store.connect(master.address, name="operator", transports=("tcp",))
        )
        eventually("segments are ready", lambda: ready_segments(store) == 3)
        assert not any(store.put_batch(KEYS, ALL, replicas=2))
        assert thin(store) == 0
        yield master, nodes, store


def thin(store: Store) -> int:
    """Return how many objects are on fewer than two hosts, -1 while nobody can tell."""
    with contextlib.suppress(MoonpoolError):
        infos = list(store.list())
        return sum(each.hosts < 2 for each in infos) if len(infos) == COUNT else -1
    return -1


def is_whole(store: Store) -> bool:
    with contextlib.suppress(MoonpoolError):
        return thin(store) == 0 and store.status().thin == 0
    return False


def check_space(store: Store) -> None:
    """Nothing is left where all objects are removed."""
    assert store.remove_all() == COUNT

    def is_clean() -> bool:
        status = store.status()
        return not status.copying and not any(s.used_bytes for s in status.segments)

    eventually("no space is lost", is_clean, LONG_S)


def test_two_hosts_die_one_after_the_other_and_nothing_is_lost(tmp_path: Path) -> None:
    with replicated(tmp_path) as (master, nodes, store):
        nodes[0].kill()
        eventually("two copies of each again", lambda: is_whole(store), LONG_S)
        nodes[1].kill()
        eventually("it is noticed", lambda: ready_segments(store) == 1, LONG_S)
        assert store.get_batch(KEYS) == ALL
        assert store.status().counters["repair_copies"] >= COUNT // 2
        metrics = master.http("/metrics").decode()
        assert f"moonpool_thin_objects {float(COUNT)}" in metrics
        assert "moonpool_repair_copy_bytes_total" in metrics
        nodes[0].start()
        eventually("and again", lambda: is_whole(store), LONG_S)
        assert store.get_batch(KEYS) == ALL
        check_space(store)


def test_a_new_master_makes_up_for_a_host_that_died_with_the_old_one(tmp_path: Path) -> None:
    with replicated(tmp_path) as (master, nodes, store):
        nodes[2].kill()
        master.kill()
        master.start()
        eventually("two copies of each again", lambda: is_whole(store), LONG_S)
        assert store.get_batch(KEYS) == ALL
        check_space(store)


def die_and_heal(nodes: list[Node], store: Store) -> None:
    """Let n0 die and with it n1, which is to die in the middle of a copy; start both again."""
    nodes[0].kill()
    eventually("it has died", lambda: nodes[1].process.poll() is not None, LONG_S)
    nodes[1].module = ("moonpool.node",)
    nodes[1].start()
    nodes[0].start()
    eventually("two copies of each again", lambda: is_whole(store), LONG_S)
    assert store.get_batch(KEYS) == ALL
    check_space(store)


@pytest.mark.parametrize(
    "point",
    # The first call: what is copied may all come in one batch.
    [f"{COPIER}._fill@before#1", f"{SEGMENT}.seal@after#1", f"{COPIER}._end@after#1"],
)
def test_a_target_dies_in_the_middle_of_copies(tmp_path: Path, point: str) -> None:
    with replicated(tmp_path, copy_rate="0") as (_master, nodes, store):
        # One that dies at that point in the place of n1, whose share the others make anew.
        nodes[1].kill()
        nodes[1].module = ("tests.integration.failpoints", point, "node")
        nodes[1].start()
        eventually("it is back", lambda: ready_segments(store) == 3, LONG_S)
        die_and_heal(nodes, store)


def test_a_source_dies_in_the_middle_of_copies(tmp_path: Path) -> None:
    point = "moonpool.node.handler:Handler._read@before#1"
    with replicated(tmp_path, point, copy_rate="0") as (_master, nodes, store):
        die_and_heal(nodes, store)


@pytest.mark.parametrize("verb", ["PutEnd", "Tick"])
def test_the_master_dies_in_the_middle_of_copies(tmp_path: Path, verb: str) -> None:
    with replicated(tmp_path, copy_rate="6MB") as (master, nodes, store):
        nodes[0].kill()
        eventually("some are copied", lambda: "repair_copies" in store.status().counters, LONG_S)
        master.kill()
        point = (
            f"moonpool.core.master:MasterState.handle[{verb}]@after#{8 if verb == 'Tick' else 2}"
        )
        master.module = ("tests.integration.failpoints", point, "master")
        master.spawn()
        eventually("it has died", lambda: master.process.poll() is not None, LONG_S)
        master.module = ("moonpool.master",)
        master.start()
        nodes[0].start()
        eventually("two copies of each again", lambda: is_whole(store), LONG_S)
        assert store.get_batch(KEYS) == ALL
        check_space(store)


def test_a_source_that_hangs_is_given_up_and_another_is_taken(tmp_path: Path) -> None:
    with replicated(tmp_path, copy_rate="4MB") as (_master, nodes, store):
        nodes[0].kill()
        eventually("some are copied", lambda: "repair_copies" in store.status().counters, LONG_S)
        freeze(nodes[1].process.pid)
        eventually(
            "copies fail", lambda: store.status().counters.get("copies_failed", 0) > 0, LONG_S
        )
        nodes[1].process.send_signal(signal.SIGCONT)
        eventually("two copies of each again", lambda: is_whole(store), LONG_S)
        assert store.get_batch(KEYS) == ALL
        check_space(store)


def test_damaged_bytes_are_not_copied(tmp_path: Path) -> None:
    with replicated(tmp_path) as (_master, nodes, store):
        damaged = next(k for k in KEYS if any("n1/" in s for s in store.stat(k).segments))
        for node in nodes[1:2]:
            for path in node.segment_dir.glob("*/*.seg"):
                found = path.read_bytes().find(VALUES[damaged])
                with path.open("r+b") as file:
                    file.seek(found + 1000)
                    file.write(b"damage")
        other = next(s for s in store.stat(damaged).segments if "n1/" not in s).partition("/")[0]
        nodes[int(other[1])].kill()
        eventually("the others are copied", lambda: thin(store) == 1, LONG_S)
        eventually("it is tried", lambda: store.status().counters.get("copies_failed", 0) > 1)
        assert store.stat(damaged).segments == ["n1/segment-0"]
        with pytest.raises(MoonpoolError):
            store.get(damaged)
