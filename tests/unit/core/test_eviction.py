"""What goes first, what never goes, and how chains of blocks hold together."""

from __future__ import annotations

import pytest

from moonpool.core import messages as m
from moonpool.core.keys import key_of
from tests.unit.core.driver import PAGE, Driver, block

A, B, C = key_of("a"), key_of("b"), key_of("c")
MIB = 1 << 20


def blocks(count: int) -> list[bytes]:
    return [block(i) for i in range(count)]


def test_least_recently_used_goes_first() -> None:
    pool = Driver()
    pool.mount(pages=4)
    pool.put(*blocks(4))
    pool.get(block(0), lease_s=0.0)
    pool.put(A, B)
    assert pool.exists(*blocks(4)) == [1, 0, 0, 1]
    assert pool.count("evicted_objects") == 2
    assert pool.count("evicted_bytes") == 2 * PAGE


def test_leaves_go_before_the_blocks_they_hang_on() -> None:
    pool = Driver()
    pool.mount(pages=6)
    pool.put_chain(*blocks(6))
    for length in range(5, 0, -1):
        pool.put(key_of(f"n{length}"), pinned=True)
        assert pool.exists(*blocks(6)) == [1] * length + [0] * (6 - length)


def test_branches_hold_their_stem() -> None:
    pool = Driver()
    pool.mount(pages=4)
    pool.put_chain(*blocks(2))
    pool.put(A, B, parent=block(1))
    pool.get(A, lease=1, lease_s=100.0)
    pool.put(key_of("n1"), pinned=True)
    assert pool.exists(block(0), block(1), A, B) == [1, 1, 1, 0]
    (grant,) = pool.start(key_of("n2"))
    assert grant.code == -200
    assert grant.retry_after_s > 0
    pool.ask(m.Release([1]))
    pool.put(key_of("n2"), pinned=True)
    pool.put(key_of("n3"), pinned=True)
    assert pool.exists(block(0), block(1), A) == [1, 0, 0]


def test_pinned_objects_stay() -> None:
    pool = Driver()
    pool.mount(pages=2)
    pool.put(A, pinned=True)
    pool.put(B)
    pool.put(C)
    assert pool.exists(A, B, C) == [1, 0, 1]
    pool.remove(C)
    pool.put(B, pinned=True)
    (grant,) = pool.start(C)
    assert (grant.code, grant.retry_after_s) == (-200, 0.0)
    assert pool.count("put_refused") == 1


def test_leased_objects_stay_and_the_put_is_asked_to_come_again() -> None:
    pool = Driver()
    pool.mount(pages=2)
    pool.put(A, B)
    pool.get(A, B, lease_s=10.0)
    (grant,) = pool.start(C)
    assert (grant.code, grant.retry_after_s) == (-200, 0.05)
    assert pool.count("put_retry") == 1
    pool.now += 10.1
    assert pool.start(C)[0].code == 0


def test_a_put_waits_for_puts_in_progress() -> None:
    pool = Driver()
    pool.mount(pages=2)
    pool.start(A, B)
    assert pool.start(C)[0].retry_after_s > 0
    pool.tick(31.0)
    assert pool.start(C)[0].retry_after_s > 0


def test_a_parent_that_comes_later_is_linked() -> None:
    pool = Driver()
    pool.mount()
    pool.put(B, C, parent=A)
    assert pool.stat(A) is None
    pool.put(A)
    info = pool.stat(A)
    assert info is not None
    assert info.children == 2


def test_children_of_a_removed_parent_stay_readable_and_find_it_again() -> None:
    pool = Driver()
    pool.mount()
    pool.put_chain(*blocks(4))
    pool.remove(block(1))
    assert pool.exists(*blocks(4)) == [1, 0, 1, 1]
    assert pool.expect(m.Matched, m.MatchKeys(blocks(4))).count == 1
    pool.put(block(1), parent=block(0))
    info = pool.stat(block(1))
    assert info is not None
    assert info.children == 1
    info = pool.stat(block(0))
    assert info is not None
    assert info.children == 1


def test_orphans_come_and_go_in_any_order() -> None:
    pool = Driver()
    pool.mount()
    pool.put(*blocks(4), parent=A)
    for number in (1, 3, 0):
        pool.remove(block(number))
    pool.put(A)
    info = pool.stat(A)
    assert info is not None
    assert info.children == 1
    pool.remove(A)
    pool.remove(block(2))
    assert pool.state.index.orphans == {}


def test_a_ring_of_parents_does_not_stop_eviction() -> None:
    pool = Driver()
    pool.mount(pages=4)
    pool.put(A, parent=B)
    pool.put(B, parent=C)
    pool.put(C, parent=A)
    pool.put(block(0), parent=C)
    pool.put(*(key_of(f"n{i}") for i in range(4)))
    assert pool.exists(A, B, C, block(0)) == [0, 0, 0, 0]


