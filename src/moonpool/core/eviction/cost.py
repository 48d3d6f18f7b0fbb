"""Cost-aware: what takes longest to compute again for its bytes, and is used most, stays longest.

Greedy-Dual-Size-Frequency (Cherkasova, 1998) over the leaves of prefix chains. The worth of an
object is ``clock + uses * seconds / bytes``, set anew at each use; the clock is the worth of what
was evicted last, so that what is not used falls behind however often it was used before.

Seconds are relative. Computing a block's tokens takes time in proportion to their number, and
attention adds a share that grows with their position in the prefix. Engines' objects have 256
tokens, tails fewer: the largest object of a namespace stands for 256 of its tokens, and the place
in the chain for the position.
"""

from __future__ import annotations

from collections.abc import Iterable
from heapq import heapify, heappop, heappush
from typing import ClassVar, Final

import msgspec

from moonpool.core.eviction.base import Policy
from moonpool.core.index import Object

DEPTH_EQUAL: Final = 128
"""The place in a chain (of 256 tokens each) where attention takes as long as all else: for a model
of 8 billion parameters, 32 layers and hidden size 4096, at about 30,000 tokens."""
USES_MAX: Final = 2
"""More would keep a conversation that has ended, of which every turn used all, for as many times as
long; what matters is whether an object was used again at all."""
NAMESPACES_MAX: Final = 4096
_SCALE: Final = 1 << 20
_REFERENCE_BYTES: Final = 1 << 21
"""Worth is counted in what an object of this size at the head of a chain is worth for one use."""
_COMPACT_MIN = 1024


class _Note(msgspec.Struct, eq=False, gc=False):
    """What is known of an object: its worth, place in its chain, and uses."""

    worth: int
    depth: int
    uses: int


class CostAware(Policy):
    """Evicts the leaf that is worth least."""

    name: ClassVar[str] = "cost"
    inner: ClassVar[bool] = False

    def __init__(self) -> None:
        super().__init__()
        self.clock = 0
        self._notes: dict[Object, _Note] = {}
        self._heap: list[tuple[int, int, Object]] = []
        self._parent: Object | None = None
        self._largest: dict[bytes, int] = {}

    def offer(self, offered: Object, objects: int) -> None:
        """Consider an object that may now be evictable; take note of every new one."""
        if offered not in self._notes and offered.alive:
            self._notes[offered] = _Note(0, 0, 0)
            self._largest_of(offered)
            self._price(offered)
        super().offer(offered, objects)

    def enter(self, entering: Object, objects: int) -> None:
        """Queue a leaf by its worth."""
        if len(self._heap) > _COMPACT_MIN + 2 * objects:
            self._heap = [each for each in self._heap if each[2].alive]
            heapify(self._heap)
        self._push(entering)

    def _push(self, entering: Object) -> None:
        entering.rank = 0
        heappush(self._heap, (self._notes[entering].worth, entering.serial, entering))

    def next(self) -> Object | None:
        """Take out the leaf that is worth least."""
        heap, spared = self._heap, None
        found: Object | None = None
        while heap and found is None:
            worth, _, least = heappop(heap)
            least.rank = -1
            if not self.may_go(least):
                continue
            if self._notes[least].worth != worth:
                self._push(least)
            elif least is self._parent:
                spared = least
            else:
                found = least
        if spared is not None and found is not None:
            self._push(spared)
        return found or spared

    def coming(self, key: bytes, parent: Object | None = None) -> None:
        """Spare the parent of what is put as long as something else will do."""
        self._parent = parent

    def continued(self, parent: Object) -> None:
        """Set the worth anew, without a use."""
        self._price(parent, uses=0)

    def evicted(self, evicted: Object) -> None:
        """Let time go on, by what was popped; what goes along with others is queued still."""
        if evicted.rank < 0:
            self.clock = max(self.clock, self._notes[evicted].worth)

    def used(self, used: Iterable[Object]) -> None:
        """Count uses and set the worth anew; parents before their children."""
        for each in used:
            self._price(each)

    def _price(self, each: Object, uses: int = 1) -> None:
        note = self._notes.get(each)
        if note is None:
            return
        above = self._notes.get(each.parent) if each.parent is not None else None
        note.depth = above.depth + 1 if above is not None else 0
        note.uses = min(note.uses + uses, USES_MAX)
        seconds = _SCALE * (DEPTH_EQUAL + note.depth) * _REFERENCE_BYTES
        gain = note.uses * seconds // (DEPTH_EQUAL * self._largest_of(each))
        note.worth = max(note.worth, self.clock + gain)

    def _largest_of(self, each: Object) -> int:
        """Return the size of the largest object seen in its namespace."""
        namespace = each.key[: each.key[0] + 1]
        largest = self._largest.get(namespace, 0)
        if each.size > largest:
            if len(self._largest) >= NAMESPACES_MAX and namespace not in self._largest:
                return each.size
            self._largest[namespace] = largest = each.size
        return largest

    def removed(self, removed: Object) -> None:
        """Forget an object."""
        self._notes.pop(removed, None)

    def queued(self) -> Iterable[Object]:
        """Return what is queued."""
        alive = [each for _, _, each in self._heap if each.alive]
        assert all(worth <= self._notes[each].worth for worth, _, each in self._heap if each.alive)
        return alive
