"""A node's disk: what goes there and when, what is found there, and what comes back."""

from __future__ import annotations

import pytest

from moonpool.core import messages as m
from moonpool.core.keys import key_of
from tests.unit.core.driver import NAMESPACE, PAGE, Driver, block, digests

A, B, C = key_of("a"), key_of("b"), key_of("c")


class Pool(Driver):
    """A master with a node that has a disk, which the tests play."""

    def __init__(
        self, policy: str = m.ON_EVICT, pages: int = 8, offload: int = 1 << 20, **config: int
    ) -> None:
        super().__init__(watermark_high=0.95, watermark_low=0.5, **config)
        self.mount(pages=pages)
        self.disk = self.mount_disk(policy, offload=offload)

    def mount_disk(
        self,
        policy: str = m.ON_EVICT,
        *held: m.Shelved,
        node: str = "node",
        offload: int = 1 << 20,
        promote: int = 1 << 20,
    ) -> int:
        info = m.DiskInfo(node, 1 << 30, policy, promote, offload)
        handle = self.expect(m.Mounted, m.MountDisk(info), node).handle
        rejected = self.expect(m.Announced, m.Shelve(handle, list(held)), node).rejected
        self.rejected = rejected
        return handle

    def asked(self) -> list[int]:
        """Return the generations that the node is told to write."""
        told = [push for _, push in self.take_pushes() if isinstance(push, m.Offload)]
        return [generation for push in told for generation in push.generations]

    def told(self, kind: type[m.Message]) -> list[m.Message]:
        return [push for _, push in self.take_pushes() if isinstance(push, kind)]

    def write(self, *keys: bytes, parent: bytes = b"", disk: int = 0) -> list[int]:
        """Let the node write objects that are in memory; return what the master rejects."""
        found = [self.stat(key) for key in keys]
        written = [
            m.Shelved(each.key, each.parent, each.size, each.checksum, each.generation)
            for each in found
            if each is not None
        ]
        reply = self.expect(m.Announced, m.Shelve(disk or self.disk, written), "node")
        return reply.rejected

    def promotions(self) -> list[m.Promotion]:
        told = [push for _, push in self.take_pushes() if isinstance(push, m.Promote)]
        return [item for push in told for item in push.items]

    def read(self, item: m.Promotion) -> None:
        request = m.PutEnd([item.generation], [item.object.checksum])
        assert self.expect(m.Codes, request, "node").codes == [0]


def shelved(key: bytes, generation: int = 9, size: int = PAGE, checksum: int = 7) -> m.Shelved:
    return m.Shelved(key, b"", size, checksum, generation)


def blocks(count: int) -> list[bytes]:
    return [block(i) for i in range(count)]


def test_write_through_writes_what_is_put() -> None:
    pool = Pool(m.WRITE_THROUGH)
    (grant,) = pool.put(A)
    assert pool.asked() == [grant.generation]
    assert pool.write(A) == []
    info = pool.stat(A)
    assert info is not None
    assert (info.disk, info.segments) == ("node", ["node/s0"])
    assert pool.status().disks[0].objects == 1
    assert pool.status().disk_only == 0


def test_an_object_that_leaves_memory_is_written_first_and_found_afterwards() -> None:
    pool = Pool(pages=8)
    keys = blocks(8)
    pool.put(*keys)
    assert pool.asked() == []
    pool.tick()
    asked = pool.asked()
    assert len(asked) == 4
    assert pool.exists(*keys) == [True] * 8
    assert pool.count("evicted_objects") == 0
    pool.write(*keys[:4])
    assert pool.count("evicted_objects") == 4
    assert pool.count("evicted_unsaved") == 0
    assert pool.exists(*keys) == [True] * 8
    request = m.Match(NAMESPACE, digests(*range(8)), 16)
    assert pool.expect(m.Matched, request) == m.Matched(8, disks=True)
    assert pool.status().disk_only == 4


def test_what_is_used_meanwhile_stays_in_memory() -> None:
    pool = Pool(pages=8)
    keys = blocks(8)
    pool.put(*keys)
    pool.tick()
    pool.get(keys[0], lease_s=0.0)
    pool.write(*keys[:4])
    assert pool.count("evicted_objects") == 3
    assert pool.get(keys[0])[0].generation


def test_parents_are_written_with_the_leaf_that_leaves() -> None:
    pool = Pool(pages=8)
    keys = blocks(8)
    pool.put_chain(*keys)
    pool.tick()
    assert len(pool.asked()) == 8
    pool.write(*keys)
    pool.tick()
    assert pool.count("evicted_objects") == 4
    assert pool.count("evicted_unsaved") == 0


