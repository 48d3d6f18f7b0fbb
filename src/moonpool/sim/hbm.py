"""An engine's own KV cache: blocks that requests hold, and those kept until space is needed."""

from __future__ import annotations

from collections.abc import Callable, Sequence


class HbmCache:
    """As vLLM's block pool: what running requests hold stays, of the rest the least recently used
    goes first, of one prefix the last block first.

    evicted: told the keys of blocks that go.
    """

    def __init__(self, blocks: int, evicted: Callable[[list[int]], None]) -> None:
        self.blocks = blocks
        self._evicted = evicted
        self._held: dict[int, int] = {}
        self._idle: dict[int, None] = {}
        self._nameless = 0

    def match(self, keys: Sequence[int]) -> int:
        """Return how many leading blocks are there."""
        held, idle = self._held, self._idle
        for place, key in enumerate(keys):
            if key not in held and key not in idle:
                return place
        return len(keys)

    def take(self, keys: Sequence[int], more: int) -> bool:
        """Hold blocks that are there and ``more`` without a name; False if they do not fit."""
        held, idle = self._held, self._idle
        sleeping = [key for key in keys if key in idle]
        if len(held) + len(sleeping) + self._nameless + more > self.blocks:
            return False
        for key in sleeping:
            del idle[key]
            held[key] = 0
        for key in keys:
            held[key] += 1
        self._nameless += more
        self._make_room()
        return True

    def name(self, keys: Sequence[int]) -> list[int]:
        """Name blocks that are held without one; return the keys that were not there before."""
        held, idle = self._held, self._idle
        new = [key for key in keys if key not in held and key not in idle]
        for key in new:
            held[key] = 1
        self._nameless -= len(new)
        return new

    def give(self, keys: Sequence[int], nameless: int) -> None:
        """Hold blocks no longer; named ones are kept while there is room."""
        held, idle = self._held, self._idle
        for key in reversed(keys):
            left = held[key] - 1
            if left:
                held[key] = left
            else:
                del held[key]
                idle[key] = None
        self._nameless -= nameless

    def _make_room(self) -> None:
        idle = self._idle
        excess = len(self._held) + len(idle) + self._nameless - self.blocks
        if excess > 0:
            oldest = iter(idle)
            gone = [next(oldest) for _ in range(excess)]
            for key in gone:
                del idle[key]
            self._evicted(gone)
