"""Leases by themselves: counts, expiry and what stale entries cost."""

from __future__ import annotations

from moonpool.core.eviction.leaf_lru import LeafLru
from moonpool.core.index import Object, placed
from moonpool.core.keys import key_of
from moonpool.core.lease import LeaseBook
from moonpool.core.messages import Located


def make(serial: int) -> Object:
    key = key_of(f"k{serial}")
    return Object(-1, serial, serial, key, b"", placed(Located()))


def test_objects_are_free_when_the_last_lease_ends() -> None:
    book = LeaseBook(10, 10)
    a, b, c = (make(i) for i in (1, 2, 3))
    book.take("p", 1, [a, b], 5.0)
    book.take("p", 2, [c, b], 6.0)
    book.take("q", 1, [b], 7.0)
    book.validate([a, b, c])
    assert book.expire(4.9) == (0, [])
    assert book.expire(5.0) == (1, [a])
    assert book.release("p", 2) == [c]
    assert book.release("p", 2) == []
    assert book.release_peer("q") == [b]
    assert book.release_peer("q") == []
    book.validate([a, b, c])
    assert book.count == 0


def test_a_prolonged_lease_expires_late() -> None:
    book = LeaseBook(10, 10)
    a = make(1)
    book.take("p", 1, [a], 5.0)
    book.take("p", 1, [a], 9.0)
    book.take("p", 1, [a], 6.0)
    assert book.expire(8.9) == (0, [])
    book.validate([a])
    assert book.expire(9.0) == (1, [a])


def test_dead_objects_are_not_given_back() -> None:
    book = LeaseBook(10, 10)
    a = make(1)
    book.take("p", 1, [a], 5.0)
    a.place = b""
    book.validate([])
    assert book.release("p", 1) == []
    assert a.leases == 0


def test_room_is_bounded_per_peer() -> None:
    book = LeaseBook(2, 3)
    objects = [make(i) for i in range(4)]
    assert not book.has_room("p", 1, 4)
    book.take("p", 1, objects[:1], 5.0)
    book.take("p", 2, objects[1:2], 5.0)
    assert not book.has_room("p", 3, 1)
    assert book.has_room("p", 2, 1)
    assert not book.has_room("p", 2, 2)
    assert book.has_room("q", 1, 3)


def test_released_leases_leave_little_behind() -> None:
    book = LeaseBook(10, 10)
    a = make(1)
    for number in range(10_000):
        book.take("p", number, [a], 1000.0)
        book.release("p", number)
    assert len(book._heap) < 1100
    book.take("p", 1, [a], 7.0)
    book.validate([a])
    assert book.expire(1e9) == (1, [a])


def test_removed_objects_leave_little_behind_in_the_order_of_eviction() -> None:
    leaves = LeafLru()
    last = make(0)
    for serial in range(1, 10_000):
        last.place = b""
        last = make(serial)
        leaves.offer(last, 1)
    assert len(leaves._heap) < 1100
    assert leaves.pop() is last
    assert leaves.pop() is None


def test_the_coldest_leaf_is_corrected_when_it_comes_up() -> None:
    leaves = LeafLru()
    a, b, c = (make(i) for i in (1, 2, 3))
    for each in (a, b, c):
        leaves.offer(each, 3)
        leaves.offer(each, 3)
    a.used = 10
    b.first_child = a
    leaves.validate([a, b, c])
    assert leaves.pop() is c
    b.first_child = None
    leaves.offer(b, 3)
    leaves.validate([a, b])
    assert leaves.pop() is b
    assert leaves.pop() is a