def test_puts_do_not_wait_for_a_disk() -> None:
    pool = Pool(pages=4)
    keys = blocks(4)
    pool.put(*keys)
    pool.tick()
    pool.put(A, B, C, key_of("d"))
    assert pool.count("evicted_unsaved") == 4
    assert pool.exists(*keys) == [False] * 4


def test_no_more_is_on_its_way_than_the_node_allows() -> None:
    pool = Pool(m.WRITE_THROUGH, pages=8, offload=3 * PAGE)
    pool.put(*blocks(6))
    assert len(pool.asked()) == 3
    assert pool.count("offload_refused") == 3
    pool.write(*blocks(3))
    pool.put(A)
    assert len(pool.asked()) == 1


def test_selective_writes_what_is_seen_twice() -> None:
    pool = Pool(m.SELECTIVE, pages=4)
    pool.put(A, B)
    assert pool.asked() == []
    pool.get(A, lease_s=0.0)
    assert len(pool.asked()) == 1
    assert pool.start(B)[0].code == -705
    assert len(pool.asked()) == 1
    pool.write(A, B)
    # What was evicted unseen, and is put again, has been seen twice too.
    pool.put(C)
    pool.put(*blocks(4))
    assert not pool.exists(C)[0]
    pool.take_pushes()
    pool.put(C)
    assert len(pool.asked()) == 1


def test_an_object_that_is_only_on_disk_is_read_on_demand() -> None:
    pool = Pool(pages=8)
    pool.mount_disk(m.ON_EVICT, shelved(A), shelved(B))
    (first,) = pool.get(A)
    assert (first.generation, first.code, first.size) == (0, -703, PAGE)
    assert first.retry_after_s > 0
    (item,) = pool.promotions()
    assert item.object == shelved(A)
    assert pool.get(A)[0].retry_after_s > 0
    assert pool.promotions() == []
    assert pool.start(A)[0].code == -705
    assert pool.start(B)[0].code == -705
    pool.read(item)
    assert (pool.count("promotions_ended"), pool.count("promotion_bytes")) == (1, PAGE)
    (there,) = pool.get(A)
    assert (there.generation, there.checksum) == (item.generation, 7)
    assert pool.status().disk_only == 1
    assert pool.status().disks[0].promoting_bytes == 0


def test_a_read_that_fails_is_a_miss_from_then_on() -> None:
    pool = Pool()
    disk = pool.mount_disk(m.ON_EVICT, shelved(A))
    pool.get(A)
    (item,) = pool.promotions()
    pool.expect(m.Done, m.Unshelve(disk, [A], [9]), "node")
    pool.expect(m.Codes, m.PutRevoke([item.generation]), "node")
    assert pool.get(A)[0].code == -704
    assert pool.exists(A) == [False]
    assert pool.start(A)[0].code == 0


def test_reads_from_disk_are_bounded_and_wait_for_their_turn() -> None:
    pool = Pool(pages=8)
    pool.mount_disk(m.ON_EVICT, *(shelved(key) for key in blocks(4)), promote=2 * PAGE)
    found = pool.get(*blocks(4))
    assert all(each.retry_after_s > 0 for each in found)
    items = pool.promotions()
    assert len(items) == 2
    pool.read(items[0])
    pool.get(*blocks(4))
    assert len(pool.promotions()) == 1


def test_no_room_in_memory_is_said() -> None:
    pool = Pool(pages=2)
    pool.disk = pool.mount_disk(m.ON_EVICT, shelved(A))
    pool.put(B, C)
    pool.get(B, C, lease_s=10.0)
    (found,) = pool.get(A, lease=2)
    assert found.code == -703
    assert found.retry_after_s > 0
    assert pool.get(A, lease=2)[0].retry_after_s > 0
    assert pool.count("promotions_waited") == 1
    pool.ask(m.Release([1]))
    pool.tick()
    # What is not on disk yet is not given up for it.
    assert len(pool.asked()) == 2
    pool.write(B, C)
    assert [item.object.key for item in pool.promotions()] == [A]
    pinned = Pool(pages=2)
    pinned.mount_disk(m.ON_EVICT, shelved(A))
    pinned.put(B, C, pinned=True)
    (found,) = pinned.get(A)
    assert (found.code, found.retry_after_s) == (-200, 0.0)


