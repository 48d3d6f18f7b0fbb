"""Whether the instances that peers wait for still listen.

A connector that pushes may have to wait for minutes for an instance that died. The kernel of its
host answers at once: a port that takes no connection three times in a row has nobody behind it. An
instance that is merely slow, or stopped, still takes connections.
"""

from __future__ import annotations

import contextlib
import socket
import threading
from collections.abc import Callable, Collection

EVERY_S = 1.0
MISSES = 3
CONNECT_S = 2.0
ADDRESSES_MAX = 64

Address = tuple[str, int]


def connects(address: Address) -> bool:
    """Return whether somebody listens there."""
    try:
        with contextlib.closing(socket.create_connection(address, CONNECT_S)):
            return True
    except (OSError, UnicodeError):
        return False


class Pulse:
    """Probes the addresses that are watched, one after the other, in a thread of its own that
    exists once there are any. ``watch`` and ``gone`` never block."""

    def __init__(
        self, connects: Callable[[Address], bool] = connects, every_s: float = EVERY_S
    ) -> None:
        """connects: makes one attempt; every_s: rest between two rounds."""
        self._connects, self._every_s = connects, every_s
        self._bell = threading.Condition()
        self._watched: frozenset[Address] = frozenset()
        self._misses: dict[Address, int] = {}
        self._thread: threading.Thread | None = None
        self._stopped = False

    def watch(self, addresses: Collection[Address]) -> None:
        """From now on watch these only; at most 64 of them."""
        wanted = frozenset(sorted(addresses)[:ADDRESSES_MAX])
        if wanted == self._watched:
            return
        with self._bell:
            self._watched = wanted
            self._misses = {at: n for at, n in self._misses.items() if at in wanted}
            self._bell.notify_all()
            if wanted and self._thread is None and not self._stopped:
                self._thread = threading.Thread(
                    target=self._run, name="moonpool-pulse", daemon=True
                )
                self._thread.start()

    def gone(self) -> set[Address]:
        """Return the watched addresses where nobody listens."""
        return {at for at, misses in list(self._misses.items()) if misses >= MISSES}

    def close(self) -> None:
        """Stop; does not wait for an attempt. Idempotent."""
        with self._bell:
            self._stopped, self._watched = True, frozenset()
            self._bell.notify_all()

    def turn(self) -> None:
        """Try all watched addresses once."""
        for address in sorted(self._watched):
            missed = not self._connects(address)
            with self._bell:
                if address in self._watched:
                    self._misses[address] = self._misses.get(address, 0) + 1 if missed else 0

    def _run(self) -> None:
        while not self._stopped:
            with self._bell:
                while not self._watched and not self._stopped:
                    self._bell.wait()
            self.turn()
            with self._bell:
                if not self._stopped:
                    self._bell.wait_for(lambda: self._stopped, self._every_s)
