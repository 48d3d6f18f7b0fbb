"""The node's end of one-sided transfers: peers read its segments; it fetches what they write.

Nobody ever writes into memory of somebody else. A client that stores lets the node fetch from its
memory, so only the node's own carrier puts bytes into the pool's pages, and when a transfer
cannot be ended otherwise the carrier is, before the pages may go to another writer.
"""

from __future__ import annotations

import contextlib
import logging
import secrets
import socket
import threading
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from typing import Protocol

import numpy as np

from moonpool.config import NodeConfig
from moonpool.errors import MoonpoolError, TransferError
from moonpool.protocol import data
from moonpool.transport.onesided_carrier import Carrier
from moonpool.transport.onesided_engine import EngineError, Region, Setup
from moonpool.transport.onesided_options import options_for
from moonpool.transport.segment import Segment
from moonpool.transport.wire import Wire

_log = logging.getLogger(__name__)

CONNECT_S = 10.0
RESTART_S = 2.0
SCRATCH_BYTES = 4096
_GONE_WORD = 8

Start = Callable[[str, list[Region], Callable[[], None]], Carrier]
"""Starts a carrier of a kind for regions; the last argument is told of its end."""


class Shelf(Protocol):
    """The segments, and the users file of each."""

    def segments(self) -> list[Segment]:
        """Return all segments."""
        ...

    def users_of(self, name: str) -> str:
        """Return the path of a segment's users file, empty where there is none."""
        ...


@dataclass(eq=False)
class Life:
    """One carrier, from its start to its end, and who uses it."""

    carrier: Carrier
    regions: dict[str, int]
    wires: set[Wire] = field(default_factory=set)


@dataclass(frozen=True)
class Session:
    """A client whose memory the carrier reaches."""

    life: Life
    peer: str
    memory: list[data.OneSidedMemory]