def test_what_memory_has_no_room_for_can_be_read_straight_from_the_disk() -> None:
    pool = Pool(pages=2)
    info = m.DiskInfo("node", 1 << 30, m.ON_EVICT, 1 << 20, 1 << 20, "host:1")
    pool.disk = handle = pool.expect(m.Mounted, m.MountDisk(info), "node").handle
    pool.expect(m.Announced, m.Shelve(handle, [shelved(A, 9), shelved(block(1), 10)]), "node")
    # There is room: it is brought into memory, and read there.
    (found,) = pool.get(block(1))
    assert (found.code, found.disk) == (-703, "")
    pool.read(pool.promotions()[0])
    pool.put(B)
    pool.get(B, block(1), lease_s=10.0)
    (found,) = pool.get(A, lease=2)
    assert (found.code, found.generation, found.slots) == (-703, 0, [])
    assert (found.size, found.checksum) == (PAGE, 7)
    assert (found.disk, found.disk_generation) == ("host:1", 9)
    assert found.retry_after_s > 0
    # Others that wait are told the same.
    assert pool.get(A, lease=3)[0].disk == "host:1"
    assert pool.count("disk_direct") == 2
    assert pool.count("get_misses") == 0
    pool.write(B)
    pool.ask(m.Release([1]))
    pool.tick()
    assert [item.object.key for item in pool.promotions()] == [A]
    (found,) = pool.get(A, lease=2)
    assert (found.disk, found.code) == ("", -703)


def test_a_pool_without_a_lease_that_may_end_still_says_where_the_disk_is() -> None:
    pool = Pool(pages=2)
    info = m.DiskInfo("node", 1 << 30, m.ON_EVICT, 1 << 20, 1 << 20, "host:1")
    handle = pool.expect(m.Mounted, m.MountDisk(info), "node").handle
    pool.expect(m.Announced, m.Shelve(handle, [shelved(A)]), "node")
    pool.put(B, C, pinned=True)
    (found,) = pool.get(A)
    assert (found.code, found.retry_after_s, found.disk) == (-200, 0.0, "host:1")


def test_prefetch_brings_what_memory_lacks_of_a_prefix() -> None:
    pool = Pool(pages=8)
    pool.mount_disk(m.ON_EVICT, *(shelved(block(i)) for i in (1, 2, 4, 5)))
    pool.put(block(0), block(3))
    request = m.Prefetch(NAMESPACE, digests(0, 1, 2, 3, 4, 6, 5), 16)
    assert pool.expect(m.Matched, request).count == 3
    assert [item.object.key for item in pool.promotions()] == [block(1), block(2), block(4)]
    assert pool.expect(m.Matched, request).count == 0
    strided = m.Prefetch(NAMESPACE, digests(9, 5, 9), 16, 2)
    assert pool.expect(m.Matched, strided).count == 1


def test_a_long_prefetch_goes_on_as_there_is_room() -> None:
    pool = Pool(pages=8)
    keys = blocks(5)
    pool.mount_disk(m.ON_EVICT, *(shelved(key) for key in keys), promote=2 * PAGE)
    request = m.Prefetch(NAMESPACE, digests(*range(5)), 16)
    assert pool.expect(m.Matched, request).count == 2
    seen = []
    while items := pool.promotions():
        seen += [item.object.key for item in items]
        for item in items:
            pool.read(item)
        pool.tick()
    assert seen == keys
    assert not any(each.hints for each in pool.state.disks.by_handle.values())
    pool.remove(*keys)
    again = (shelved(key, generation=1 << 40) for key in keys)
    pool.mount_disk(m.ON_EVICT, *again, promote=2 * PAGE)
    pool.expect(m.Matched, request)
    (first, _) = pool.promotions()
    pool.tick(11.0)
    pool.read(first)
    assert pool.promotions() == []


def test_a_hold_brings_objects_too() -> None:
    pool = Pool(pages=8)
    pool.mount_disk(m.ON_EVICT, shelved(B))
    pool.put(A)
    assert pool.expect(m.Matched, m.Hold([A, B, C], 1, 10.0)).count == 2
    assert [item.object.key for item in pool.promotions()] == [B]


def test_a_removed_object_is_taken_off_the_disk_and_does_not_come_back() -> None:
    pool = Pool(m.WRITE_THROUGH)
    (grant,) = pool.put(A)
    pool.write(A)
    pool.put(B)
    generation = pool.stat(B)
    assert generation is not None
    pool.take_pushes()
    assert pool.remove(A, B) == [0, 0]
    (drop,) = pool.told(m.DropShelved)
    assert drop == m.DropShelved([A], [grant.generation])
    # B was still being written.
    late = m.Shelved(B, b"", PAGE, 7, generation.generation)
    assert pool.expect(m.Announced, m.Shelve(pool.disk, [late]), "node").rejected == [0]
    assert pool.exists(A, B) == [False, False]


def test_removing_what_is_only_on_disk_or_just_being_read() -> None:
    pool = Pool()
    pool.mount_disk(m.ON_EVICT, shelved(A), shelved(B), shelved(block(1)))
    pool.get(B)
    (item,) = pool.promotions()
    assert pool.remove(A, B) == [0, 0]
    request = m.PutEnd([item.generation], [7])
    assert pool.expect(m.Codes, request, "node").codes == [-700]
    assert pool.exists(A, B) == [False, False]
    assert pool.expect(m.Matched, m.RemoveAll()).count == 1


