"""Noticing that a leader is gone where nothing breaks: it is frozen, or the network is cut."""

from __future__ import annotations

import threading
from collections.abc import Callable

from moonpool.client.connection import Connection
from moonpool.core.messages import Exists
from moonpool.errors import MoonpoolError

PING_S = 0.5
SILENCE_S = 1.5
"""A leader that says nothing for so long is taken for lost."""


class Watch:
    """Asks the leader for a sign of life, on a connection of its own.

    connect: makes the connection, or raises MoonpoolError. on_lost: called with why when there is
    none or no answer, again and again while it is so.
    """

    def __init__(
        self, connect: Callable[[float], Connection], on_lost: Callable[[MoonpoolError], None]
    ) -> None:
        self._connect = connect
        self._on_lost = on_lost
        self._stop = threading.Event()
        self._lock = threading.Lock()
        self._started = False

    def start(self) -> None:
        """Begin, unless it has begun already."""
        with self._lock:
            if self._started:
                return
            self._started = True
        threading.Thread(target=self._run, name="moonpool-watch", daemon=True).start()

    def stop(self) -> None:
        """End soon; does not wait."""
        self._stop.set()

    def _run(self) -> None:
        connection: Connection | None = None
        while not self._stop.wait(PING_S):
            try:
                if connection is None:
                    connection = self._connect(SILENCE_S)
                connection.call(Exists([]), SILENCE_S)
            except MoonpoolError as error:
                connection = None
                self._on_lost(error)
        if connection is not None:
            connection.close()
