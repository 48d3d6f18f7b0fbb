"""The master as its clients meet it: one server, messages in turn, each at a measured cost."""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass, field

ROUND_TRIP_S = 60e-6
"""Of a small message between two hosts of one data centre, both programs' part included."""


@dataclass(frozen=True, slots=True)
class Prices:
    """Seconds of the master's processor: of a message of a kind, and of each object in it.

    The defaults are medians of ``measure`` on a core of a cloud machine (AMD EPYC).
    """

    message: dict[str, float] = field(
        default_factory=lambda: {
            "match": 30e-6,
            "hold": 15e-6,
            "get": 15e-6,
            "release": 10e-6,
            "put_start": 20e-6,
            "put_end": 15e-6,
        }
    )
    item: dict[str, float] = field(
        default_factory=lambda: {
            "match": 0.02e-6,
            "hold": 0.3e-6,
            "get": 0.6e-6,
            "release": 0.2e-6,
            "put_start": 9e-6,
            "put_end": 6e-6,
        }
    )
    object_bytes: float = 700.0
    """Memory of the master's for an object."""

    def of(self, kind: str, items: int) -> float:
        """Return the seconds that one message takes."""
        return self.message[kind] + self.item[kind] * items


class MasterModel:
    """Serves messages in turn. ``shards`` masters share the keys: each message goes to all of
    them that it concerns, each with its part of the objects, and is answered by the slowest.
    queues: whether messages wait for one another; without that, what is asked can be more than a
    master has time for, and is counted."""

    def __init__(self, prices: Prices, shards: int = 1, *, queues: bool = True) -> None:
        self.messages: Counter[str] = Counter()
        self.items: Counter[str] = Counter()
        self.busy_s = 0.0
        self._prices, self._shards, self._queues = prices, shards, queues
        self._free_s = 0.0

    def ask(self, now_s: float, kind: str, items: int, calls: int = 1) -> float:
        """Return when all is answered that is sent now: ``calls`` messages about ``items``."""
        shards = max(calls, min(self._shards * calls, items))
        cost = self._prices.of(kind, 0) * shards + self._prices.item[kind] * items
        self.messages[kind] += shards
        self.items[kind] += items
        self.busy_s += cost
        self._free_s = max(now_s, self._free_s * self._queues) + cost / self._shards
        return self._free_s + ROUND_TRIP_S
