"""A virtual clock: what is to happen, in the order of its time."""

from __future__ import annotations

import heapq
from collections.abc import Callable


class Event:
    """Something that will happen unless it is cancelled."""

    __slots__ = ("action", "time_s")

    def __init__(self, time_s: float, action: Callable[[], None]) -> None:
        self.time_s = time_s
        self.action: Callable[[], None] | None = action

    def cancel(self) -> None:
        """Let it not happen."""
        self.action = None


class Clock:
    """Runs events in the order of time, those of one time in the order in which they were made."""

    def __init__(self) -> None:
        self.now_s = 0.0
        self._heap: list[tuple[float, int, Event]] = []
        self._made = 0

    @property
    def waiting(self) -> bool:
        """Whether anything is still to happen."""
        return bool(self._heap)

    def now(self) -> float:
        """Return the virtual time in seconds."""
        return self.now_s

    def at(self, time_s: float, action: Callable[[], None]) -> Event:
        """Let ``action`` happen at a time, at once if that has passed."""
        event = Event(max(time_s, self.now_s), action)
        self._made += 1
        heapq.heappush(self._heap, (event.time_s, self._made, event))
        return event

    def after(self, delay_s: float, action: Callable[[], None]) -> Event:
        """Let ``action`` happen after a delay."""
        event = Event(self.now_s + delay_s if delay_s > 0 else self.now_s, action)
        self._made += 1
        heapq.heappush(self._heap, (event.time_s, self._made, event))
        return event

    def run(self, until_s: float) -> None:
        """Let everything happen that is due by ``until_s``."""
        heap = self._heap
        while heap and heap[0][0] <= until_s:
            self.now_s, _, event = heapq.heappop(heap)
            if event.action is not None:
                event.action()
        self.now_s = max(self.now_s, until_s)
