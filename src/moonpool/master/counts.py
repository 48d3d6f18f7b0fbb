"""Counters beside the request path: two list operations for a request."""

from __future__ import annotations

from collections.abc import Iterable

BUCKETS = 34
"""Bucket b holds durations below 2**b nanoseconds; the last one everything longer."""


class Counts:
    """How many requests of each kind, how long they took, and what went wrong."""

    def __init__(self, kinds: Iterable[str]) -> None:
        self.requests: dict[str, int] = dict.fromkeys(kinds, 0)
        self.durations: dict[str, list[int]] = {kind: [0] * BUCKETS for kind in self.requests}
        self.spent_ns: dict[str, int] = dict.fromkeys(self.requests, 0)
        self.refused = 0
        self.bugs = 0

    def done(self, kind: str, nanoseconds: int) -> None:
        """Count a request of this kind."""
        self.requests[kind] += 1
        self.spent_ns[kind] += nanoseconds
        self.durations[kind][min(nanoseconds.bit_length(), BUCKETS - 1)] += 1
