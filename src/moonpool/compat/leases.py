"""Leases as Mooncake grants them: everything that was looked at stays for a while.

Moonpool's leases are ended by whoever took them, all objects at once. So there is a number for
each slice of time; what is looked at in it comes under that number, and nobody ends it.
"""

from __future__ import annotations

import threading
import time

from moonpool.client.store import Store

SLICES = 8


class Leases:
    """Gives the number under which to lease now; ``ttl_s`` is for how long."""

    def __init__(self, store: Store, ttl_s: float, *, lookups: bool = True) -> None:
        """lookups: whether asking if something exists leases too, as Mooncake's clients expect."""
        self.ttl_s = ttl_s
        self.lookups = lookups
        self._store = store
        self._lock = threading.Lock()
        self._number = 0
        self._until = 0.0

    def number(self) -> int:
        """Return the present slice's number."""
        now = time.monotonic()
        if now < self._until:
            return self._number
        with self._lock:
            if now >= self._until:
                self._number = self._store.looking.new_lease()
                self._until = now + self.ttl_s / SLICES
            return self._number
