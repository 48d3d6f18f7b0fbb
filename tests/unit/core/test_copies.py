"""Copies on distinct hosts: how many, which are made up for, when, and how fast."""

from __future__ import annotations

from itertools import pairwise
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from moonpool.core import messages as m
from moonpool.core.copies import are_tagged, is_spare, is_tagged, next_generation, wanted_of
from moonpool.core.index import Object, placed
from moonpool.core.keys import key_of
from tests.unit.core.driver import PAGE, Driver

A, B, C = key_of("a"), key_of("b"), key_of("c")


class Pool(Driver):
    """A master whose nodes can fetch from one another; the tests play them."""

    def __init__(self, *nodes: str, pages: int = 64, **config: Any) -> None:
        super().__init__(**({"repair_after_s": 5.0} | config))
        self.handles = {node: self.join(node, pages) for node in nodes}

    def join(
        self, node: str, pages: int = 64, *found: m.Found, host: str = "", draining: bool = False
    ) -> int:
        place = pages * PAGE, 2 * pages
        info = m.SegmentInfo("s0", node, host or f"host-{node}", f"{node}:1", "/p", *place)
        mount = m.Mount(info, 0, copies=True, draining=draining)
        handle = self.expect(m.Mounted, mount, node).handle
        self.expect(m.Announced, m.Announce(handle, list(found), True), node)
        return handle

    def told(self, kind: type[m.Message]) -> list[tuple[str, Any]]:
        return [(peer, push) for peer, push in self.take_pushes() if isinstance(push, kind)]

    def copies(self) -> list[tuple[str, m.CopyItem]]:
        return [(peer, item) for peer, push in self.told(m.Copy) for item in push.items]

    def made(self, *copies: tuple[str, m.CopyItem]) -> list[int]:
        """The nodes have made copies; return the codes that they are answered."""
        codes = []
        for peer, item in copies:
            request = m.PutEnd([item.generation], [item.checksum])
            codes += self.expect(m.Codes, request, peer).codes
        return codes

    def failed(self, *copies: tuple[str, m.CopyItem]) -> None:
        for peer, item in copies:
            self.expect(m.Codes, m.PutRevoke([item.generation]), peer)

    def copy_all(self) -> int:
        """Let the nodes make all copies; return how many."""
        count = 0
        while copies := self.copies():
            count += len(copies)
            assert self.made(*copies) == [0] * len(copies)
            self.tick()
        return count

    def nodes_of(self, key: bytes) -> set[str]:
        found = self.stat(key)
        return {name.partition("/")[0] for name in found.segments} if found else set()

    def mount_disk(self, node: str) -> int:
        info = m.DiskInfo(node, 1 << 30, m.WRITE_THROUGH, 1 << 20, 1 << 20)
        handle = self.expect(m.Mounted, m.MountDisk(info), node).handle
        self.expect(m.Announced, m.Shelve(handle, []), node)
        return handle

    def shelve(self, disk: int, key: bytes, node: str) -> None:
        """Let a node write an object that it was asked to write."""
        found = self.stat(key)
        assert found is not None
        told = m.Shelved(key, found.parent, found.size, found.checksum, found.generation)
        assert self.expect(m.Announced, m.Shelve(disk, [told]), node).rejected == []

    def drain(self, node: str, *, on: bool = True) -> None:
        self.expect(m.Done, m.Drain(node, on), "operator")


# --- how many are wanted, in a generation ---------------------------------------------------------


@given(st.integers(0, 1 << 62), st.integers(1, 8), st.booleans())
def test_a_generation_says_how_many_copies_are_wanted(last: int, wanted: int, spare: bool) -> None:
    generation = next_generation(last, wanted, spare=spare)
    assert last < generation <= last + (1 << 14) + 16
    assert (wanted_of(generation), is_spare(generation)) == (wanted, spare)
    assert is_tagged(generation) == (wanted > 1 or spare)
    assert are_tagged(np.array([generation], np.uint64)).tolist() == [is_tagged(generation)]


