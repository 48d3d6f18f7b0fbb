"""Size classes: how much space an object gets, and in which span it lies.

Everything here is a pure function of the segment's size, so that a slot found after a crash (its
offset and capacity) tells by itself where its span starts and how that span is cut.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import NamedTuple

import numpy as np
import numpy.typing as npt

I64 = npt.NDArray[np.int64]

PAGE_BYTES = 4096
SLAB_BYTES_MAX = 1 << 20
SPAN_SLABS_MAX = 16
SEGMENT_SLABS_MIN = 256


@dataclass(frozen=True, slots=True)
class Plan:
    """Space for one size class: ``count`` slots of ``capacity`` bytes in a span of ``slabs``.

    A span that is shared starts at a multiple of its length; one that is not (``shared`` false)
    is a run of slabs of any length at any place, for a single object. ``cost`` is what one slot
    takes from the segment with its share of what the span wastes.
    """

    capacity: int
    slabs: int
    count: int
    cost: int
    shared: bool


def slab_bytes_for(data_bytes: int) -> int:
    """Return the slab size of a segment: 1 MiB, less in one that would have under 256 of them."""
    target = max(PAGE_BYTES, data_bytes // SEGMENT_SLABS_MIN)
    return min(SLAB_BYTES_MAX, 1 << (target.bit_length() - 1))


def class_pages(pages: int) -> int:
    """Round up to a size class: exact up to 16 pages, then 16 steps per power of two."""
    if pages <= 16:
        return pages
    shift = (pages - 1).bit_length() - 5
    return -(-pages >> shift) << shift


class Cut(NamedTuple):
    """Where spaces lie: their spans' first slabs, their numbers in these, and which of ``plans``
    cuts them; all of shape (n,), -1 for what cannot be a space."""

    starts: I64
    numbers: I64
    which: I64
    plans: list[Plan]


class Plans:
    """The plans of one segment, remembered by size."""

    def __init__(self, data_bytes: int) -> None:
        self.slab_bytes = slab_bytes_for(data_bytes)
        self.slab_count = data_bytes // self.slab_bytes
        self._slab_pages = self.slab_bytes // PAGE_BYTES
        self._by_pages: dict[int, Plan] = {}
        self._by_capacity: dict[int, Plan] = {}

    def plan(self, size: int) -> Plan:
        """Return the plan for an object of ``size`` bytes (at least 1); one per capacity."""
        pages = -(-size // PAGE_BYTES)
        found = self._by_pages.get(pages)
        if found is None:
            found = self._make(pages)
            if pages <= SPAN_SLABS_MAX * self._slab_pages:  # bounds the dict
                found = self._by_capacity.setdefault(found.capacity, found)
                self._by_pages[pages] = found
        return found

    def of_capacity(self, capacity: int) -> Plan | None:
        """Return the plan that has this capacity, None if no plan has."""
        if capacity <= 0 or capacity % PAGE_BYTES:
            return None
        plan = self.plan(capacity)
        return plan if plan.capacity == capacity else None

    def cut(self, offsets: I64, capacities: I64) -> Cut:
        """Return in which spans spaces lie, given their offsets and capacities, shape (n,)."""
        starts, numbers, which = np.full((3, len(offsets)), -1, np.int64)
        plans: list[Plan] = []
        total = self.slab_count * self.slab_bytes
        for capacity in np.unique(capacities).tolist():
            plan = self.of_capacity(capacity)
            if plan is None:
                continue
            inside = (capacities == capacity) & (offsets >= 0) & (offsets <= total - capacity)
            chosen = np.flatnonzero(inside)
            slabs = offsets[chosen] // self.slab_bytes
            begin = slabs - slabs % plan.slabs if plan.shared else slabs
            number, rest = np.divmod(offsets[chosen] - begin * self.slab_bytes, capacity)
            fits = (rest == 0) & (number < plan.count)
            chosen = chosen[fits]
            starts[chosen], numbers[chosen], which[chosen] = begin[fits], number[fits], len(plans)
            plans.append(plan)
        return Cut(starts, numbers, which, plans)

    def overtaken(
        self, offsets: I64, capacities: I64, generations: npt.NDArray[np.uint64]
    ) -> npt.NDArray[np.bool_]:
        """Tell which spaces are none any more, because a newer one lies in a span that is cut
        otherwise, shape (n,). Their bytes may still be whole."""
        cut = self.cut(offsets, capacities)
        known = cut.which >= 0
        spans, inverse = np.unique(
            cut.which[known] * self.slab_count + cut.starts[known], return_inverse=True
        )
        newest = np.zeros(len(spans), np.uint64)
        np.maximum.at(newest, inverse, generations[known])
        lost, taken = np.zeros(len(spans), bool), bytearray(self.slab_count)
        for i in np.argsort(newest)[::-1].tolist():
            which, start = divmod(int(spans[i]), self.slab_count)
            slabs = cut.plans[which].slabs
            if taken.find(1, start, start + slabs) >= 0:
                lost[i] = True
            else:
                taken[start : start + slabs] = b"\x01" * slabs
        found = np.zeros(len(offsets), bool)
        found[known] = lost[inverse]
        return found

    def _make(self, pages: int) -> Plan:
        shared = self._shared(class_pages(pages))
        if shared is not None:
            return shared
        # Not rounded up any further: a multiple of slabs may be a class of shared spans.
        slabs = -(-pages // self._slab_pages)
        return Plan(pages * PAGE_BYTES, slabs, 1, slabs * self.slab_bytes, shared=False)

    def _shared(self, pages: int) -> Plan | None:
        slabs = 1
        while slabs <= min(SPAN_SLABS_MAX, self.slab_count):
            total = slabs * self._slab_pages
            count = total // pages
            if count and (total - count * pages) * 8 <= total:
                cost = slabs * self.slab_bytes // count
                return Plan(pages * PAGE_BYTES, slabs, count, cost, shared=True)
            slabs *= 2
        return None
