"""Leases on planned loads: from the plan to the load's end nothing of it may be evicted."""

from __future__ import annotations

import threading
from collections.abc import Callable, Sequence
from typing import Any

from moonpool.core.keys import Key
from moonpool.errors import MoonpoolError
from moonpool.vllm.courier import Courier
from moonpool.vllm.link import Link


class Leases:
    """Taken and given back by the courier; a load does not wait for its lease."""

    def __init__(self, courier: Courier, link: Link, ttl_s: float) -> None:
        """ttl_s: how long a lease lives if nobody gives it back."""
        self._courier, self._link, self._ttl_s = courier, link, ttl_s
        self._lock = threading.Lock()
        self._held: dict[int, Any] = {}

    def take(self, generation: int, keys: Sequence[Key]) -> None:
        """Take a lease on a load's keys."""
        with self._lock:
            self._held[generation] = None
        if not self._courier.submit(lambda: self._hold(generation, list(keys))):
            self._forget(generation)

    def give_back(self, generation: int) -> None:
        """End a load's lease, also one that is still being taken."""
        lease = self._forget(generation)
        if lease is not None:
            self._courier.submit(lambda: self._release(lease))

    def close(self) -> None:
        """Give all leases back, as far as the courier still takes errands."""
        with self._lock:
            generations = list(self._held)
        for generation in generations:
            self.give_back(generation)

    def _forget(self, generation: int) -> Any:
        with self._lock:
            return self._held.pop(generation, None)

    def _hold(self, generation: int, keys: list[Key]) -> None:
        lease = self._try(lambda pool: pool.hold(keys, self._ttl_s))
        with self._lock:
            wanted = generation in self._held
            if wanted:
                self._held[generation] = lease
        if not wanted and lease is not None:
            self._release(lease)

    def _release(self, lease: Any) -> None:
        self._try(lambda pool: pool.release(lease))

    def _try(self, call: Callable[[Any], Any]) -> Any:
        pool = self._link.get()
        if pool is None:
            return None
        try:
            return call(pool)
        except (MoonpoolError, OSError) as error:
            self._link.failed(error)
            return None