def test_ordinary_puts_pass_over_tags() -> None:
    generations = [0]
    for _ in range(40_000):
        generations.append(next_generation(generations[-1]))
    assert not any(map(is_tagged, generations))
    assert all(b - a in (1, 17) for a, b in pairwise(generations))


@given(st.lists(st.tuples(st.integers(1, 99), st.integers(0, 9)), min_size=1, max_size=5))
def test_slots_keep_their_generations(parts: list[tuple[int, int]]) -> None:
    base = 1000
    where = m.Located(10, 7, base, [m.Slot(1, 2, 3)])
    each = Object(-1, 0, 0, A, b"", placed(where))
    slots = [m.Slot(i, i, 8 * i, own) for i, own in parts]
    each.move(slots)
    found = [each.generation_at(slot) for slot in each.slots]
    assert found == [slot.generation or base for slot in slots]
    assert [(s.segment, s.index, s.offset) for s in each.slots] == [
        (s.segment, s.index, s.offset) for s in slots
    ]
    assert each.generation in found
    assert (each.where.size, each.where.checksum) == (10, 7)


# --- puts -----------------------------------------------------------------------------------------


def test_copies_go_to_distinct_hosts() -> None:
    pool = Pool("n0")
    pool.join("n1", host="host-n0")
    pool.join("n2")
    (grant,) = pool.put(A, replicas=3)
    assert len(grant.slots) == 2
    assert pool.nodes_of(A) in ({"n0", "n2"}, {"n1", "n2"})
    found = pool.stat(A)
    assert found is not None
    assert (found.replicas, found.hosts) == (3, 2)
    assert pool.status().thin == 1
    assert pool.count("put_thin") == 1


def test_missing_copies_are_made_when_a_host_joins() -> None:
    pool = Pool("n0")
    pool.put(A, B, replicas=2)
    pool.put(C)
    pool.tick(1.0)
    assert pool.copies() == []
    pool.join("n1")
    pool.tick(1.1)
    assert pool.copy_all() == 2
    assert pool.nodes_of(A) == pool.nodes_of(B) == {"n0", "n1"}
    assert pool.nodes_of(C) == {"n0"}
    assert pool.status().thin == 0
    assert pool.count("repair_copies") == 2
    assert pool.count("repair_copy_bytes") == 2 * PAGE


def test_a_node_that_does_not_know_how_is_never_told() -> None:
    pool = Pool("n0")
    pool.put(A, replicas=2)
    pool.mount("old")
    pool.tick(2.0)
    assert pool.copies() == []
    pool.drain("old")
    assert pool.told(m.SetDraining) == []


# --- a host dies ----------------------------------------------------------------------------------


def test_a_host_that_is_gone_is_made_up_for_after_a_while() -> None:
    pool = Pool("n0", "n1", "n2")
    pool.put(A, replicas=2)
    (gone,) = pool.nodes_of(A) - {next(iter(sorted(pool.nodes_of(A))))}
    pool.gone(gone, "node")
    pool.tick(4.0)
    assert pool.copies() == []
    pool.tick(1.1)
    (copy,) = pool.copies()
    assert pool.made(copy) == [0]
    assert len(pool.nodes_of(A)) == 2
    assert gone not in pool.nodes_of(A)


def test_a_host_that_comes_back_in_time_needs_no_copy() -> None:
    pool = Pool("n0", "n1", "n2")
    (grant,) = pool.put(A, replicas=2)
    names = {handle: node for node, handle in pool.handles.items()}
    slot = grant.slots[1]
    node = names[slot.segment]
    pool.gone(node, "node")
    pool.tick(1.0)
    place = slot.index, slot.offset
    pool.join(node, 64, m.Found(A, b"", PAGE, PAGE, 7, grant.generation, *place))
    pool.tick(10.0)
    assert pool.copies() == []
    assert pool.status().thin == 0


