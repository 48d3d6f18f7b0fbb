"""Leaves of the prefix chains, least recently used first; and the same without regard to chains."""

from __future__ import annotations

from collections.abc import Iterable
from heapq import heapify, heappop, heappush
from typing import ClassVar

from moonpool.core.eviction.base import Policy
from moonpool.core.eviction.chains import is_evictable_leaf
from moonpool.core.index import Object

_COMPACT_MIN = 1024


class LeafLru(Policy):
    """Evicts the leaf used least recently: a parent goes after its last child.

    An entry may be out of date: its object was used since, got a child or a lease, or is gone.
    It is corrected when it comes up. The heap is one of the objects themselves, by their ``rank``,
    which is ``used`` as it was when they were queued: no entry costs more than 8 bytes.
    """

    name: ClassVar[str] = "leaf-lru"
    counts: ClassVar[bool] = False
    inner: ClassVar[bool] = False

    def __init__(self) -> None:
        super().__init__()
        self._heap: list[Object] = []

    def offer(self, offered: Object, objects: int) -> None:
        """Consider an object that may now be evictable: as in the base, in fewer steps."""
        released = self.released
        if released.stamps and released.takes(offered):
            return
        if offered.rank < 0 and is_evictable_leaf(offered):
            self.enter(offered, objects)

    def offer_newest(self, added: list[Object], objects: int) -> None:
        """Consider new objects in order of their use, which is the latest of all."""
        leaves = [each for each in added if each.first_child is None]
        for each in leaves:
            each.rank = each.used
        self._heap += leaves  # what is not lower than any other may stand at a heap's end

    def enter(self, entering: Object, objects: int) -> None:
        """Queue an object by its last use."""
        if len(self._heap) > _COMPACT_MIN + 2 * objects:
            self._heap = [each for each in self._heap if each.alive]
            heapify(self._heap)
        entering.rank = entering.used
        heappush(self._heap, entering)

    def next(self) -> Object | None:
        """Take out the evictable one used least recently."""
        heap, may_go = self._heap, self.may_go
        while heap:
            coldest = heappop(heap)
            if not may_go(coldest):
                coldest.rank = -1
            elif coldest.used != coldest.rank:
                coldest.rank = coldest.used
                heappush(heap, coldest)
            else:
                coldest.rank = -1
                return coldest
        return None

    def queued(self) -> Iterable[Object]:
        """Return what is queued."""
        alive = [each for each in self._heap if each.alive]
        assert all(each.rank <= each.used for each in self._heap)
        return alive


class Lru(LeafLru):
    """Evicts what was used least recently, be it in the middle of a prefix.

    What hangs on it stays, out of reach of prefix lookups until the gap is filled again.
    """

    name: ClassVar[str] = "lru"
    counts: ClassVar[bool] = True
    inner: ClassVar[bool] = True

    def offer(self, offered: Object, objects: int) -> None:
        """Consider an object that may now be evictable."""
        Policy.offer(self, offered, objects)

    def offer_newest(self, added: list[Object], objects: int) -> None:
        """Consider new objects in order of their use, which is the latest of all."""
        Policy.offer_newest(self, added, objects)
