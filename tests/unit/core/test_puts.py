"""Two-phase put: grants, ends, revokes, retries, late writers."""

from __future__ import annotations

import math

import pytest

from moonpool.core import messages as m
from moonpool.core.keys import key_of
from tests.unit.core.driver import PAGE, Driver, block, segment_info

A, B, C = key_of("a"), key_of("b"), key_of("c")


@pytest.fixture
def pool() -> Driver:
    driver = Driver()
    driver.mount()
    return driver


def test_an_object_is_readable_once_its_put_has_ended(pool: Driver) -> None:
    (grant,) = pool.start(A, size=5000)
    assert grant.code == 0
    assert grant.capacity == 2 * PAGE
    assert grant.generation == (1 << 32) + 1
    assert pool.exists(A) == [False]
    assert pool.get(A)[0].code == -703
    assert pool.end(grant, checksum=99) == [0]
    assert pool.exists(A) == [True]
    assert pool.get(A) == [m.Located(5000, 99, grant.generation, grant.slots)]


def test_a_taken_key_is_refused(pool: Driver) -> None:
    (grant,) = pool.start(A)
    assert pool.start(A)[0].code == -705
    assert pool.start(A, peer="other")[0].code == -705
    pool.end(grant)
    assert pool.start(A)[0].code == -705
    assert pool.count("put_exists") == 3


def test_a_batch_grants_each_item_by_itself(pool: Driver) -> None:
    grants = pool.start(A, B, A, b"", b"\xff", b"\x05abc")
    assert [grant.code for grant in grants] == [0, 0, -705, -600, -600, -600]
    assert grants[0].slots[0].offset != grants[1].slots[0].offset


@pytest.mark.parametrize("size", [0, -1, 65 * PAGE, 1 << 62, 1 << 80])
def test_sizes_that_cannot_be(pool: Driver, size: int) -> None:
    assert pool.start(A, size=size)[0].code == -600
    assert pool.state.puts == {}


@pytest.mark.parametrize("parent", [A, b"\xff", b"\x01n"])
def test_parents_that_cannot_be(pool: Driver, parent: bytes) -> None:
    assert pool.start(A, parent=parent)[0].code == -600


@pytest.mark.parametrize("replicas", [0, -1, 9, 1 << 40])
def test_replicas_that_cannot_be(pool: Driver, replicas: int) -> None:
    reply = pool.expect(m.Failed, m.PutStart([m.PutItem(A, 1)], replicas))
    assert reply.code == -600


def test_lists_of_unequal_length_change_nothing(pool: Driver) -> None:
    (grant,) = pool.start(A)
    assert pool.expect(m.Failed, m.PutEnd([grant.generation], [])).code == -600
    assert pool.end(grant) == [0]


def test_too_many_items(pool: Driver) -> None:
    many = m.BATCH_ITEMS_MAX + 1
    for request in (
        m.PutStart([m.PutItem(A, 1)] * many),
        m.PutEnd([1] * many, [1] * many),
        m.PutRevoke([1] * many),
        m.Get([A] * many, 1, 1.0),
        m.Hold([A] * many, 1, 1.0),
        m.Exists([A] * many),
        m.MatchKeys([A] * many),
        m.Remove([A] * many),
    ):
        assert pool.expect(m.Failed, request).code == -600


def test_a_long_key_gets_room_of_its_own(pool: Driver) -> None:
    long = key_of("k" * 4000)
    (grant,) = pool.start(long, size=PAGE)
    assert grant.capacity == 2 * PAGE


def test_only_the_client_of_a_put_ends_it(pool: Driver) -> None:
    (grant,) = pool.start(A)
    assert pool.end(grant, peer="other") == [-601]
    assert pool.revoke(grant, peer="other") == [-601]
    assert pool.end(grant) == [0]