def test_a_host_that_comes_back_too_late_is_told_to_forget() -> None:
    pool = Pool("n0", "n1", "n2")
    (grant,) = pool.put(A, replicas=2)
    names = {handle: node for node, handle in pool.handles.items()}
    slot = grant.slots[1]
    node = names[slot.segment]
    pool.gone(node, "node")
    pool.tick(6.0)
    assert pool.copy_all() == 1
    info = m.SegmentInfo("s0", node, f"host-{node}", "a:1", "/p", 64 * PAGE, 128)
    handle = pool.expect(m.Mounted, m.Mount(info, 0, copies=True), node).handle
    found = m.Found(A, b"", PAGE, PAGE, 7, grant.generation, slot.index, slot.offset)
    reply = pool.expect(m.Announced, m.Announce(handle, [found], True), node)
    assert reply.rejected == [slot.index]
    assert len(pool.nodes_of(A)) == 2


def test_a_new_master_knows_how_many_are_wanted() -> None:
    pool = Pool("n0", "n1")
    (grant,) = pool.put(A, replicas=2)
    later = Driver(epoch=2, repair_after_s=5.0)
    later.__class__ = Pool
    assert isinstance(later, Pool)
    slot = grant.slots[0]
    found = m.Found(A, b"", PAGE, PAGE, 7, grant.generation, slot.index, slot.offset)
    later.join("n0", 64, found)
    later.join("n2")
    later.tick(6.0)
    assert later.copy_all() == 1
    assert later.nodes_of(A) == {"n0", "n2"}
    # And copies that were made later are of the same object, whatever order they are found in.
    copied = next(s for s in later.get(A)[0].slots if s.generation)
    again = Pool(repair_after_s=5.0)
    copy = m.Found(A, b"", PAGE, PAGE, 7, copied.generation, copied.index, copied.offset)
    again.join("n2", 64, copy)
    again.join("n0", 64, found)
    assert again.nodes_of(A) == {"n0", "n2"}
    (where,) = again.get(A)
    generations = {slot.generation or where.generation for slot in where.slots}
    assert generations == {grant.generation, copied.generation}


# --- what happens meanwhile -----------------------------------------------------------------------


def copying(**config: Any) -> tuple[Pool, tuple[str, m.CopyItem]]:
    """Return a pool in which a copy of A is under way from n0 to n1."""
    pool = Pool("n0", **config)
    pool.put(A, replicas=2)
    pool.join("n1")
    pool.tick(1.1)
    (copy,) = pool.copies()
    assert copy[0] == "n1"
    assert copy[1].address == "n0:1"
    return pool, copy


def test_an_object_that_is_removed_meanwhile_stays_removed() -> None:
    pool, copy = copying()
    assert pool.remove(A) == [0]
    assert pool.made(copy) == [-700]
    assert pool.stat(A) is None
    drops = [(peer, push.generations) for peer, push in pool.told(m.DropSlots)]
    assert ("n1", [copy[1].generation]) in drops
    assert pool.status().segments[1].used_bytes == 0


def test_an_object_that_is_put_anew_meanwhile_is_another() -> None:
    pool, copy = copying()
    assert pool.remove(A) == [0]
    pool.put(A)
    before = pool.get(A)
    assert pool.made(copy) == [-700]
    assert pool.get(A) == before


def test_other_bytes_do_not_count() -> None:
    pool, (peer, item) = copying()
    request = m.PutEnd([item.generation], [item.checksum + 1])
    assert pool.expect(m.Codes, request, peer).codes == [-700]
    assert pool.nodes_of(A) == {"n0"}


def test_only_the_node_that_was_told_may_end_a_copy() -> None:
    pool, (_, item) = copying()
    request = m.PutEnd([item.generation], [item.checksum])
    assert pool.expect(m.Codes, request, "somebody").codes == [-601]


def test_a_copy_that_failed_is_begun_again_later() -> None:
    pool, copy = copying()
    pool.failed(copy)
    assert pool.count("copies_failed") == 1
    pool.tick(0.5)
    assert pool.copies() == []
    pool.tick(0.6)
    assert pool.copy_all() == 1
    assert pool.nodes_of(A) == {"n0", "n1"}


