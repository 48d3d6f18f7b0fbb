"""Segments that come, go, come back, and what they bring along."""

from __future__ import annotations

from typing import Any

import msgspec
import pytest

from moonpool.core import messages as m
from moonpool.core.keys import key_of
from tests.unit.core.driver import PAGE, Driver, block, segment_info

A, B, C = key_of("a"), key_of("b"), key_of("c")


def found(key: bytes, generation: int, place: int, **more: Any) -> m.Found:
    """A found object of one page at the page (and table index) ``place``."""
    more = {"parent": b"", "size": 100, "capacity": PAGE, "checksum": 7, **more}
    return m.Found(key=key, generation=generation, index=place, offset=place * PAGE, **more)


def announce(
    pool: Driver, handle: int, *objects: m.Found, peer: str = "node", last: bool = True
) -> list[int]:
    return pool.expect(m.Announced, m.Announce(handle, list(objects), last), peer).rejected


def test_objects_of_a_lost_node_are_gone_at_once_and_come_back() -> None:
    pool = Driver()
    pool.mount()
    grants = pool.put(A, B)
    pool.gone("node", "node")
    assert pool.exists(A, B) == [0, 0]
    assert pool.count("lost_objects") == 2

    handle = pool.mount(peer="node-2", last=False)
    back = [
        found(key, grant.generation, grant.slots[0].index)
        for key, grant in zip((A, B), grants, strict=True)
    ]
    assert announce(pool, handle, *back[:1], peer="node-2", last=False) == []
    assert announce(pool, handle, *back[1:], peer="node-2") == []
    assert announce(pool, handle, *back, peer="node-2") == []
    located = pool.get(A, B)
    assert [each.generation for each in located] == [grant.generation for grant in grants]
    assert located[0].slots == [m.Slot(handle, 0, 0)]


def test_a_life_whose_segment_a_dead_one_has_taken_begins_anew() -> None:
    """What a killed node has sent may come after what its next life says."""
    pool = Driver()
    pool.mount(peer="life-2")
    pool.mount(peer="life-1")
    assert pool.anew("life-2") == ()
    assert pool.anew("life-1") == ("life-2",)
    assert pool.status().segments == []


def test_a_master_that_restarts_learns_all_again() -> None:
    pool = Driver(epoch=2)
    old = (1 << 32) + 77
    handle = pool.mount(generation_max=old + 5)
    chain = [found(block(i), old + i, 10 - i, parent=block(i - 1) if i else b"") for i in range(4)]
    assert announce(pool, handle, *reversed(chain)) == []
    info = pool.stat(block(0))
    assert info is not None
    assert info.children == 1
    assert pool.start(A)[0].generation == (2 << 32) + 1


def test_generations_stay_above_all_that_was_seen() -> None:
    pool = Driver()
    high = 9 << 32
    pool.mount(generation_max=high)
    assert pool.start(A)[0].generation == high + 1
    assert announce(pool, 1, found(B, high + 10, 20)) == []
    assert pool.start(C)[0].generation == high + 11


def test_a_replica_is_the_same_object_elsewhere() -> None:
    pool = Driver()
    pool.mount("n1", objects=[found(A, 5, 0)])
    pool.mount("n2", objects=[found(A, 5, 3)])
    assert len(pool.get(A)[0].slots) == 2
    third = pool.mount("n3", last=False)
    assert announce(pool, third, found(A, 5, 0, checksum=8), peer="n3") == [0]
    assert announce(pool, third, found(A, 5, 0, size=99), peer="n3") == [0]
    pool.gone("n1", "node")
    assert [slot.segment for slot in pool.get(A)[0].slots] == [2]
    pool.gone("n2", "node")
    assert pool.exists(A) == [0]


def test_a_second_copy_in_the_same_segment_is_dropped() -> None:
    pool = Driver()
    handle = pool.mount()
    assert announce(pool, handle, found(A, 5, 0), found(A, 5, 1)) == [1]


def test_the_newest_object_of_a_key_wins() -> None:
    pool = Driver()
    first = pool.mount("n1", objects=[found(A, 5, 0)])
    pool.get(A)
    second = pool.mount("n2", last=False)
    assert announce(pool, second, found(A, 9, 2, checksum=1), peer="n2") == []
    assert pool.get(A)[0].generation == 9
    assert pool.take_pushes() == [("n1", m.DropSlots(first, [0], [5]))]
    assert announce(pool, first, found(A, 5, 0), peer="n1") == [0]
    assert pool.count("announce_replaced") == 1


def test_a_put_that_ends_after_its_key_came_back_is_told_so() -> None:
    pool = Driver()
    handle = pool.mount()
    (grant,) = pool.start(A)
    assert announce(pool, handle, found(A, 3, 40)) == []
    assert pool.exists(A) == [1]
    assert pool.end(grant) == [-705]
    assert pool.get(A)[0].generation == 3
    assert pool.status().segments[0].used_bytes == PAGE