def test_ends_of_no_put(pool: Driver) -> None:
    assert pool.end(m.Grant(0, 12345)) == [-700]
    assert pool.revoke(m.Grant(0, 12345)) == [-700]
    assert pool.end(m.Grant(0, -1)) == [-700]


@pytest.mark.parametrize("checksum", [-1, 1 << 64])
def test_a_checksum_out_of_range_leaves_the_put_alone(pool: Driver, checksum: int) -> None:
    (grant,) = pool.start(A)
    assert pool.end(grant, checksum=checksum) == [-600]
    assert pool.end(grant) == [0]


def test_a_repeated_end_is_answered_like_the_first(pool: Driver) -> None:
    (grant,) = pool.put(A)
    assert pool.end(grant) == [0]
    assert pool.end(grant, peer="other") == [-700]
    pool.remove(A)
    assert pool.end(grant) == [0]
    assert pool.exists(A) == [False]


def test_ended_puts_are_forgotten_at_some_time() -> None:
    pool = Driver(recent_ends_max=2)
    pool.mount()
    grants = [pool.put(block(i))[0] for i in range(5)]
    assert pool.end(*grants) == [-700, -700, 0, 0, 0]


def test_a_revoked_put_gives_all_back(pool: Driver) -> None:
    (grant,) = pool.start(A)
    assert pool.revoke(grant) == [0]
    assert pool.take_pushes() == [
        ("node", m.DropSlots(1, [grant.slots[0].index], [grant.generation]))
    ]
    assert pool.status().segments[0].used_bytes == 0
    assert pool.end(grant) == [-700]
    assert pool.start(A)[0].code == 0


def test_a_put_that_takes_too_long_keeps_its_space_but_not_its_key(pool: Driver) -> None:
    (slow,) = pool.start(A)
    pool.tick(29.9)
    assert pool.start(A, peer="other")[0].code == -705
    pool.now += 0.2
    (fast,) = pool.start(A, peer="other")
    assert fast.code == 0
    assert fast.slots[0].offset != slow.slots[0].offset
    assert pool.status().segments[0].pending_bytes == PAGE
    assert pool.end(fast, peer="other") == [0]
    assert pool.end(slow) == [-700]
    assert pool.status().segments[0].pending_bytes == 0
    assert pool.get(A)[0].generation == fast.generation
    assert pool.count("put_late") == 1


def abandon(pool: Driver, *generations: int, peer: str = "client") -> list[int]:
    return pool.expect(m.Codes, m.PutAbandon(list(generations)), peer).codes


def test_an_abandoned_put_gives_its_key_back_at_once_and_its_space_later(pool: Driver) -> None:
    (slow,) = pool.start(A)
    assert abandon(pool, slow.generation, peer="other") == [-601]
    assert pool.start(A)[0].code == -705
    for _ in range(2):
        assert abandon(pool, slow.generation) == [0]
    (fast,) = pool.start(A)
    assert (fast.code, fast.slots[0].offset != slow.slots[0].offset) == (0, True)
    assert pool.status().segments[0].pending_bytes == PAGE
    assert pool.end(fast) == [0]
    # A node may still be writing there.
    assert pool.status().segments[0].pending_bytes == PAGE
    assert pool.revoke(slow) == [0]
    assert pool.status().segments[0].pending_bytes == 0
    assert pool.get(A)[0].generation == fast.generation
    assert abandon(pool, slow.generation, 7) == [-700, -700]


def test_a_clock_that_steps_back_does_not_hold_time_up(pool: Driver) -> None:
    pool.start(A)
    for _ in range(4):
        pool.now -= 1000.0
        pool.tick()
        pool.tick(10.0)
    assert pool.start(A, peer="other")[0].code == 0


@pytest.mark.parametrize("clock", [math.nan, math.inf, -math.inf])
def test_a_clock_that_is_none(pool: Driver, clock: float) -> None:
    pool.start(A)
    now, pool.now = pool.now, clock
    pool.tick()
    pool.now = now
    assert pool.start(A, peer="other")[0].code == -705
    pool.tick(31.0)
    assert pool.start(A, peer="other")[0].code == 0