def test_a_target_that_dies_leaves_nothing_behind() -> None:
    pool, (_, item) = copying()
    pool.gone("n1", "node")
    assert pool.status().copying == 0
    place = item.index, item.offset
    half = m.Found(A, b"", PAGE, item.capacity, 0, item.generation, *place, writing=True)
    pool.join("n1", 64, half)
    fences = [(to, push) for to, push in pool.take_pushes() if isinstance(push, m.FenceWriter)]
    assert [to for to, _ in fences] == ["n1"]
    for to, push in fences:
        pool.expect(m.Done, m.WriterGone(push.client, push.generation), to)
    assert not pool.state.puts
    pool.tick(1.1)
    assert pool.copy_all() == 1


def test_a_source_that_dies_takes_only_itself() -> None:
    pool, copy = copying()
    pool.gone("n0", "node")
    assert pool.made(copy) == [-700]
    assert pool.stat(A) is None
    assert not pool.state.puts


def test_a_copy_of_which_nothing_is_heard_is_given_up() -> None:
    pool, copy = copying(copy_timeout_s=10.0)
    pool.tick(11.0)
    assert pool.status().copying == 0
    assert pool.made(copy) == [-700]
    assert not any(put.generation == copy[1].generation for put in pool.state.puts.values())


# --- bounds ---------------------------------------------------------------------------------------


def test_copies_keep_to_their_rate() -> None:
    pool = Pool("n0", pages=1024, copy_rate=100 * PAGE, copy_burst_s=0.1)
    keys = [key_of(f"k{i}") for i in range(200)]
    pool.put(*keys, replicas=2)
    pool.join("n1", 1024)
    pool.tick(1.1)
    made = 0
    for _ in range(10):
        made += pool.copy_all()
        pool.tick(0.1)
    assert 90 <= made <= 125


def test_only_so_many_bytes_are_under_way() -> None:
    pool = Pool("n0", pages=1024, copy_bytes_max=10 * 65_536)
    pool.put(*[key_of(f"k{i}") for i in range(50)], replicas=2)
    pool.join("n1", 1024)
    pool.tick(1.1)
    assert len(pool.copies()) == 10
    pool.tick(1.0)
    assert pool.copies() == []


def test_a_copy_pushes_nothing_out() -> None:
    pool = Pool("n0")
    pool.put(A, replicas=2)
    pool.join("n1", 8)
    pool.put(*[key_of(f"k{i}") for i in range(7)], preferred="n1")
    pool.tick(2.0)
    assert pool.copies() == []
    assert pool.status().thin == 1


def test_what_goes_to_make_room_for_itself_is_not_copied() -> None:
    pool = Pool("n0")
    pool.put(A, replicas=2)
    pool.join("n1", 8)
    for node in ("n0", "n1"):
        disk = m.DiskInfo(node, 1 << 30, m.ON_EVICT, 1 << 20, 1 << 20)
        handle = pool.expect(m.Mounted, m.MountDisk(disk), node).handle
        found = pool.stat(A)
        assert found is not None
        held = [m.Shelved(A, b"", PAGE, found.checksum, found.generation)] * (node == "n0")
        pool.expect(m.Announced, m.Shelve(handle, held), node)
    pool.put(*[key_of(f"k{i}") for i in range(8)], preferred="n1", pinned=True)
    pool.tick(2.0)
    assert pool.copies() == []
    assert pool.exists(A) == [True]


def test_others_that_go_to_make_room_for_a_copy_are_not_copied_either() -> None:
    pool = Pool("n0")
    others = [key_of(f"other{i}") for i in range(12)]
    pool.put(*others, replicas=2)
    pool.join("n1", 8)
    for node in ("n0", "n1"):
        disk = m.DiskInfo(node, 1 << 30, m.ON_EVICT, 1 << 20, 1 << 20)
        handle = pool.expect(m.Mounted, m.MountDisk(disk), node).handle
        held = []
        for key in others if node == "n0" else []:
            found = pool.stat(key)
            assert found is not None
            held.append(m.Shelved(key, b"", PAGE, found.checksum, found.generation))
        pool.expect(m.Announced, m.Shelve(handle, held), node)
    pool.put(*[key_of(f"k{i}") for i in range(8)], preferred="n1", pinned=True)
    pool.tick(2.0)
    assert pool.copies() == []
    assert all(pool.exists(*others))