def test_other_bytes_under_the_key_are_not_taken_from_a_disk() -> None:
    pool = Pool()
    pool.put(A)
    pool.mount_disk(m.ON_EVICT, shelved(A, checksum=8), shelved(B))
    assert pool.rejected == [0]
    pool.mount("other")
    pool.mount_disk(m.ON_EVICT, shelved(B), node="other")
    assert pool.rejected == [0]


def test_bytes_put_while_the_disk_was_away_win() -> None:
    pool = Pool()
    grants = pool.start(A)
    pool.mount_disk(m.ON_EVICT, shelved(A, checksum=8))
    assert pool.end(*grants) == [0]
    assert pool.told(m.DropShelved) == [m.DropShelved([A], [9])]


def test_a_node_takes_its_disk_with_it_and_brings_it_back() -> None:
    pool = Pool(pages=8)
    pool.mount_disk(m.ON_EVICT, shelved(A), shelved(B))
    pool.get(A)
    (item,) = pool.promotions()
    pool.gone("node", "node")
    assert pool.exists(A, B) == [False, False]
    assert pool.status().disks == []
    pool.mount(pages=8, peer="node-2")
    fences = [push for _, push in pool.take_pushes() if isinstance(push, m.FenceWriter)]
    assert [each.client for each in fences] == ["node"]
    pool.expect(m.Done, m.WriterGone("node", fences[0].generation), "node-2")
    assert not pool.state.puts
    info = m.DiskInfo("node", 1 << 30, m.ON_EVICT, 1 << 20, 1 << 20)
    handle = pool.expect(m.Mounted, m.MountDisk(info, 99), "node-2").handle
    pool.expect(m.Announced, m.Shelve(handle, [shelved(A)]), "node-2")
    assert pool.exists(A, B) == [True, False]
    assert item.generation < pool.put(C)[0].generation


def test_a_disk_that_goes_lets_go_of_what_was_to_leave_for_it() -> None:
    pool = Pool(pages=8)
    pool.put(*blocks(8))
    pool.tick()
    assert pool.state.disks.leaving
    pool.mount_disk()
    assert not pool.state.disks.leaving
    pool.put(A)
    assert pool.exists(A) == [True]


def test_list_and_stat_show_what_is_only_on_disk() -> None:
    pool = Pool(list_scan_max=2)
    pool.mount_disk(m.ON_EVICT, shelved(A), shelved(B))
    pool.put(C)
    after, found = 0, []
    while True:
        page = pool.expect(m.Listed, m.List(None, b"", after, 1))
        found += page.objects
        after = page.next
        if not after:
            break
    assert [(each.key, each.disk) for each in found] == [(C, ""), (A, "node"), (B, "node")]
    info = pool.stat(A)
    assert info is not None
    assert (info.segments, info.disk, info.size) == ([], "node", PAGE)


@pytest.mark.parametrize(
    "info",
    [
        m.DiskInfo("", 1, m.ON_EVICT, 1, 1),
        m.DiskInfo("n", 0, m.ON_EVICT, 1, 1),
        m.DiskInfo("n", 1, "sometimes", 1, 1),
        m.DiskInfo("n", 1, m.ON_EVICT, 1 << 61, 1),
    ],
)
def test_a_disk_that_makes_no_sense_is_refused(info: m.DiskInfo) -> None:
    assert Driver().expect(m.Failed, m.MountDisk(info), "n").code == -600


def test_what_others_say_of_a_disk_is_refused() -> None:
    pool = Pool()
    assert pool.expect(m.Failed, m.Shelve(pool.disk, []), "other").code == -601
    assert pool.expect(m.Failed, m.Unshelve(99, [], []), "node").code == -704
    assert pool.expect(m.Failed, m.Unshelve(pool.disk, [A], []), "node").code == -600
    bad = [shelved(A, generation=0), shelved(A, size=0), shelved(b""), shelved(A, checksum=-1)]
    disk = pool.mount_disk(m.ON_EVICT, *bad)
    assert pool.rejected == [0, 1, 2, 3]
    # Nobody asked for it.
    assert pool.expect(m.Announced, m.Shelve(disk, [shelved(A)]), "node").rejected == [0]
    for wrong in (
        m.Prefetch(b"", b"12", 0),
        m.Prefetch(b"", b"123", 2),
        m.Prefetch(b"", b"1", 1, 0),
    ):
        assert pool.expect(m.Failed, wrong).code == -600
