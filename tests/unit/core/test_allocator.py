"""Space in a segment: no overlap, no leak, and every slot can be adopted again in any order."""

from __future__ import annotations

import random

import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

from moonpool.core.allocator import SlabAllocator
from moonpool.core.sizes import PAGE_BYTES, Plans, class_pages, slab_bytes_for
from moonpool.core.slabs import SlabMap
from moonpool.core.slots import SlotTable

MIB = 1 << 20


class Ledger:
    """An allocator and what it gave out."""

    def __init__(self, data_bytes: int) -> None:
        self.space = SlabAllocator(data_bytes)
        self.live: dict[int, int] = {}

    def allocate(self, size: int) -> int | None:
        offset = self.space.allocate(size)
        if offset is not None:
            capacity = self.space.capacity_of(size)
            assert capacity >= size
            self.add(offset, capacity)
        return offset

    def add(self, offset: int, capacity: int) -> None:
        assert offset not in self.live
        self.live[offset] = capacity

    def free(self, offset: int) -> None:
        assert self.space.free(offset) == self.live.pop(offset)

    def check(self) -> None:
        self.space.validate()
        spans = sorted(self.live.items())
        assert [each[:2] for each in self.space.allocated()] == spans
        end = 0
        for offset, capacity in spans:
            assert offset >= end
            assert offset % PAGE_BYTES == capacity % PAGE_BYTES == 0
            end = offset + capacity
        assert end <= self.space.total_bytes
        assert self.space.used_bytes == sum(self.live.values())


sizes = st.one_of(
    st.integers(1, 70_000),
    st.integers(1, 3 * MIB),
    st.integers(1, 24 * MIB),
    st.sampled_from([1, 4096, 4097, 65536, MIB, 2 * MIB, 6 * MIB, 16 * MIB]),
)
steps = st.lists(st.tuples(st.booleans(), sizes, st.integers(0, 2**16)), max_size=120)


def run_steps(ledger: Ledger, script: list[tuple[bool, int, int]]) -> None:
    for is_allocation, size, pick in script:
        if is_allocation or not ledger.live:
            ledger.allocate(size)
        else:
            ledger.free(sorted(ledger.live)[pick % len(ledger.live)])


@settings(max_examples=150, deadline=None)
@example(5 * MIB, [(True, 65537, 0)], [], random.Random(0))
@given(
    st.sampled_from([64 * 1024, 300_000, 5 * MIB, 50 * MIB + 12_345, 300 * MIB]),
    steps,
    steps,
    st.randoms(use_true_random=False),
)
def test_living_slots_are_adopted_in_any_order(
    data_bytes: int,
    before: list[tuple[bool, int, int]],
    after: list[tuple[bool, int, int]],
    rng: random.Random,
) -> None:
    old = Ledger(data_bytes)
    run_steps(old, before)
    old.check()

    new = Ledger(data_bytes)
    found = list(old.live.items())
    rng.shuffle(found)
    for offset, capacity in found:
        assert new.space.reserve(offset, capacity)
        assert not new.space.reserve(offset, capacity)
        new.add(offset, capacity)
    new.check()
    assert new.live == old.live

    run_steps(new, after)
    new.check()
    for offset in list(new.live):
        new.free(offset)
    new.check()
    assert new.space.used_bytes == 0
    assert new.allocate(new.space.total_bytes) == 0


def test_a_class_wastes_little() -> None:
    plans = Plans(1 << 36)
    for pages in range(1, 8192):
        plan = plans.plan(pages * PAGE_BYTES)
        assert plan.capacity >= pages * PAGE_BYTES
        assert plans.of_capacity(plan.capacity) == plan
        total = plan.slabs * plans.slab_bytes
        if plan.shared:
            assert plan.count * plan.capacity >= total * 7 / 8
            assert plan.capacity <= pages * PAGE_BYTES * (1 + 1 / 16)
        else:
            assert plan.count == 1
            assert total - plan.capacity < plans.slab_bytes


def test_size_classes() -> None:
    assert [class_pages(n) for n in (1, 15, 16, 17, 32, 33, 34, 63, 65)] == [
        1, 15, 16, 17, 32, 34, 34, 64, 68,
    ]  # fmt: skip
    assert slab_bytes_for(1 << 40) == MIB
    assert slab_bytes_for(256 * MIB) == MIB
    assert slab_bytes_for(MIB) == PAGE_BYTES