def test_a_put_uses_its_parent() -> None:
    pool = Driver()
    pool.mount(pages=3)
    pool.put(A, B)
    pool.put(C, parent=A)
    pool.put(block(0))
    assert pool.exists(A, B, C) == [1, 0, 1]


def test_tick_evicts_from_the_high_to_the_low_watermark() -> None:
    pool = Driver()
    pool.mount(pages=100, slots=1000)
    pool.put(*blocks(95))
    pool.tick()
    assert pool.status().objects == 95
    pool.put(A)
    pool.tick()
    assert pool.status().objects == 90
    assert not any(pool.exists(*blocks(6)))


def test_a_full_table_counts_as_full() -> None:
    pool = Driver()
    pool.mount(pages=1000, slots=100)
    pool.put(*blocks(97))
    pool.tick()
    assert pool.status().objects == 90


def test_one_tick_evicts_a_bounded_number() -> None:
    pool = Driver(watermark_high=0.5, watermark_low=0.1, evictions_per_tick_max=5)
    pool.mount(pages=64)
    pool.put(*blocks(64))
    pool.tick()
    assert pool.status().objects == 59


def test_tick_stops_where_nothing_can_be_evicted() -> None:
    pool = Driver()
    pool.mount(pages=4)
    pool.put(*blocks(4), pinned=True)
    pool.tick()
    assert pool.status().objects == 4


def test_a_whole_span_is_emptied_for_a_larger_class() -> None:
    pool = Driver()
    pool.mount(pages=16 * 256, slots=5000)  # 16 slabs of 16 pages
    keys = [block(i) for i in range(4096)]
    pool.put(*keys)
    # The least recently used objects lie in as many spans as can be.
    order = [i for residue in range(16) for i in range(residue, 4096, 16)]
    pool.get(*(block(i) for i in order), lease_s=0.0)
    for i in order:
        pool.state.index.find(block(i)).used += i % 16  # type: ignore[union-attr]
    before = pool.status().objects
    pool.put(A, size=16 * PAGE)
    lost = before + 1 - pool.status().objects
    assert 16 <= lost <= 16 + 4 * 16


def test_an_emptied_span_takes_descendants_along() -> None:
    pool = Driver()
    pool.mount("n1", pages=256 * 2, slots=2000)
    pool.mount("n2", pages=256 * 2, slots=2000)
    parents = [block(i) for i in range(512)]
    pool.put(*parents, preferred="n1")
    tails = [m.PutItem(block(1000 + i), PAGE, block(i)) for i in range(512)]
    pool.end(*pool.expect(m.PutStarted, m.PutStart(tails, preferred="n2")).grants)
    pool.put(A, size=2 * PAGE, preferred="n1")
    alive = pool.exists(*parents)
    alive_tails = pool.exists(*(block(1000 + i) for i in range(512)))
    assert sum(alive) < 512
    assert all(head or not tail for head, tail in zip(alive, alive_tails, strict=True))


def test_a_region_with_something_leased_is_left_alone() -> None:
    pool = Driver()
    pool.mount(pages=256, slots=300)  # slabs of one page
    pool.put(*blocks(256))
    pool.get(*(block(i) for i in range(0, 256, 2)), lease_s=100.0)
    (grant,) = pool.start(A, size=2 * PAGE)
    assert grant.code == -200
    assert grant.retry_after_s > 0
    pool.ask(m.Release([1]))
    pool.put(A, size=2 * PAGE)


@pytest.mark.parametrize("pages", [1, 3, 16, 64])
def test_the_largest_object_can_always_be_put(pages: int) -> None:
    pool = Driver()
    pool.mount(pages=64)
    pool.put(*blocks(64))
    pool.put(A, size=pages * PAGE)
    assert pool.exists(A) == [1]
    assert pool.start(B, size=65 * PAGE)[0].code == -600


def test_all_replicas_of_an_evicted_object_go() -> None:
    pool = Driver()
    pool.mount("n1", pages=2)
    pool.mount("n2", pages=2)
    pool.put(A, B, replicas=2)
    pool.put(C, replicas=2)
    assert pool.exists(A, B, C) == [0, 1, 1]
    assert len(pool.get(C)[0].slots) == 1


def test_one_hopeless_item_does_not_cost_the_others_their_chance() -> None:
    pool = Driver()
    pool.mount(pages=16)
    pool.put(*blocks(8), pinned=True)
    pool.put(*(block(i) for i in range(8, 16)))
    sizes = [16 * PAGE, 16 * PAGE, PAGE]
    items = [m.PutItem(key, size) for key, size in zip((A, B, C), sizes, strict=True)]
    grants = pool.expect(m.PutStarted, m.PutStart(items)).grants
    assert [grant.code for grant in grants] == [-200, -200, 0]
