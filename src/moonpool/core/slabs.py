"""Which slabs of a segment are free: aligned blocks of 1 to 16, and runs of any length.

Slabs are kept in chunks of 16 as bit masks; chunks are queued by the largest aligned block they
still have, so that small blocks come from chunks already broken.
"""

from __future__ import annotations

from heapq import heappop, heappush

CHUNK = 16
_STARTS = (0xFFFF, 0x5555, 0x1111, 0x0101, 0x0001)
_RECENT_MAX = 64


def aligned_blocks(mask: int, order: int) -> int:
    """Return the bits at which an aligned block of ``2**order`` free slabs starts."""
    for step in range(order):
        mask &= mask >> (1 << step)
    return mask & _STARTS[order]


def largest_order(mask: int) -> int:
    """Return the order of the largest aligned free block in a chunk, -1 if none is free."""
    order = -1
    for step in range(5):
        if not mask & _STARTS[step]:
            break
        order = step
        mask &= mask >> (1 << step)
    return order


class SlabMap:
    """The free slabs of one segment."""

    def __init__(self, count: int) -> None:
        self.count = count
        self.free_count = count
        # One byte per slab lets bytes.find look for long runs at C speed.
        self._free = bytearray(b"\x01" * count)
        chunks = -(-count // CHUNK)
        self._masks = [0xFFFF] * chunks
        if count % CHUNK:
            self._masks[-1] = (1 << count % CHUNK) - 1
        self._orders = [-1] * chunks
        self._queued = [0] * chunks
        self._heaps: list[list[int]] = [[] for _ in _STARTS]
        self._recent: dict[int, int] = {}
        for chunk in range(chunks):
            self._requeue(chunk)

    def take_aligned(self, slabs: int) -> int:
        """Take an aligned block of 1, 2, 4, 8 or 16 slabs; return its start, or -1."""
        order = slabs.bit_length() - 1
        for have in range(order, len(_STARTS)):
            heap = self._heaps[have]
            while heap:
                chunk = heap[0]
                if self._orders[chunk] != have:
                    heappop(heap)
                    self._queued[chunk] &= ~(1 << have)
                    continue
                bits = aligned_blocks(self._masks[chunk], order)
                start = chunk * CHUNK + (bits & -bits).bit_length() - 1
                self._mark(start, slabs, free=False)
                return start
        return -1

    def take_run(self, slabs: int) -> int:
        """Take a run of slabs, wherever it is; return its start, or -1."""
        if slabs > self.free_count:
            return -1
        wanted = b"\x01" * slabs
        start = self._recent.pop(slabs, 0)
        if not self._free.startswith(wanted, start):
            start = self._free.find(wanted)
        if start >= 0:
            self._mark(start, slabs, free=False)
        return start

    def take_at(self, start: int, slabs: int) -> bool:
        """Take these very slabs; False if they are not all free."""
        if start + slabs > self.count or not self._free.startswith(b"\x01" * slabs, start):
            return False
        self._mark(start, slabs, free=False)
        return True

    def give(self, start: int, slabs: int) -> None:
        """Give slabs back."""
        self._mark(start, slabs, free=True)
        if len(self._recent) >= _RECENT_MAX:
            self._recent.clear()
        self._recent[slabs] = start

    def is_free(self, slab: int) -> bool:
        """Tell whether a slab is free."""
        return bool(self._free[slab])

    def _mark(self, start: int, slabs: int, *, free: bool) -> None:
        end = start + slabs
        self._free[start:end] = (b"\x01" if free else b"\x00") * slabs
        self.free_count += slabs if free else -slabs
        for chunk in range(start // CHUNK, -(-end // CHUNK)):
            low = max(start - chunk * CHUNK, 0)
            high = min(end - chunk * CHUNK, CHUNK)
            bits = (1 << high) - (1 << low)
            self._masks[chunk] = self._masks[chunk] | bits if free else self._masks[chunk] & ~bits
            self._requeue(chunk)

    def _requeue(self, chunk: int) -> None:
        order = largest_order(self._masks[chunk])
        if order == self._orders[chunk]:
            return
        self._orders[chunk] = order
        if order >= 0 and not self._queued[chunk] >> order & 1:
            self._queued[chunk] |= 1 << order
            heappush(self._heaps[order], chunk)

    def validate(self) -> None:
        """Raise AssertionError if the parts contradict each other."""
        assert self.free_count == sum(self._free)
        queued = [set(heap) for heap in self._heaps]
        for chunk, mask in enumerate(self._masks):
            flags = self._free[chunk * CHUNK : (chunk + 1) * CHUNK]
            assert mask == sum(flag << bit for bit, flag in enumerate(flags))
            order = largest_order(mask)
            assert self._orders[chunk] == order
            assert order < 0 or chunk in queued[order]