def test_full_segment_has_no_space_until_something_is_freed() -> None:
    ledger = Ledger(256 * MIB)
    offsets = []
    while (offset := ledger.allocate(2 * MIB)) is not None:
        offsets.append(offset)
    assert len(offsets) == 128
    assert ledger.space.used_bytes == ledger.space.total_bytes
    ledger.free(offsets[77])
    assert ledger.allocate(2 * MIB) == offsets[77]


def test_too_large_never_fits() -> None:
    space = SlabAllocator(10 * PAGE_BYTES)
    assert space.fits(10 * PAGE_BYTES)
    assert not space.fits(10 * PAGE_BYTES + 1)
    assert not space.fits(1 << 63)
    assert space.allocate(9 * PAGE_BYTES + 1) == 0


@pytest.mark.parametrize(
    ("offset", "capacity"),
    [
        (-4096, 4096),
        (0, 0),
        (0, -4096),
        (0, 4095),
        (0, 101 * PAGE_BYTES),  # not a class: it would be rounded up
        (1, 4096),
        (512 * MIB, 4096),
        (MIB, 2 * MIB),  # spans of two slabs start at even ones
        (0, 1 << 70),
    ],
)
def test_what_was_never_allocated_is_not_adopted(offset: int, capacity: int) -> None:
    space = SlabAllocator(512 * MIB)
    assert not space.reserve(offset, capacity)
    space.validate()
    assert space.used_bytes == 0


def test_adopting_another_class_in_a_living_span_is_refused() -> None:
    space = SlabAllocator(512 * MIB)
    assert space.reserve(0, 8192)
    assert not space.reserve(8192, 4096)
    assert not space.reserve(0, 4096)
    assert space.reserve(8192, 8192)


@pytest.mark.parametrize("offset", [0, 1, 4096, 8192])
def test_freeing_what_is_free_is_an_error(offset: int) -> None:
    space = SlabAllocator(512 * MIB)
    if offset:
        assert space.allocate(4096) == 0
    with pytest.raises(ValueError, match="nothing is allocated"):
        space.free(offset)


def test_blockers_make_room() -> None:
    ledger = Ledger(256 * MIB)
    while ledger.allocate(256 * 1024) is not None:
        pass
    for wanted in (2 * MIB, 6 * MIB, 14 * MIB):
        blockers = ledger.space.blockers(wanted, 130 * MIB)
        assert blockers
        for offset in blockers:
            ledger.free(offset)
        assert ledger.allocate(wanted) is not None
        ledger.check()


@settings(max_examples=100, deadline=None)
@given(st.integers(1, 100), st.lists(st.tuples(st.integers(0, 8), st.integers(0, 2**16))))
def test_slab_map(count: int, script: list[tuple[int, int]]) -> None:
    slabs = SlabMap(count)
    taken: list[tuple[int, int]] = []
    for kind, pick in script:
        if kind < 5:
            start, length = slabs.take_aligned(1 << kind), 1 << kind
        elif kind < 7:
            length = pick % 30 + 1
            start = slabs.take_run(length)
        elif taken:
            slabs.give(*taken.pop(pick % len(taken)))
            continue
        else:
            continue
        if start >= 0:
            assert kind >= 5 or start % length == 0
            taken.append((start, length))
        slabs.validate()
    assert slabs.free_count == count - sum(length for _, length in taken)


@settings(max_examples=100, deadline=None)
@given(st.integers(1, 60), st.lists(st.tuples(st.integers(0, 2), st.integers(0, 80))))
def test_slot_table(count: int, script: list[tuple[int, int]]) -> None:
    table = SlotTable(count)
    taken: set[int] = set()
    for kind, pick in script:
        if kind == 0:
            index = table.take()
            assert (index is None) == (len(taken) == count)
            if index is not None:
                assert index not in taken
                taken.add(index)
        elif kind == 1:
            expected = pick < count and pick not in taken
            assert table.reserve(pick) == expected
            if expected:
                taken.add(pick)
        elif taken:
            index = sorted(taken)[pick % len(taken)]
            taken.remove(index)
            table.give(index)
        table.validate()
    while table.take() is not None:
        taken.add(-len(taken))
    assert table.used == count


def test_a_freed_index_rests() -> None:
    table = SlotTable(1000)
    assert [table.take() for _ in range(3)] == [0, 1, 2]
    table.give(1)
    assert table.take() == 3


def test_freeing_a_free_index_is_an_error() -> None:
    with pytest.raises(ValueError, match="not taken"):
        SlotTable(4).give(1)
