"""Who may begin, who waits, and who is sent away."""

from __future__ import annotations

import bisect
import math
from collections.abc import Callable
from dataclasses import dataclass

from moonpool.router.ratelimit import RateLimiter

RETRY_AFTER_MAX_S = 60
PRIORITY_MAX = 100
FORGET = 0.05


@dataclass(frozen=True, slots=True)
class Limits:
    """Bounds on what is in flight and on what waits.

    in_flight: requests at a time in all; per_instance: and for each instance that is up, 0 for
    any number. rate_per_minute: for each of ``rate_keys``, and for each address from which others
    come; 0 for any number.
    """

    in_flight: int = 4096
    per_instance: int = 0
    queue: int = 1024
    queue_s: float = 30.0
    rate_per_minute: int = 0
    rate_burst: int = 10
    rate_keys: frozenset[str] = frozenset()

    def counted_as(self, authorization: str, address: str) -> str:
        """Return what a request is counted by: the API key that it names if that is known (others
        a client could invent, one for each request), else where it comes from."""
        key = authorization.removeprefix("Bearer ").strip()
        return f"key {key}" if key in self.rate_keys else f"address {address}"


class Refused(Exception):
    """A request that is answered with 429. retry_after_s: whole seconds, at least 1."""

    def __init__(self, reason: str, message: str, retry_after_s: float) -> None:
        super().__init__(message)
        self.reason = reason
        self.retry_after_s = min(RETRY_AFTER_MAX_S, max(1, math.ceil(retry_after_s)))


@dataclass(slots=True, eq=False)
class Entry:
    """A request's place. ``decided`` is called once, when a waiting request is let in (True) or
    sent away for a more urgent one (False)."""

    priority: int
    order: int
    decided: Callable[[bool], None] | None = None
    admitted: bool = False
    over: bool = False


class Admission:
    """Lets requests in by priority (lower first, as in vLLM), then by arrival.

    ``instances`` is how many are up; the front tells when it changes.
    """

    def __init__(self, limits: Limits, instances: int = 0) -> None:
        self.limits = limits
        self.in_flight = 0
        self._instances = instances
        self._rates = RateLimiter(limits.rate_per_minute, limits.rate_burst)
        self._queue: list[tuple[int, int, Entry]] = []
        self._order = 0
        self._service_s = 1.0

    @property
    def waiting(self) -> int:
        """How many wait."""
        return len(self._queue)

    def capacity(self) -> int:
        """Return how many requests may be in flight."""
        limits = self.limits
        if not limits.per_instance:
            return limits.in_flight
        return min(limits.in_flight, limits.per_instance * max(1, self._instances))

    def arrive(self, key: str, priority: int, now: float) -> Entry:
        """Return the request's entry, admitted or waiting; raise Refused."""
        wait_s = self._rates.take(key, now)
        if wait_s:
            raise Refused("rate", "too many requests for this key", wait_s)
        self._order += 1
        entry = Entry(priority, self._order)
        if self.in_flight < self.capacity() and not self._queue:
            entry.admitted = True
            self.in_flight += 1
            return entry
        if len(self._queue) >= self.limits.queue:
            self._make_room(priority)
        bisect.insort(self._queue, (priority, self._order, entry))
        return entry

    def leave(self, entry: Entry, served_s: float | None = None) -> None:
        """End an entry, admitted or waiting; may be called twice. served_s: how long it took."""
        if entry.over:
            return
        entry.over = True
        if entry.admitted:
            self.in_flight -= 1
            if served_s is not None:
                self._service_s += FORGET * (served_s - self._service_s)
            self._let_in()
        else:
            self._queue = [each for each in self._queue if each[2] is not entry]

    def resize(self, instances: int) -> None:
        """Note how many instances are up."""
        self._instances = instances
        self._let_in()

    def replace(self, limits: Limits) -> None:
        """Take other limits; whoever is in flight or waits keeps his place."""
        if (limits.rate_per_minute, limits.rate_burst) != (
            self.limits.rate_per_minute,
            self.limits.rate_burst,
        ):
            self._rates = RateLimiter(limits.rate_per_minute, limits.rate_burst)
        self.limits = limits
        self._let_in()

    def retry_after_s(self) -> float:
        """Return after how many seconds the queue should have room."""
        return (len(self._queue) + 1) * self._service_s / max(1, self.capacity())

    def _make_room(self, priority: int) -> None:
        if not self._queue or self._queue[-1][0] <= priority:
            raise Refused("queue", "too many requests wait already", self.retry_after_s())
        _, _, last = self._queue.pop()
        last.over = True
        if last.decided is not None:
            last.decided(False)

    def _let_in(self) -> None:
        while self._queue and self.in_flight < self.capacity():
            _, _, entry = self._queue.pop(0)
            entry.admitted = True
            self.in_flight += 1
            if entry.decided is not None:
                entry.decided(True)