# --- drains ---------------------------------------------------------------------------------------


def test_a_drained_node_gets_nothing_and_loses_nothing() -> None:
    pool = Pool("n0")
    pool.put(A, B)
    pool.join("n1")
    pool.drain("n0")
    assert pool.told(m.SetDraining) == [("n0", m.SetDraining(on=True))]
    pool.put(C)
    assert pool.nodes_of(C) == {"n1"}
    pool.tick(0.1)
    copies = pool.copies()
    assert [peer for peer, _ in copies] == ["n1", "n1"]
    assert pool.nodes_of(A) == {"n0"}
    (status,) = pool.status().drains
    assert (status.node, status.objects, status.empty) == ("n0", 2, False)
    assert pool.made(*copies) == [0, 0]
    assert pool.nodes_of(A) == pool.nodes_of(B) == {"n1"}
    (status,) = pool.status().drains
    assert status.empty
    pool.expect(m.Done, m.Unmount(pool.handles["n0"]), "n0")
    assert pool.status().drains == []
    assert pool.exists(A, B, C) == [True] * 3


def test_a_place_that_is_read_is_kept_until_the_lease_ends() -> None:
    pool = Pool("n0")
    pool.put(A)
    pool.join("n1")
    pool.get(A, lease=1, lease_s=20.0)
    pool.drain("n0")
    pool.tick(0.1)
    assert pool.copy_all() == 1
    assert pool.nodes_of(A) == {"n0", "n1"}
    # Whoever reads it from now on knows both places.
    pool.get(A, lease=2, lease_s=100.0)
    pool.ask(m.Release([1]))
    pool.tick(18.0)
    assert pool.nodes_of(A) == {"n0", "n1"}
    pool.tick(3.0)
    assert pool.nodes_of(A) == {"n1"}


def test_what_has_left_a_drained_node_is_not_written_to_its_disk_again() -> None:
    """A lease keeps the old place for a while; the node takes the object off its disk."""
    pool = Pool("n0")
    disks = {"n0": pool.mount_disk("n0")}
    pool.put(A)
    pool.shelve(disks["n0"], A, "n0")
    pool.join("n1")
    disks["n1"] = pool.mount_disk("n1")
    pool.get(A, lease=1, lease_s=20.0)
    pool.drain("n0")
    pool.tick(0.1)
    copies = pool.copies()
    assert pool.made(*copies) == [0]
    assert pool.nodes_of(A) == {"n0", "n1"}
    pushes = [(peer, push) for peer, push in pool.take_pushes() if not isinstance(push, m.Copy)]
    assert [(peer, type(push)) for peer, push in pushes] == [
        ("n0", m.DropShelved),
        ("n1", m.Offload),
    ]


def test_a_drain_can_be_ended() -> None:
    pool = Pool("n0")
    pool.put(A)
    pool.join("n1")
    pool.drain("n0")
    pool.tick(0.1)
    (copy,) = pool.copies()
    pool.drain("n0", on=False)
    assert pool.told(m.SetDraining) == [("n0", m.SetDraining(on=False))]
    assert pool.made(copy) == [-700]  # one is enough
    pool.tick(1.0)
    assert pool.nodes_of(A) == {"n0"}
    assert pool.status().drains == []


def test_the_node_remembers_for_a_new_master() -> None:
    pool = Pool()
    found = m.Found(A, b"", PAGE, PAGE, 7, 9, 0, 0)
    pool.join("n0", 64, found, draining=True)
    pool.join("n1")
    pool.tick(1.0)
    assert pool.copy_all() == 1
    assert pool.nodes_of(A) == {"n1"}


