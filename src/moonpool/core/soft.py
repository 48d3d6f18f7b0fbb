"""Soft pins: objects that eviction takes only when nothing else is left, for a time."""

from __future__ import annotations

from collections.abc import Iterable
from heapq import heapify, heappop, heappush, nsmallest
from operator import attrgetter

from moonpool.core.index import Object

_COMPACT_MIN = 1024
_RELEASE_MIN = 16
_RELEASE_SHARE = 16


class SoftPins:
    """The soft-pinned objects. They count as ``pinned`` until their time is over.

    The master's index may hold many millions of objects of which few are soft-pinned: what is
    needed for that is kept here, not in the objects.
    """

    def __init__(self) -> None:
        self._until: dict[Object, float] = {}
        self._heap: list[tuple[float, int, Object]] = []

    def __len__(self) -> int:
        return len(self._until)

    def add(self, pinned: Object, until: float) -> None:
        """Soft-pin an object of the index."""
        if len(self._heap) > _COMPACT_MIN + 2 * len(self._until):
            alive = self._until.items()
            self._heap = [(until, each.serial, each) for each, until in alive]
            heapify(self._heap)
        pinned.pinned = True
        self._until[pinned] = until
        heappush(self._heap, (until, pinned.serial, pinned))

    def forget(self, removed: Object) -> None:
        """Forget an object that leaves the index."""
        self._until.pop(removed, None)

    def rest_s(self, pinned: Object, now: float) -> float:
        """Return how long an object is soft-pinned still, 0 if it is not."""
        return max(0.0, self._until.get(pinned, now) - now)

    def expire(self, now: float) -> list[Object]:
        """Return the objects whose time is over; they are ordinary ones now."""
        freed: list[Object] = []
        while self._heap and self._heap[0][0] <= now:
            until, _, each = heappop(self._heap)
            if self._until.get(each) == until:
                freed.append(self._release(each))
        return freed

    def give_up(self) -> list[Object]:
        """Return the least recently used ones, which are ordinary objects now: a share of all, so
        that looking for them costs each eviction little. Leased ones stay pinned."""
        loose = [each for each in self._until if not each.leases]
        count = max(_RELEASE_MIN, len(loose) // _RELEASE_SHARE)
        return [self._release(each) for each in nsmallest(count, loose, key=attrgetter("used"))]

    def _release(self, each: Object) -> Object:
        del self._until[each]
        each.pinned = False
        return each

    def validate(self, objects: Iterable[Object]) -> None:
        """Raise AssertionError if one is not in the index, or not pinned."""
        known = set(objects)
        assert all(each in known and each.pinned for each in self._until)
        queued = {(until, each.serial) for until, _, each in self._heap}
        assert all((until, each.serial) in queued for each, until in self._until.items())
