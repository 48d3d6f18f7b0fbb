"""Ways for bytes that are shared fairly by the transfers on them."""

from __future__ import annotations

import heapq
from collections.abc import Callable

from moonpool.sim.events import Clock, Event

Done = Callable[[], None]


class FairLink:
    """A link on which all transfers advance at the same rate (processor sharing).

    Kept as one counter: how many bytes each transfer has had since the link began. A transfer ends
    when the counter has grown by its size, so that one costs a place in a heap, however many others
    come and go meanwhile.
    """

    __slots__ = ("_clock", "_ends", "_event", "_made", "_rate", "_served", "_then_s", "total_bytes")

    def __init__(self, clock: Clock, gb_s: float) -> None:
        self.total_bytes = 0
        self._clock = clock
        self._rate = gb_s * 1e9
        self._ends: list[tuple[float, int, Done]] = []
        self._served = self._then_s = 0.0
        self._event: Event | None = None
        self._made = 0

    def send(self, nbytes: float, done: Done) -> None:
        """Begin a transfer; ``done`` is called when all of it has passed."""
        self._advance()
        self.total_bytes += int(nbytes)
        self._made += 1
        heapq.heappush(self._ends, (self._served + nbytes, self._made, done))
        self._plan()

    def _advance(self) -> None:
        now = self._clock.now_s
        if self._ends:
            self._served += (now - self._then_s) * self._rate / len(self._ends)
        self._then_s = now

    def _plan(self) -> None:
        if self._event is not None:
            self._event.cancel()
            self._event = None
        if self._ends:
            left = max(0.0, self._ends[0][0] - self._served)
            self._event = self._clock.after(left * len(self._ends) / self._rate, self._end)

    def _end(self) -> None:
        self._event = None
        self._advance()
        # The first has ended, whatever rounding says.
        self._served = max(self._served, self._ends[0][0])
        ended = []
        while self._ends and self._ends[0][0] <= self._served:
            ended.append(heapq.heappop(self._ends)[2])
        self._plan()
        for done in ended:
            done()


class Backlog:
    """A link for transfers so small that none is followed: they end one after the other."""

    __slots__ = ("_free_s", "_rate", "total_bytes")

    def __init__(self, gb_s: float) -> None:
        self.total_bytes = 0
        self._rate = gb_s * 1e9
        self._free_s = 0.0

    def send(self, now_s: float, nbytes: float) -> float:
        """Return when a transfer ends that begins now."""
        self.total_bytes += int(nbytes)
        self._free_s = max(now_s, self._free_s) + nbytes / self._rate
        return self._free_s


def all_of(count: int, then: Done) -> Done:
    """Return what calls ``then`` when it has been called ``count`` times."""
    left = [count]

    def one() -> None:
        left[0] -= 1
        if not left[0]:
            then()

    return one