def test_the_last_word_counts() -> None:
    pool = Pool("n0")
    pool.drain("n0")
    pool.drain("n0", on=False)
    pool.gone("n0", "node")
    pool.take_pushes()
    pool.join("n0", draining=True)
    assert pool.told(m.SetDraining) == [("n0", m.SetDraining(on=False))]
    assert pool.status().drains == []


def test_copies_wanted_elsewhere_are_made_before_the_place_is_given_up() -> None:
    pool = Pool("n0", "n1")
    pool.put(A, replicas=2)
    pool.join("n2")
    pool.drain("n0")
    pool.tick(0.1)
    assert pool.nodes_of(A) == {"n0", "n1"}
    assert pool.copy_all() == 1
    assert pool.nodes_of(A) == {"n1", "n2"}


def test_what_a_disk_elsewhere_has_needs_no_memory_there() -> None:
    pool = Pool("n0")
    pool.put(A)
    pool.join("n1", 8)
    pool.put(*[key_of(f"k{i}") for i in range(7)], preferred="n1")
    disk = m.DiskInfo("n1", 1 << 30, m.ON_EVICT, 1 << 20, 1 << 20)
    handle = pool.expect(m.Mounted, m.MountDisk(disk), "n1").handle
    found = pool.stat(A)
    assert found is not None
    held = m.Shelved(A, b"", PAGE, found.checksum, found.generation)
    pool.expect(m.Announced, m.Shelve(handle, [held]), "n1")
    pool.drain("n0")
    pool.tick(0.1)
    pool.copies()
    assert pool.exists(A) == [True]
    assert pool.status().drains[0].empty
    assert pool.count("drained_to_disk") == 1


def with_disk(*names: bytes) -> tuple[Pool, int]:
    """Return a pool of n0, whose disk has objects that are not in memory, and the disk's number."""
    pool = Pool("n0")
    disk = m.DiskInfo("n0", 1 << 30, m.ON_EVICT, 1 << 20, 1 << 20)
    handle = pool.expect(m.Mounted, m.MountDisk(disk), "n0").handle
    held = [m.Shelved(name, b"", PAGE, 7, i + 1) for i, name in enumerate(names)]
    assert pool.expect(m.Announced, m.Shelve(handle, held), "n0").rejected == []
    return pool, handle


def read_from_disk(pool: Pool) -> int:
    """Let the nodes read what they are told to; return how many objects."""
    items = [item for _, push in pool.told(m.Promote) for item in push.items]
    for item in items:
        request = m.PutEnd([item.generation], [item.object.checksum])
        assert pool.expect(m.Codes, request, "n0").codes == [0]
    return len(items)


def test_what_only_the_disk_of_a_drained_node_has_goes_too() -> None:
    names = [key_of(f"k{i}") for i in range(20)]
    pool, _ = with_disk(*names)
    pool.join("n1")
    pool.drain("n0")
    pool.tick(0.1)
    assert not pool.status().drains[0].empty
    assert read_from_disk(pool) == 20
    pool.tick(0.6)
    copies = pool.copies()
    assert len(copies) == 20
    assert pool.made(*copies) == [0] * 20
    dropped = [key for _, push in pool.told(m.DropShelved) for key in push.keys]
    assert sorted(dropped) == sorted(names)
    pool.tick(0.6)
    (status,) = pool.status().drains
    assert (status.objects, status.disk_only, status.empty) == (0, 0, True)
    pool.gone("n0", "node")
    assert all(pool.exists(*names))


def test_what_a_disk_has_stays_there_if_others_have_no_room() -> None:
    pool, _ = with_disk(A, B)
    pool.join("n1", 8)
    pool.put(*[key_of(f"k{i}") for i in range(8)], preferred="n1", pinned=True)
    pool.drain("n0")
    pool.tick(0.1)
    assert read_from_disk(pool) == 0
    (status,) = pool.status().drains
    assert (status.objects, status.disk_only, status.empty) == (0, 2, True)


