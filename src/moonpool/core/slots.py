"""Which entries of a segment's slot table are free."""

from __future__ import annotations

from collections import deque

import numpy as np
import numpy.typing as npt

_REST_MAX = 1024


class SlotTable:
    """Hands out table indexes.

    A freed index rests behind others before it is used again: a node that drops a removed entry
    first reads it and then clears it, and must not meet the next writer in between.
    """

    def __init__(self, count: int) -> None:
        self.count = count
        self.used = 0
        self._taken = bytearray(count)
        self._fresh = 0
        self._freed: deque[int] = deque()
        self._rest = min(_REST_MAX, count // 8)

    def take(self) -> int | None:
        """Return a free index, or None if all are taken."""
        if self.used == self.count:
            return None
        if len(self._freed) > self._rest:
            index = self._take_freed()
            index = self._take_fresh() if index is None else index
        else:
            index = self._take_fresh()
            index = self._take_freed() if index is None else index
        if index is not None:
            self._taken[index] = 1
            self.used += 1
        return index

    def reserve(self, index: int) -> bool:
        """Take this very index; False if it is taken or there is none such."""
        if not 0 <= index < self.count or self._taken[index]:
            return False
        self._taken[index] = 1
        self.used += 1
        return True

    def reserve_many(self, indexes: npt.NDArray[np.int64]) -> npt.NDArray[np.bool_]:
        """Take these very indexes; tell which could be taken, shape (n,)."""
        taken = np.frombuffer(self._taken, np.uint8)
        free: npt.NDArray[np.bool_] = (indexes >= 0) & (indexes < self.count)
        free[free] = taken[indexes[free]] == 0
        wanted = indexes[free]
        taken[wanted] = 1
        # Of several that want the same one the first has it.
        if np.count_nonzero(np.diff(np.sort(wanted))) + 1 < len(wanted):
            once = np.zeros(len(indexes), bool)
            once[np.flatnonzero(free)[np.unique(wanted, return_index=True)[1]]] = True
            free &= once
        self.used += int(free.sum())
        return free

    def give(self, index: int) -> None:
        """Give an index back."""
        if not self._taken[index]:
            raise ValueError(f"table entry {index} is not taken")
        self._taken[index] = 0
        self.used -= 1
        # One beyond the fresh mark was reserved; it is still to be handed out as a fresh one.
        if index < self._fresh:
            self._freed.append(index)

    def is_taken(self, index: int) -> bool:
        """Tell whether an index is in use."""
        return bool(self._taken[index])

    def _take_freed(self) -> int | None:
        while self._freed:
            index = self._freed.popleft()
            if not self._taken[index]:
                return index
        return None

    def _take_fresh(self) -> int | None:
        index = self._taken.find(0, self._fresh)
        if index < 0:
            self._fresh = self.count
            return None
        self._fresh = index + 1
        return index

    def validate(self) -> None:
        """Raise AssertionError if the parts contradict each other."""
        assert self.used == sum(self._taken)
        free = {i for i in range(self._fresh) if not self._taken[i]}
        assert free <= set(self._freed)
