"""Space inside one segment: spans of slabs, each cut into equal slots of one size class."""

from __future__ import annotations

from collections.abc import Iterator
from heapq import heappop, heappush
from typing import Any

import numpy as np
import numpy.typing as npt

from moonpool.core.sizes import Plan, Plans
from moonpool.core.slabs import SlabMap

I64 = npt.NDArray[np.int64]


class Span:
    """A run of slabs cut into slots; bit i of ``free`` is set while slot i is free."""

    __slots__ = ("free", "owners", "plan", "queued", "start")

    def __init__(self, start: int, plan: Plan) -> None:
        self.start = start
        self.plan = plan
        self.free = (1 << plan.count) - 1
        self.owners: list[Any] = [None] * plan.count
        self.queued = False


class SlabAllocator:
    """Allocates byte ranges of one segment's data area; offsets and sizes are bytes.

    It also remembers whose each range is, in 8 bytes a slot.
    """

    def __init__(self, data_bytes: int) -> None:
        self._plans = Plans(data_bytes)
        self.slab_bytes = self._plans.slab_bytes
        self.total_bytes = self._plans.slab_count * self.slab_bytes
        self.used_bytes = 0
        # With what the spans waste: reaches total_bytes when nothing more fits.
        self.filled_bytes = 0
        self._slabs = SlabMap(self._plans.slab_count)
        self._spans: list[Span | None] = [None] * self._plans.slab_count
        # Spans with free slots by capacity, lowest first: full spans stay full, and the last
        # ones empty out. Entries are corrected when they come up.
        self._partial: dict[int, list[int]] = {}

    def capacity_of(self, size: int) -> int:
        """Return the bytes that an object of ``size`` bytes occupies."""
        return self._plans.plan(size).capacity

    def fits(self, size: int) -> bool:
        """Tell whether an empty segment could hold an object of ``size`` bytes."""
        return size <= self.total_bytes and self._plans.plan(size).slabs <= self._slabs.count

    def allocate(self, size: int) -> int | None:
        """Return the offset of new space for ``size`` bytes, or None if there is none now."""
        plan = self._plans.plan(size)
        span = self._partial_span(plan) or self._new_span(plan)
        if span is None:
            return None
        lowest = span.free & -span.free
        span.free ^= lowest
        self.used_bytes += plan.capacity
        self.filled_bytes += plan.cost
        return span.start * self.slab_bytes + (lowest.bit_length() - 1) * plan.capacity

    def free(self, offset: int) -> int:
        """Give space back; return its capacity. The offset must be one that is allocated."""
        span, index = self._slot(offset)
        plan = span.plan
        span.free |= 1 << index
        span.owners[index] = None
        self.used_bytes -= plan.capacity
        self.filled_bytes -= plan.cost
        if span.free == (1 << plan.count) - 1:
            self._spans[span.start : span.start + plan.slabs] = [None] * plan.slabs
            self._slabs.give(span.start, plan.slabs)
        elif not span.queued:
            self._queue(span)
        return plan.capacity

    def own(self, offset: int, owner: Any) -> None:
        """Say whose an allocated range is."""
        span, index = self._slot(offset)
        span.owners[index] = owner

    def owner(self, offset: int) -> Any:
        """Return whose an allocated range is."""
        span, index = self._slot(offset)
        return span.owners[index]

    def capacity_at(self, offset: int) -> int:
        """Return the bytes of an allocated range."""
        return self._slot(offset)[0].plan.capacity

    def _slot(self, offset: int) -> tuple[Span, int]:
        span = self._spans[offset // self.slab_bytes]
        if span is None:
            raise ValueError(f"nothing is allocated at {offset}")
        index, rest = divmod(offset - span.start * self.slab_bytes, span.plan.capacity)
        if rest or index >= span.plan.count or span.free >> index & 1:
            raise ValueError(f"nothing is allocated at {offset}")
        return span, index

    def reserve(self, offset: int, capacity: int) -> bool:
        """Take the space of an earlier allocation; False if it cannot be one or is taken."""
        if offset < 0 or offset + capacity > self.total_bytes:
            return False
        plan = self._plans.of_capacity(capacity)
        if plan is None:
            return False
        slab = offset // self.slab_bytes
        start = slab - slab % plan.slabs if plan.shared else slab
        index, rest = divmod(offset - start * self.slab_bytes, capacity)
        if rest or index >= plan.count:
            return False
        span = self._spans[slab]
        if span is None:
            if not self._slabs.take_at(start, plan.slabs):
                return False
            span = self._add_span(start, plan)
        elif span.plan.capacity != capacity or span.start != start or not span.free >> index & 1:
            return False
        span.free ^= 1 << index
        self.used_bytes += capacity
        self.filled_bytes += plan.cost
        return True

    def reserve_many(
        self, offsets: I64, capacities: I64
    ) -> tuple[npt.NDArray[np.bool_], dict[int, Span], I64, I64]:
        """Take the spaces of earlier allocations, as ``reserve`` does.

        Return which could be had; the spans by their starts; and for each space the start of its
        span and its number there. The caller names the owners.
        """
        starts, numbers, which, plans = self._plans.cut(offsets, capacities)
        groups = np.where(which < 0, -1, which * self._plans.slab_count + starts)
        had = np.zeros(len(offsets), bool)
        spans: dict[int, Span] = {}
        for group, chosen in _by_group(groups):
            kind, start = divmod(group, self._plans.slab_count)
            span = self._span_of(start, plans[kind])
            if span is not None:
                had[chosen] = self._take(span, numbers[chosen])
                spans[start] = span
        return had, spans, starts, numbers

    def _span_of(self, start: int, plan: Plan) -> Span | None:
        """Return the span that begins there and is cut so; None if it cannot be had."""
        span = self._spans[start]
        if span is None:
            return self._add_span(start, plan) if self._slabs.take_at(start, plan.slabs) else None
        return span if span.plan is plan and span.start == start else None

    def _take(self, span: Span, numbers: I64) -> npt.NDArray[np.bool_]:
        """Take slots of a span; tell which could be had, of several that are one the first."""
        wanted = np.zeros(span.plan.count, np.uint8)
        wanted[numbers] = 1
        bits = int.from_bytes(np.packbits(wanted, bitorder="little").tobytes(), "little")
        had = np.ones(len(numbers), bool)
        if bits & ~span.free or bits.bit_count() < len(numbers):
            seen = ~span.free
            for i, number in enumerate(numbers.tolist()):
                had[i] = not seen >> number & 1
                seen |= 1 << number
            bits &= span.free
        span.free ^= bits
        self.used_bytes += bits.bit_count() * span.plan.capacity
        self.filled_bytes += bits.bit_count() * span.plan.cost
        return had

    def blockers(self, size: int, offset: int) -> list[int] | None:
        """Return what must be freed around ``offset`` so that ``size`` bytes fit there.

        None if no space of that shape lies there.
        """
        plan = self._plans.plan(size)
        slab = offset // self.slab_bytes
        if plan.shared:
            start = slab - slab % plan.slabs
        else:
            start = max(0, min(slab, self._slabs.count - plan.slabs))
        end = start + plan.slabs
        if end > self._slabs.count:
            return None
        offsets: list[int] = []
        while start < end:
            span = self._spans[start]
            if span is None:
                start += 1
                continue
            offsets += self._allocated(span)
            start = span.start + span.plan.slabs
        return offsets

    def _allocated(self, span: Span) -> list[int]:
        base = span.start * self.slab_bytes
        capacity = span.plan.capacity
        return [base + i * capacity for i in range(span.plan.count) if not span.free >> i & 1]

    def _partial_span(self, plan: Plan) -> Span | None:
        heap = self._partial.get(plan.capacity)
        while heap:
            span = self._spans[heap[0]]
            if span is not None and span.free and span.plan is plan:
                return span
            heappop(heap)
            if span is not None and span.plan is plan:
                span.queued = False
        return None

    def _new_span(self, plan: Plan) -> Span | None:
        if plan.shared:
            start = self._slabs.take_aligned(plan.slabs)
        else:
            start = self._slabs.take_run(plan.slabs)
        return None if start < 0 else self._add_span(start, plan)

    def _add_span(self, start: int, plan: Plan) -> Span:
        span = Span(start, plan)
        self._spans[start : start + plan.slabs] = [span] * plan.slabs
        if plan.count > 1:
            self._queue(span)
        return span

    def _queue(self, span: Span) -> None:
        span.queued = True
        heappush(self._partial.setdefault(span.plan.capacity, []), span.start)

    def allocated(self) -> list[tuple[int, int, Any]]:
        """Return (offset, capacity, owner) of everything allocated, by offset."""
        found: list[tuple[int, int, Any]] = []
        for slab, span in enumerate(self._spans):
            if span is not None and span.start == slab:
                base, capacity = span.start * self.slab_bytes, span.plan.capacity
                found += [
                    (base + i * capacity, capacity, owner)
                    for i, owner in enumerate(span.owners)
                    if not span.free >> i & 1
                ]
        return found

    def owners_from(self, slab: int, enough: int) -> tuple[list[Any], int]:
        """Return the owners of what is allocated from a slab on, and the slab to go on with, 0 at
        the end. It stops when it has ``enough``."""
        found: list[Any] = []
        while slab < len(self._spans) and len(found) < enough:
            span = self._spans[slab]
            if span is None:
                slab += 1
                continue
            if span.start == slab:
                found += [owner for owner in span.owners if owner is not None]
            slab = span.start + span.plan.slabs
        return found, slab if slab < len(self._spans) else 0

    def validate(self) -> None:
        """Raise AssertionError if the parts contradict each other."""
        self._slabs.validate()
        used = filled = 0
        for slab, span in enumerate(self._spans):
            assert (span is None) == self._slabs.is_free(slab)
            if span is None or span.start != slab:
                continue
            plan = span.plan
            assert all(s is span for s in self._spans[slab : slab + plan.slabs])
            assert slab % plan.slabs == 0 or not plan.shared
            busy = plan.count - span.free.bit_count()
            assert 0 < busy <= plan.count
            assert span.free.bit_length() <= plan.count
            assert len(span.owners) == plan.count
            assert all(span.owners[i] is None for i in range(plan.count) if span.free >> i & 1)
            used += busy * plan.capacity
            filled += busy * plan.cost
            if plan.count > 1:
                assert span.queued or not span.free
                assert not span.queued or slab in self._partial[plan.capacity]
        assert used == self.used_bytes
        assert used <= filled == self.filled_bytes <= self.total_bytes


def _by_group(groups: I64) -> Iterator[tuple[int, I64]]:
    """Yield the groups that are not negative by their first members, with all their members."""
    order = np.argsort(groups, kind="stable")
    order = order[int(np.searchsorted(groups[order], 0)) :]
    cuts = np.flatnonzero(np.diff(groups[order])) + 1
    parts = np.split(order, cuts) if len(order) else []
    for part in sorted(parts, key=lambda each: int(each[0])):
        yield int(groups[part[0]]), part