def test_a_lost_client_is_fenced_before_its_space_is_used_again(pool: Driver) -> None:
    (grant,) = pool.start(A)
    pool.gone()
    assert pool.take_pushes() == [("node", m.FenceWriter("client", grant.generation))]
    assert pool.status().segments[0].pending_bytes == PAGE
    (again,) = pool.start(A, peer="other")
    assert again.slots[0].offset != grant.slots[0].offset
    pool.tick(1e6)
    assert pool.status().segments[0].used_bytes == 2 * PAGE
    pool.expect(m.Done, m.WriterGone("client", grant.generation), "node")
    assert pool.status().segments[0].used_bytes == PAGE


def test_writer_gone_of_an_earlier_fence_does_not_free_later_puts(pool: Driver) -> None:
    (old,) = pool.start(A)
    pool.gone()
    (new,) = pool.start(B)
    pool.gone()
    pool.expect(m.Done, m.WriterGone("client", old.generation), "node")
    assert pool.state.puts.keys() == {new.generation}
    pool.expect(m.Done, m.WriterGone("client", new.generation), "node")
    assert pool.state.puts == {}


def test_writer_gone_without_a_fence_is_ignored(pool: Driver) -> None:
    pool.start(A)
    pool.expect(m.Done, m.WriterGone("client"), "node")
    pool.tick(31.0)
    pool.expect(m.Done, m.WriterGone("client"), "node")
    assert pool.status().segments[0].pending_bytes == PAGE


def test_only_the_nodes_of_its_slots_free_them() -> None:
    pool = Driver()
    pool.mount("n1")
    pool.mount("n2")
    (grant,) = pool.start(A, replicas=2)
    assert len({slot.segment for slot in grant.slots}) == 2
    pool.gone()
    assert {peer for peer, _ in pool.take_pushes()} == {"n1", "n2"}
    pool.expect(m.Done, m.WriterGone("client"), "stranger")
    pool.expect(m.Done, m.WriterGone("client"), "n1")
    assert [each.used_bytes for each in pool.status().segments] == [0, PAGE]
    pool.expect(m.Done, m.WriterGone("client"), "n2")
    assert pool.state.puts == {}


def test_a_client_that_comes_back_may_still_end_its_orphans(pool: Driver) -> None:
    (first, second) = pool.start(A, B)
    pool.gone()
    assert pool.end(first) == [-700]
    assert pool.revoke(second) == [0]
    assert pool.status().segments[0].used_bytes == 0


def test_replicas_are_best_effort() -> None:
    pool = Driver()
    pool.mount("n1")
    assert len(pool.put(A, replicas=3)[0].slots) == 1
    pool.mount("n2")
    assert len(pool.put(B, replicas=3)[0].slots) == 2


@pytest.mark.parametrize("preferred", ["n2", "host-n2"])
def test_a_preferred_place_is_tried_first(preferred: str) -> None:
    pool = Driver()
    for node in ("n1", "n2", "n3"):
        pool.mount(node, pages=4)
    handles = [pool.put(block(i), preferred=preferred)[0].slots[0].segment for i in range(6)]
    assert handles[:4] == [2, 2, 2, 2]
    assert 2 not in handles[4:]


def test_the_emptiest_segment_is_next() -> None:
    pool = Driver()
    for node in ("n1", "n2"):
        pool.mount(node)
    handles = [pool.put(block(i))[0].slots[0].segment for i in range(10)]
    assert sorted(handles) == [1] * 5 + [2] * 5


def test_without_segments_there_is_nothing_to_wait_for() -> None:
    pool = Driver()
    (grant,) = pool.start(A)
    assert (grant.code, grant.retry_after_s) == (-200, 0.0)


