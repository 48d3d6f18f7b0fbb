"""How often objects are read: a few counts, of every seventh read, that fade."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from typing import Final

from moonpool.core.index import Object

SAMPLE: Final = 7
"""Of so many reads one is counted, as so many."""
FADE_S: Final = 5.0
"""After so long all counts are halved: a steady rate shows as twice what is read in that time."""
COUNTED_MAX: Final = 65_536


class Heat:
    """Counts of reads; ``on`` only where copies could be made."""

    def __init__(self) -> None:
        self.on = False
        self.faded_at = 0.0
        self._counts: dict[Object, int] = {}
        self._turn = 0

    def read(self, objects: Iterable[Object]) -> None:
        """Take note of a read of objects."""
        self._turn += 1
        if self._turn % SAMPLE:
            return
        counts = self._counts
        for each in objects:
            if each in counts:
                counts[each] += SAMPLE
            elif len(counts) < COUNTED_MAX:
                counts[each] = SAMPLE

    def rate(self, each: Object) -> float:
        """Return about how often an object was read lately, in reads a second."""
        return self._counts.get(each, 0) / (2 * FADE_S)

    def fade(self) -> None:
        """Halve the counts."""
        kept = {each: count // 2 for each, count in self._counts.items() if each.alive}
        self._counts = {each: count for each, count in kept.items() if count}

    def above(self, rate: float) -> Iterator[Object]:
        """Yield objects that are read more often than that, those read most first."""
        least = rate * 2 * FADE_S
        hot = [(count, each) for each, count in self._counts.items() if count > least]
        hot.sort(key=lambda pair: -pair[0])
        return (each for _, each in hot if each.alive)

    def clear(self) -> None:
        """Forget all."""
        self._counts.clear()
