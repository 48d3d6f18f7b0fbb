"""Size classes: how much space an object gets, and in which span it lies.

Everything here is a pure function of the segment's size, so that a slot found after a crash (its
offset and capacity) tells by itself where its span starts and how that span is cut.
"""

from __future__ import annotations

from dataclasses import dataclass

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