@pytest.mark.parametrize(
    "wrong",
    [
        {"key": b""},
        {"key": b"\xff"},
        {"parent": b"\xff"},
        {"parent": A},
        {"size": 0},
        {"size": -1},
        {"size": PAGE + 1},
        {"capacity": 0},
        {"capacity": PAGE - 1},
        {"capacity": 1 << 80},
        {"capacity": 100 * PAGE},
        {"checksum": -1},
        {"checksum": 1 << 64},
        {"generation": 0},
        {"generation": -1},
        {"generation": 1 << 63},
        {"index": -1},
        {"index": 64},
        {"index": 5},
        {"offset": -PAGE},
        {"offset": 1},
        {"offset": 64 * PAGE},
        {"offset": 5 * PAGE},
        {"key": key_of("k" * 4000), "size": 4000},
    ],
)
def test_what_cannot_be_adopted_is_rejected(wrong: dict[str, Any]) -> None:
    pool = Driver()
    handle = pool.mount(objects=[found(B, 5, 5)])
    bad = msgspec.structs.replace(found(A, 6, 1), **wrong)
    assert announce(pool, handle, bad) == [bad.index]
    assert announce(pool, handle, found(A, 6, 1)) == []
    assert pool.state.generation < 1 << 63


def test_only_the_owner_speaks_for_a_segment() -> None:
    pool = Driver()
    handle = pool.mount()
    for request in (m.Announce(handle, [], True), m.Unmount(handle)):
        assert pool.expect(m.Failed, request, "stranger").code == -601
    for request in (m.Announce(99, [], True), m.Unmount(-1)):
        assert pool.expect(m.Failed, request, "node").code == -704
    many = [found(A, 1, 1)] * (m.BATCH_ITEMS_MAX + 1)
    assert pool.expect(m.Failed, m.Announce(handle, many, True), "node").code == -600


@pytest.mark.parametrize(
    "wrong",
    [
        {"name": ""},
        {"node": ""},
        {"path": "x" * 5000},
        {"data_bytes": 0},
        {"data_bytes": PAGE - 1},
        {"data_bytes": -PAGE},
        {"data_bytes": 1 << 60},
        {"slots": 0},
        {"slots": -1},
        {"slots": 1 << 40},
    ],
)
def test_segments_that_cannot_be(wrong: dict[str, Any]) -> None:
    pool = Driver()
    pool.mount(objects=[found(A, 1, 1)])
    info = msgspec.structs.replace(segment_info(), **wrong)
    assert pool.expect(m.Failed, m.Mount(info), "node").code == -600
    assert pool.exists(A) == [1]


@pytest.mark.parametrize("generation_max", [-1, 1 << 63, 1 << 64])
def test_generations_that_leave_no_room(generation_max: int) -> None:
    pool = Driver()
    request = m.Mount(segment_info(), generation_max)
    assert pool.expect(m.Failed, request, "node").code == -600


def test_two_hosts_do_not_share_a_segment_name() -> None:
    pool = Driver()
    pool.mount()
    other = msgspec.structs.replace(segment_info(), host="elsewhere")
    assert pool.expect(m.Failed, m.Mount(other), "node-2").code == -601


def test_a_node_that_restarts_faster_than_its_loss_is_noticed() -> None:
    pool = Driver()
    pool.mount(objects=[found(A, 1, 1)])
    handle = pool.mount(peer="node-2", objects=[found(B, 2, 2)])
    pool.gone("node", "node")
    assert [each.info.handle for each in pool.status().segments] == [handle]
    assert pool.exists(A, B) == [0, 1]


def test_unmount() -> None:
    pool = Driver()
    handle = pool.mount(objects=[found(A, 1, 1)])
    pool.expect(m.Done, m.Unmount(handle), "node")
    assert pool.exists(A) == [0]
    assert pool.status().segments == []


def test_the_loss_of_a_parent_makes_roots_of_its_children() -> None:
    pool = Driver()
    pool.mount("n1")
    pool.mount("n2")
    pool.put(A, preferred="n1")
    pool.put(B, parent=A, preferred="n2")
    pool.gone("n1", "node")
    assert pool.exists(A, B) == [0, 1]
    pool.mount("n1", objects=[found(A, 1, 1)])
    info = pool.stat(A)
    assert info is not None
    assert info.children == 1


def test_places_of_unknown_writers_stay_theirs() -> None:
    pool = Driver(epoch=2)
    handle = pool.mount(last=False)
    one = found(b"", 50, 0, writing=True)
    two = found(b"", 51, 1, writing=True)
    three = found(b"", 52, 2, writing=True)
    assert announce(pool, handle, one, two, three, two) == []
    (grant,) = pool.start(A)
    assert grant.slots[0].offset == 3 * PAGE
    assert pool.end(m.Grant(0, 50)) == [-700]
    assert pool.revoke(m.Grant(0, 51)) == [0]
    assert pool.status().segments[0].pending_bytes == PAGE
    pool.expect(m.Done, m.WriterGone(""), "stranger")
    assert pool.status().segments[0].pending_bytes == PAGE
    pool.expect(m.Done, m.WriterGone(""), "node")
    assert pool.status().segments[0].used_bytes == PAGE
    assert pool.status().clients == 1


def test_a_known_writer_found_writing_is_no_news() -> None:
    pool = Driver()
    handle = pool.mount()
    (grant,) = pool.start(A)
    writing = found(b"", grant.generation, 0, writing=True)
    assert announce(pool, handle, writing) == []
    assert announce(pool, handle, msgspec.structs.replace(writing, index=1)) == [1]
    assert pool.end(grant) == [0]


def test_a_node_that_blinks_keeps_the_puts_of_its_clients_apart() -> None:
    pool = Driver()
    pool.mount()
    (grant,) = pool.start(A)
    pool.gone("node", "node")
    handle = pool.mount(last=False)
    sealed = found(A, grant.generation, 0)
    assert announce(pool, handle, sealed) == [0]
    assert pool.revoke(grant) == [0]
    assert announce(pool, handle, sealed) == []
