"""S3-FIFO (Yang et al., SOSP 2023): a small queue that sifts, a main queue, and ghosts."""

from __future__ import annotations

from collections import deque
from collections.abc import Iterable
from typing import ClassVar, Final

from moonpool.core.eviction.base import Policy
from moonpool.core.eviction.ghosts import Ghosts
from moonpool.core.index import Object

_SMALL_SHARE: Final = 10
"""The small queue is held to a tenth of the bytes."""
_FREQUENCY_MAX: Final = 3
_MAIN, _ONE_USE = 1, 2
"""``rank`` is the count of uses, times two, plus 1 in the main queue; -2 minus that while an
object is in neither."""
_COMPACT_MIN = 1024


class S3Fifo(Policy):
    """Evicts first what was used once or never since it came.

    New objects enter the small queue; those used twice or more by the time they leave it go on to
    the main queue, the others go and are remembered. What comes back while it is remembered enters
    the main queue at once. At the end of the main queue an object goes round again as often as it
    was used, three times at most. Sizes are bytes, the whole is what is in the pool. It does not
    look at chains: what hangs on an evicted object stays, out of reach until the gap is filled.
    """

    name: ClassVar[str] = "s3fifo"

    def __init__(self) -> None:
        super().__init__()
        self.ghosts = Ghosts()
        self._queues: tuple[deque[Object], deque[Object]] = (deque(), deque())
        self._bytes = [0, 0]

    def enter(self, entering: Object, objects: int) -> None:
        """Queue a new object behind all others, one that was taken out ahead of them."""
        rank = entering.rank
        if rank < -1:
            rank = -2 - rank
            self._queues[rank & _MAIN].appendleft(entering)
        else:
            rank = _MAIN if self.ghosts.take(entering.key) else 0
            self._bytes[rank] += entering.size
            self._compact(rank, objects)
            self._queues[rank].append(entering)
        entering.rank = rank

    def _compact(self, which: int, objects: int) -> None:
        queue = self._queues[which]
        if len(queue) > _COMPACT_MIN + 2 * objects:
            alive = [each for each in queue if each.alive]
            queue.clear()
            queue.extend(alive)

    def next(self) -> Object | None:
        """Take out what goes next."""
        small, main = self._queues
        while small or main:
            sift = self._bytes[0] * _SMALL_SHARE >= self._bytes[0] + self._bytes[1]
            oldest = (small if small and (sift or not main) else main).popleft()
            if not self.may_go(oldest):
                oldest.rank = -2 - oldest.rank
            elif not oldest.rank & _MAIN and oldest.rank > _ONE_USE:
                self._move_to_main(oldest)
            elif oldest.rank & _MAIN and oldest.rank > _MAIN:
                oldest.rank -= _ONE_USE
                main.append(oldest)
            else:
                oldest.rank = -2 - oldest.rank
                return oldest
        return None

    def _move_to_main(self, moved: Object) -> None:
        self._bytes[0] -= moved.size
        self._bytes[1] += moved.size
        moved.rank |= _MAIN
        self._queues[_MAIN].append(moved)

    def used(self, used: Iterable[Object]) -> None:
        """Count uses."""
        most = _FREQUENCY_MAX * _ONE_USE
        for each in used:
            rank = each.rank
            if 0 <= rank < most:
                each.rank = rank + _ONE_USE
            elif rank < -1 and -2 - rank < most:
                each.rank = rank - _ONE_USE

    def evicted(self, evicted: Object) -> None:
        """Remember what leaves the small queue."""
        rank = evicted.rank
        if rank != -1 and not (rank if rank >= 0 else -2 - rank) & _MAIN:
            self.ghosts.add(evicted.key, evicted.size)
            while self.ghosts.nbytes * _SMALL_SHARE > sum(self._bytes) * (_SMALL_SHARE - 1):
                self.ghosts.drop_oldest()

    def removed(self, removed: Object) -> None:
        """Forget an object."""
        rank = removed.rank
        if rank != -1:
            self._bytes[(rank if rank >= 0 else -2 - rank) & _MAIN] -= removed.size

    def queued(self) -> Iterable[Object]:
        """Return what is queued."""
        self.ghosts.validate()
        found = [each for queue in self._queues for each in queue if each.alive]
        assert all(each in self._queues[each.rank & _MAIN] for each in found[:64])
        return found