class OneSided:
    """The carriers of a node, one for each of ``kinds``; ``start`` makes them."""

    def __init__(self, shelf: Shelf, kinds: tuple[str, ...], start: Start) -> None:
        self.kinds = kinds
        self._shelf = shelf
        self._start = start
        self._lock = threading.Lock()
        self._lives: dict[str, Life] = {}
        self._sessions: dict[tuple[str, str], Session] = {}
        self._failed: dict[str, tuple[float, str]] = {}
        self._starting = {kind: threading.Lock() for kind in kinds}
        self._closed = False

    def prepare(self) -> None:
        """Start all carriers in the background, so that the first client need not wait."""
        for kind in self.kinds:
            threading.Thread(target=self._prepare, args=(kind,), daemon=True).start()

    def close(self) -> None:
        """End the carriers."""
        with self._lock:
            self._closed = True
            lives, self._lives = list(self._lives.values()), {}
        for life in lives:
            life.carrier.kill()

    def notes(self) -> dict[str, int]:
        """Return how many reads each kind's peers have told of."""
        with self._lock:
            return {kind: life.carrier.notes for kind, life in self._lives.items()}

    # --- clients ------------------------------------------------------------------------------

    def serve(self, client: str, request: data.OpenOneSided, wire: Wire) -> None:
        """Answer OpenOneSided; return when the way has ended."""
        try:
            session = self._connect(client, request)
        except TransferError as error:
            wire.send(data.OneSidedReady(b"", [], str(error)[:500] or "it failed"))
            return
        with self._kept(client, request.kind, session, wire):
            wire.send(self._ready(session.life))
            wire.wait_for_end()

    def _connect(self, client: str, request: data.OpenOneSided) -> Session:
        if request.kind not in self.kinds:
            offered = ", ".join(self.kinds) or "none"
            raise EngineError(
                f"the node does not offer {request.kind[:32]!r} (it offers {offered})"
            )
        if not request.memory or any(m.base < 0 or m.nbytes <= 0 for m in request.memory):
            raise EngineError("no memory to fetch from")
        life = self._life(request.kind)
        if not set(request.backends) & set(life.carrier.backends):
            raise EngineError(
                f"no common backend: {', '.join(life.carrier.backends)} at the node, "
                f"{', '.join(request.backends)[:200]} here"
            )
        peer = life.carrier.connect(request.description, CONNECT_S)
        self._probe(life, peer, request.memory[0].base)
        return Session(life, peer, request.memory)

    def _probe(self, life: Life, peer: str, base: int) -> None:
        """See that bytes come from there, before anything depends on it."""
        word = np.array([_GONE_WORD], np.uint64)
        rows = (np.zeros(1, np.uint64), np.array([base], np.uint64), word)
        pending = life.carrier.fetch(peer, 0, rows, [1])
        if not pending.wait(CONNECT_S):
            life.carrier.disconnect(peer)
        pending.result()

    @contextlib.contextmanager
    def _kept(self, client: str, kind: str, session: Session, wire: Wire) -> Iterator[None]:
        where = kind, client
        with self._lock:
            self._sessions[where] = session
            session.life.wires.add(wire)
            over = session.life.carrier.ended.is_set()
        try:
            if over:
                raise TransferError("the carrier has ended")
            yield
        finally:
            with self._lock:
                session.life.wires.discard(wire)
                if self._sessions.get(where) is session:
                    del self._sessions[where]
            session.life.carrier.disconnect(session.peer)

    def _ready(self, life: Life) -> data.OneSidedReady:
        segments = []
        for segment in self._shelf.segments():
            shape, name = segment.geometry, segment.header.name
            base = life.carrier.bases[life.regions[name]]
            segments.append(
                data.OneSidedSegment(
                    name, base + shape.owners_offset, base + shape.data_offset, shape.data_bytes
                )
            )
        return data.OneSidedReady(life.carrier.description, segments)

    # --- carriers -----------------------------------------------------------------------------

    def _prepare(self, kind: str) -> None:
        with contextlib.suppress(MoonpoolError):  # told where it was found out
            self._life(kind)

    def _life(self, kind: str) -> Life:
        """Return the living carrier of a kind; start one if it may be. Raises EngineError."""
        with self._starting[kind]:
            with self._lock:
                life = self._lives.get(kind)
                since, why = self._failed.get(kind, (0.0, ""))
            if life is not None and not life.carrier.ended.is_set():
                return life
            if self._closed or time.monotonic() < since + RESTART_S:
                raise EngineError(why or "the node ends")
            try:
                return self._begin_life(kind)
            except TransferError as error:
                self._fail(kind, str(error))
                _log.warning("%s is not offered: %s", kind, error)
                raise

    def _begin_life(self, kind: str) -> Life:
        regions, where = [Region(SCRATCH_BYTES)], {}
        for segment in self._shelf.segments():
            name = segment.header.name
            where[name] = len(regions)
            total = segment.geometry.total_bytes
            regions.append(Region(total, segment.path, users=self._shelf.users_of(name)))
        ended = threading.Event()
        holder: list[Life] = []

        def on_end() -> None:
            ended.set()
            if holder:
                self._on_end(kind, holder[0])

        life = Life(self._start(kind, regions, on_end), where)
        holder.append(life)
        with self._lock:
            self._lives[kind] = life
        if ended.is_set():
            self._on_end(kind, life)
            raise EngineError("the carrier has ended")
        _log.info("%s is offered (%s)", kind, ", ".join(life.carrier.backends))
        return life

    def _fail(self, kind: str, why: str) -> None:
        with self._lock:
            self._failed[kind] = time.monotonic(), why

    def _on_end(self, kind: str, life: Life) -> None:
        """A carrier is gone: its clients must come again."""
        with self._lock:
            if self._lives.get(kind) is life:
                del self._lives[kind]
            wires, closed = list(life.wires), self._closed
        self._fail(kind, "the carrier has ended")
        if not closed:
            _log.warning("the carrier of %s has ended; its clients are told", kind)
        for wire in wires:
            wire.interrupt()

    def session(self, kind: str, client: str) -> Session:
        """Return the way to a client's memory. Raises TransferError if there is none."""
        with self._lock:
            found = self._sessions.get((kind, client))
        if found is None:
            raise TransferError(f"no {kind[:32]!r} way to {client!r}")
        return found


def starter(config: NodeConfig, node: str) -> Start:
    """Return what starts carriers with a node's settings. ``node`` is its name."""

    def start(kind: str, regions: list[Region], on_end: Callable[[], None]) -> Carrier:
        host = config.advertise.rpartition(":")[0] or config.advertise or config.host
        if host in ("0.0.0.0", "::", ""):
            host = socket.gethostname()
        options = options_for(kind, config, host=host)
        name = f"node/{node}/{secrets.token_hex(8)}"
        setup = Setup(kind, name, host, regions, options.engine)
        return Carrier(setup, options.environment, on_end=on_end)

    return start
