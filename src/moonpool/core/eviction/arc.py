"""ARC (Megiddo and Modha, FAST 2003): recency and frequency, in the shares that pay off."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Iterable
from heapq import heapify, heappop, heappush
from typing import ClassVar, Final

from moonpool.core.eviction.base import Policy
from moonpool.core.eviction.ghosts import Ghosts
from moonpool.core.index import Object

_ONCE = 0
_ASIDE_ONCE, _ASIDE_OFTEN = -2, -3
"""``rank`` is 0 in the list of what was used once, the stamp of the last use in the other; below
-1 while an object is in neither queue, but counts as one of the list that it was in."""
_RETURNING_MAX: Final = 65_536
_COMPACT_MIN = 1024


class Arc(Policy):
    """Keeps what was used once (T1) and more often (T2) apart, each least recently used first.

    What leaves either is remembered (B1, B2). A key that comes back from B1 makes T1's share
    ``target`` larger, one from B2 smaller. Sizes are bytes. It does not look at chains: what hangs
    on an evicted object stays, out of reach until the gap is filled.
    """

    name: ClassVar[str] = "arc"

    def __init__(self, capacity: Callable[[], int]) -> None:
        """capacity: tells the pool's bytes."""
        super().__init__()
        self.target = 0.0
        self.ghosts = (Ghosts(), Ghosts())
        self._capacity = capacity
        self._once: deque[Object] = deque()
        self._often: list[Object] = []
        self._bytes = [0, 0]
        self._coming_from_often = False
        self._returning: dict[bytes, None] = {}

    def coming(self, key: bytes, parent: Object | None = None) -> None:
        """Learn from a key that is to be put."""
        if key and self._learn(key):
            if len(self._returning) >= _RETURNING_MAX:
                del self._returning[next(iter(self._returning))]
            self._returning[key] = None
        elif not key:
            self._coming_from_often = False

    def _learn(self, key: bytes) -> bool:
        """Adapt if the key is remembered, which it is not any more then; tell whether it was."""
        once, often = self.ghosts
        if key not in once and key not in often:
            return False
        ratio = often.nbytes / once.nbytes if once.nbytes else 0.0
        if key in once:
            nbytes = once.sizes[key]
            self.target = min(self._capacity(), self.target + max(ratio, 1.0) * nbytes)
            return once.take(key)
        nbytes = often.sizes[key]
        share = once.nbytes / often.nbytes
        self.target = max(0.0, self.target - max(share, 1.0) * nbytes)
        self._coming_from_often = True
        return often.take(key)

    def enter(self, entering: Object, objects: int) -> None:
        """Queue a new object as used once, or more often if it is remembered; another as it was."""
        self._compact(objects)
        if entering.rank == _ASIDE_ONCE:
            entering.rank = _ONCE
            self._once.appendleft(entering)
        elif entering.rank == _ASIDE_OFTEN:
            self._push_often(entering)
        else:
            key = entering.key
            known = self._returns(key)
            self._coming_from_often = False
            self._bytes[known] += entering.size
            if known:
                self._push_often(entering)
            else:
                entering.rank = _ONCE
                self._once.append(entering)
            self._bound_ghosts()

    def _returns(self, key: bytes) -> bool:
        if key in self._returning:
            del self._returning[key]
            return True
        return self._learn(key)

    def _compact(self, objects: int) -> None:
        most = _COMPACT_MIN + 2 * objects
        if len(self._once) > most:
            self._once = deque(each for each in self._once if each.alive and each.rank == _ONCE)
        if len(self._often) > most:
            self._often = [each for each in self._often if each.alive]
            heapify(self._often)

    def _push_often(self, entering: Object) -> None:
        entering.rank = entering.used
        heappush(self._often, entering)

    def _bound_ghosts(self) -> None:
        once, often = self.ghosts
        capacity = self._capacity()
        while once.nbytes and self._bytes[0] + once.nbytes > capacity:
            once.drop_oldest()
        while often.nbytes and sum(self._bytes) + once.nbytes + often.nbytes > 2 * capacity:
            often.drop_oldest()

    def next(self) -> Object | None:
        """Take out the one used least recently of the list that has more than its share."""
        held = self._bytes[0]
        enough = held >= self.target if self._coming_from_often else held > self.target
        if held and enough:
            return self._pop_once() or self._pop_often()
        return self._pop_often() or self._pop_once()

    def _pop_once(self) -> Object | None:
        while self._once:
            oldest = self._once.popleft()
            if not oldest.alive or oldest.rank != _ONCE:
                continue
            oldest.rank = _ASIDE_ONCE
            if self.may_go(oldest):
                return oldest
        return None

    def _pop_often(self) -> Object | None:
        heap = self._often
        while heap:
            oldest = heappop(heap)
            if self.may_go(oldest) and oldest.used != oldest.rank:
                oldest.rank = oldest.used
                heappush(heap, oldest)
                continue
            oldest.rank = _ASIDE_OFTEN
            if self.may_go(oldest):
                return oldest
        return None

    def used(self, used: Iterable[Object]) -> None:
        """Count what was used again as used often."""
        for each in used:
            if each.rank == _ONCE:
                self._count_often(each)
                self._push_often(each)
            elif each.rank == _ASIDE_ONCE:
                self._count_often(each)
                each.rank = _ASIDE_OFTEN

    def _count_often(self, each: Object) -> None:
        self._bytes[0] -= each.size
        self._bytes[1] += each.size

    def evicted(self, evicted: Object) -> None:
        """Remember a key."""
        if evicted.rank != -1:
            self.ghosts[self._is_often(evicted)].add(evicted.key, evicted.size)

    def removed(self, removed: Object) -> None:
        """Forget an object."""
        if removed.rank != -1:
            self._bytes[self._is_often(removed)] -= removed.size

    @staticmethod
    def _is_often(each: Object) -> bool:
        return each.rank > _ONCE or each.rank == _ASIDE_OFTEN

    def queued(self) -> Iterable[Object]:
        """Return what is queued."""
        for ghosts in self.ghosts:
            ghosts.validate()
        once = [each for each in self._once if each.alive and each.rank == _ONCE]
        often = [each for each in self._often if each.alive]
        assert all(0 < each.rank <= each.used for each in often)
        return once + often