def test_what_finds_no_room_is_said_and_not_evicted() -> None:
    pool = Pool("n0")
    pool.put(*[key_of(f"k{i}") for i in range(30)])
    pool.join("n1", 8)
    pool.drain("n0")
    for _ in range(30):
        pool.tick(0.2)
        pool.copy_all()
    (status,) = pool.status().drains
    assert status.stuck == status.objects > 0
    assert not status.empty
    assert pool.status().objects == 30


@pytest.mark.parametrize("node", ["", "nobody"])
def test_only_nodes_that_are_here_can_be_drained(node: str) -> None:
    pool = Pool("n0")
    assert pool.expect(m.Failed, m.Drain(node), "operator").code == -704


# --- what is read much ----------------------------------------------------------------------------


def hot(*nodes: str, **config: Any) -> Pool:
    """Return a pool in which A is read 100 times a second, and copied where that is allowed."""
    pool = Pool(*nodes, hot_reads_per_s=20.0, **config)
    pool.put(A, B)
    pool.tick(5.0)
    read(pool, 6)
    return pool


def read(pool: Pool, seconds: int) -> None:
    for _ in range(10 * seconds):
        for _ in range(10):
            pool.get(A, lease_s=0)
        pool.tick(0.1)


def test_what_is_read_much_is_copied_and_given_up_again() -> None:
    pool = hot("n0", "n1", "n2", "n3")
    assert pool.copy_all() == 2
    assert len(pool.nodes_of(A)) == 3
    assert len(pool.nodes_of(B)) == 1
    assert pool.status().spare == 1
    assert pool.count("hot_copies") == 2
    read(pool, 10)
    assert pool.copy_all() == 0
    assert len(pool.nodes_of(A)) == 3
    for _ in range(60):
        pool.tick(1.0)
    assert len(pool.nodes_of(A)) == 1
    assert pool.status().spare == 0


def test_nothing_is_counted_where_nothing_could_be_copied() -> None:
    pool = hot("n0")
    assert not pool.state.copies.heat.on
    assert pool.copies() == []
    assert not hot("n0", "n1", hot_copies_max=0).copies()


def test_copies_of_what_is_read_much_go_first_when_room_is_needed() -> None:
    pool = Pool("n0", "n1", pages=16, hot_reads_per_s=20.0)
    pool.put(A)
    pool.tick(5.0)
    read(pool, 6)
    assert pool.copy_all() == 1
    keys = [key_of(f"k{i}") for i in range(31)]
    pool.put(*keys)
    assert len(pool.nodes_of(A)) == 1
    assert pool.count("evicted_objects") == 0
    assert pool.count("spares_dropped") == 1
    assert all(pool.exists(A, *keys))


def test_copies_of_what_is_read_much_never_push_anything_out() -> None:
    pool = Pool("n0", "n1", pages=16, hot_reads_per_s=20.0)
    pool.put(A, *[key_of(f"k{i}") for i in range(28)])
    pool.tick(5.0)
    read(pool, 6)
    assert pool.copies() == []


def test_a_spare_copy_stands_in_for_one_that_is_lost() -> None:
    pool = hot("n0", "n1", hot_copies_max=1)
    (copy,) = pool.copies()
    assert pool.made(copy) == [0]
    first = next(iter(pool.nodes_of(A) - {copy[0]}))
    pool.gone(first, "node")
    assert pool.nodes_of(A) == {copy[0]}
    for _ in range(60):
        pool.tick(1.0)
    assert pool.nodes_of(A) == {copy[0]}


def test_counts_are_bounded(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("moonpool.core.heat.COUNTED_MAX", 10)
    pool = Pool("n0", "n1")
    pool.tick(5.0)
    keys = [key_of(f"k{i}") for i in range(40)]
    pool.put(*keys)
    for _ in range(20):
        pool.get(*keys, lease_s=0)
    assert len(pool.state.copies.heat._counts) == 10
    for _ in range(12):
        pool.tick(5.0)
    assert len(pool.state.copies.heat._counts) == 0
