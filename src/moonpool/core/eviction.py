"""Which objects go first: leaves of the prefix chains, least recently used first."""

from __future__ import annotations

from collections.abc import Collection, Iterable
from heapq import heapify, heappop, heappush

from moonpool.core.index import Object, children_of

_COMPACT_MIN = 1024


class Leaves:
    """The objects that could be evicted, by last use.

    An entry may be out of date: its object was used since, got a child or a lease, or is gone.
    It is corrected when it comes up; whoever makes an object evictable again offers it again.
    The heap is one of the objects themselves, by their ``rank``: no entry costs more than 8 bytes.
    """

    def __init__(self) -> None:
        self._heap: list[Object] = []

    def offer(self, offered: Object, objects: int) -> None:
        """Consider an object (of ``objects`` in the pool) that may now be evictable."""
        if offered.queued or not is_evictable_leaf(offered):
            return
        if len(self._heap) > _COMPACT_MIN + 2 * objects:
            self._heap = [each for each in self._heap if each.alive]
            heapify(self._heap)
        offered.rank = offered.used
        heappush(self._heap, offered)

    def offer_newest(self, leaves: list[Object]) -> None:
        """Consider evictable leaves in order of their use, which is the latest of all."""
        for each in leaves:
            each.rank = each.used
        self._heap += leaves  # what is not lower than any other may stand at a heap's end

    def pop(self) -> Object | None:
        """Take out the evictable leaf used least recently; offer it again or remove it."""
        heap = self._heap
        while heap:
            coldest = heappop(heap)
            if not is_evictable_leaf(coldest):
                coldest.rank = -1
            elif coldest.used != coldest.rank:
                coldest.rank = coldest.used
                heappush(heap, coldest)
            else:
                coldest.rank = -1
                return coldest
        return None

    def validate(self, objects: Iterable[Object], leaving: Collection[int] = ()) -> None:
        """Raise AssertionError if an evictable leaf is not queued, or queued twice. ``leaving``:
        generations of those that need not be."""
        queued = [each for each in self._heap if each.alive]
        assert len(queued) == len(set(queued))
        assert all(each.rank <= each.used for each in self._heap)
        found = set(queued)
        for each in objects:
            assert each.queued == (each in found)
            assert each.queued or not is_evictable_leaf(each) or each.generation in leaving


def is_evictable_leaf(candidate: Object) -> bool:
    """Tell whether an object may be evicted by itself."""
    return (
        candidate.alive
        and candidate.first_child is None
        and not candidate.leases
        and not candidate.pinned
    )


def family(roots: Iterable[Object], limit: int) -> list[Object] | None:
    """Return the objects and all their descendants, descendants mostly first.

    None if one of them may not be evicted, or if there are more than ``limit``.
    """
    found: dict[Object, None] = {}
    todo = list(roots)
    while todo:
        each = todo.pop()
        if each in found:
            continue
        if each.leases or each.pinned or len(found) >= limit:
            return None
        found[each] = None
        todo += children_of(each)
    return list(reversed(found))
