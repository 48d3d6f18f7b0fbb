"""What waits on an instance before one more request, in seconds of computing."""

from __future__ import annotations

from dataclasses import dataclass, field


@dataclass(slots=True)
class Queue:
    """Requests whose first token has not come, in the order in which they were sent.

    The first of them is being computed: since it was sent, or since it was seen to be the first.
    """

    work_s: dict[object, float] = field(default_factory=dict)
    began_s: dict[object, float] = field(default_factory=dict)
    _sum_s: float = 0.0
    _first: object = None
    _first_s: float = 0.0
    _looked_s: float = 0.0

    def enter(self, request: object, work_s: float, now: float) -> None:
        """Add a request that keeps the instance computing for so long."""
        self.work_s[request], self.began_s[request] = work_s, now
        self._sum_s += work_s

    def leave(self, request: object) -> None:
        """Take a request out; may be called twice."""
        if request in self.work_s:
            self._sum_s -= self.work_s.pop(request)
            del self.began_s[request]
        if not self.work_s:
            self._sum_s = 0.0

    def wait_s(self, now: float) -> float:
        """Return the seconds of computing that stand before one more request."""
        first = next(iter(self.work_s), None)
        if first is None:
            return 0.0
        if first is not self._first:
            self._first = first
            self._first_s = max(self.began_s[first], self._looked_s)
        self._looked_s = now
        done_s = min(max(0.0, now - self._first_s), self.work_s[first])
        return max(0.0, self._sum_s - done_s)
