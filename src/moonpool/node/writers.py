"""Which clients can still write into this node's segments, and which of them may not any more."""

from __future__ import annotations

import threading
from collections import OrderedDict
from collections.abc import Callable, Iterator
from contextlib import contextmanager

import numpy as np

from moonpool.transport.base import U64
from moonpool.transport.wire import Wire

FENCES_MAX = 65_536
ALL_GENERATIONS = 2**64 - 1


class Writers:
    """The clients' connections. ``on_gone(client, generation)`` is called, in any thread, when a
    fenced client cannot write any more: no connection has it attached (its mappings are gone) and
    none of its writes is under way.
    """

    def __init__(self, on_gone: Callable[[str, int], None] | None = None) -> None:
        self.on_gone = on_gone
        self._lock = threading.Lock()
        self._attached: dict[str, set[Wire]] = {}
        self._writing: dict[str, set[Wire]] = {}
        self._floors: OrderedDict[str, int] = OrderedDict()
        self._waiting: dict[str, int] = {}

    def fence(self, client: str, generation: int = 0) -> None:
        """Refuse the client's writes up to ``generation`` (0: all); report when it is gone."""
        floor = generation or ALL_GENERATIONS
        with self._lock:
            self._floors[client] = max(floor, self._floors.pop(client, 0))
            while len(self._floors) > FENCES_MAX:
                self._floors.popitem(last=False)
            self._waiting[client] = max(generation, self._waiting.get(client, 0))
            for wire in self._writing.get(client, ()):
                wire.interrupt()
        self._report(client)

    def refused(self, client: str, generations: U64) -> np.ndarray[tuple[int], np.dtype[np.bool_]]:
        """Tell which generations the client may not write any more, shape (n,)."""
        with self._lock:
            floor = self._floors.get(client, 0)
        return np.asarray((generations <= np.uint64(floor)) & (floor > 0))

    @contextmanager
    def attached(self, client: str, wire: Wire) -> Iterator[None]:
        """Count a connection as an attachment for the length of the block."""
        with self._counted(self._attached, client, wire):
            yield

    @contextmanager
    def writing(self, client: str, wire: Wire) -> Iterator[None]:
        """Count a write as under way. Ask ``refused`` inside, so that no fence is missed."""
        with self._counted(self._writing, client, wire):
            yield

    def clients(self) -> list[str]:
        """Return the names of the attached clients."""
        with self._lock:
            return sorted(self._attached)

    def snapshot(self) -> frozenset[object]:
        """Return the connections that may write now, to ask ``any_left`` later."""
        with self._lock:
            return frozenset(self._present())

    def any_left(self, before: frozenset[object]) -> bool:
        """Tell whether any of a snapshot's connections may still write."""
        with self._lock:
            return any(wire in before for wire in self._present())

    def _present(self) -> Iterator[Wire]:
        for where in (self._attached, self._writing):
            for wires in where.values():
                yield from wires

    @contextmanager
    def _counted(self, where: dict[str, set[Wire]], client: str, wire: Wire) -> Iterator[None]:
        with self._lock:
            where.setdefault(client, set()).add(wire)
        try:
            yield
        finally:
            with self._lock:
                where[client].discard(wire)
                if not where[client]:
                    del where[client]
            self._report(client)

    def _report(self, client: str) -> None:
        with self._lock:
            present = client in self._attached or client in self._writing
            if present or client not in self._waiting:
                return
            generation = self._waiting.pop(client)
        if self.on_gone is not None:
            self.on_gone(client, generation)
