"""How long an instance's cache keeps what it has: the age of what it would forget next."""

from __future__ import annotations

import math
from collections.abc import Sequence


class Room:
    """The prompts that an instance was sent, as ends of chains with the time of their last use.

    Much cheaper than to ask block by block, and near enough to compare instances with.
    """

    def __init__(self) -> None:
        self._ends: dict[int, tuple[float, int]] = {}
        self._blocks = 0

    def sent(self, keys: Sequence[int], known: int, now_s: float, capacity: int) -> float | None:
        """Note a prompt of which the first ``known`` blocks were there; return how long ago the
        prompt was used that it continues, or None."""
        if not keys:
            return None
        blocks = len(keys) - known
        age_s = None
        if known and (before := self._ends.pop(keys[known - 1], None)) is not None:
            blocks += before[1]
            age_s = now_s - before[0]
            self._blocks -= before[1]
        if (same := self._ends.pop(keys[-1], None)) is not None:
            self._blocks -= same[1]
            age_s = now_s - same[0]
            blocks = max(blocks, same[1])
        self._ends[keys[-1]] = (now_s, blocks)
        self._blocks += blocks
        if capacity:
            self._forget(self._blocks - capacity)
        return age_s

    def _forget(self, excess: int) -> None:
        """Take so many blocks from the prompts that were used the longest ago."""
        while excess > 0 and len(self._ends) > 1:
            oldest = next(iter(self._ends))
            used_s, held = self._ends[oldest]
            gone = min(excess, held)
            if gone == held:
                del self._ends[oldest]
            else:
                self._ends[oldest] = (used_s, held - gone)
            excess -= gone
            self._blocks -= gone

    def age_s(self, now_s: float, capacity: int, blocks: int = 0) -> float:
        """Return how long ago that was used last which would make way for so many blocks more;
        infinite while there is room."""
        excess = self._blocks + blocks - capacity
        if not capacity or excess <= 0:
            return math.inf
        for used_s, held in self._ends.values():
            excess -= held
            if excess <= 0:
                return now_s - used_s
        return 0.0