def test_a_segment_takes_puts_after_its_last_announcement() -> None:
    pool = Driver()
    handle = pool.mount(last=False)
    (grant,) = pool.start(A)
    assert grant.code == -200
    assert grant.retry_after_s > 0
    pool.expect(m.Announced, m.Announce(handle, [], True), "node")
    assert pool.start(A)[0].code == 0


def test_one_client_cannot_tie_up_all_space() -> None:
    pool = Driver(pending_bytes_max=4 * PAGE)
    pool.mount()
    grants = pool.start(*(block(i) for i in range(6)))
    assert [grant.code for grant in grants] == [0, 0, 0, 0, -200, -200]
    assert grants[4].retry_after_s > 0
    assert pool.start(block(9), peer="other")[0].code == 0


def test_a_put_needs_a_named_session(pool: Driver) -> None:
    assert pool.expect(m.Failed, m.PutStart([m.PutItem(A, 1)]), "").code == -601


def test_a_full_table_is_a_full_segment() -> None:
    pool = Driver()
    pool.mount(slots=2)
    grants = pool.start(A, B, C)
    assert [grant.code for grant in grants] == [0, 0, -200]
    pool.end(*grants[:2])
    pool.put(C)
    assert pool.exists(A, B, C) == [False, True, True]


def test_mounting_a_segment_again_keeps_the_places_of_unfinished_puts(pool: Driver) -> None:
    (grant,) = pool.start(A)
    pool.gone("node", "node")
    assert pool.status().segments == []
    handle = pool.mount(peer="node-2")
    (other,) = pool.start(B, peer="other")
    assert other.slots[0].segment == handle
    assert other.slots[0].offset != grant.slots[0].offset
    assert other.slots[0].index != grant.slots[0].index
    assert pool.end(grant) == [-700]
    assert pool.status().segments[0].used_bytes == PAGE


def test_a_lost_client_is_fenced_on_a_node_that_comes_back(pool: Driver) -> None:
    (grant,) = pool.start(A)
    pool.gone("node", "node")
    pool.gone("client")
    assert pool.take_pushes() == []
    pool.mount(peer="node-2")
    assert pool.take_pushes() == [("node-2", m.FenceWriter("client", grant.generation))]
    pool.expect(m.Done, m.WriterGone("client", grant.generation), "node-2")
    assert pool.status().segments[0].used_bytes == 0


def test_a_new_file_of_another_shape_owes_old_writers_nothing(pool: Driver) -> None:
    pool.start(A)
    pool.gone("node", "node")
    pool.mount(pages=128)
    assert pool.state.puts == {}


def test_an_end_resolves_a_put_whose_node_is_away(pool: Driver) -> None:
    (grant,) = pool.start(A)
    pool.gone("node", "node")
    assert pool.end(grant) == [-700]
    assert pool.state.absent == {}
    assert pool.state.puts == {}


def test_a_put_survives_the_loss_of_one_replica() -> None:
    pool = Driver()
    pool.mount("n1")
    pool.mount("n2")
    (grant,) = pool.start(A, replicas=2)
    pool.gone("n1", "node")
    back = pool.mount("n1")
    assert pool.end(grant) == [0]
    assert [slot.segment for slot in pool.get(A)[0].slots] == [2]
    assert back == 3
    assert pool.state.segments.by_handle[back].owners() == []


def test_places_on_absent_segments_are_bounded() -> None:
    pool = Driver(absent_claims_max=3)
    for node in ("n1", "n2"):
        pool.mount(node)
    pool.start(*(block(i) for i in range(2)), preferred="n1")
    pool.start(*(block(i) for i in range(2, 4)), preferred="n2")
    pool.gone("n1", "node")
    pool.gone("n2", "node")
    assert sum(map(len, pool.state.absent.values())) == 2
    assert len(pool.state.puts) == 2


def test_segment_info_is_told_with_its_handle(pool: Driver) -> None:
    (info,) = pool.expect(m.Segments, m.GetSegments()).segments
    assert info.handle == 1
    assert info.path == segment_info().path
