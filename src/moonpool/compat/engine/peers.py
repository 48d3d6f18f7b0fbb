"""The way to other engines: a few kept connections to each, and one transfer at a time on each."""

from __future__ import annotations

import contextlib
import threading
from collections.abc import Iterator

from moonpool.compat.engine import messages as m
from moonpool.compat.engine.registry import Registry
from moonpool.compat.engine.server import vectors
from moonpool.config_values import parse_address
from moonpool.errors import MoonpoolError, ProtocolError, TransferError
from moonpool.transport import wire as wires
from moonpool.transport.base import U64
from moonpool.transport.wire import Wire

CONNECT_S = 5.0
TRANSFER_S = 60.0
IDLE_PER_PEER = 8
PEERS_MAX = 4096


class Peers:
    """Connections by address. Threads may share it."""

    def __init__(self, registry: Registry, token: str = "") -> None:
        self._registry = registry
        self._token = token
        self._lock = threading.Lock()
        self._idle: dict[tuple[str, int], list[Wire]] = {}

    def close(self) -> None:
        """Close what is idle."""
        with self._lock:
            idle, self._idle = self._idle, {}
        for each in idle.values():
            for wire in each:
                wire.close()

    def move(self, address: str, ours: U64, theirs: U64, lengths: U64, *, write: bool) -> None:
        """Write ranges of ours to theirs, or read them. Raises TransferError also where a range is
        not registered; then some of the other bytes may have been moved."""
        used: list[Wire] = []

        def interrupt() -> None:
            for wire in used:
                wire.interrupt()

        hold = self._registry.hold(ours, lengths, interrupt)
        if hold is None:
            raise TransferError("a range of this process is not registered")
        with hold, self._using(address) as wire:
            used.append(wire)
            for at in range(0, len(lengths), m.RANGES_MAX):
                part = slice(at, at + m.RANGES_MAX)
                _move(wire, ours[part], theirs[part], lengths[part], write=write)

    def note(self, address: str, name: str, text: str) -> None:
        """Tell the other program something."""
        with self._using(address) as wire:
            wire.send(m.Note(name, text))
            _done(wire)

    def ask(self, address: str) -> int:
        """Return the peer's first buffer, 0 if it has none. Raises TransferError."""
        with self._using(address) as wire:
            wire.send(m.Ask())
            return _done(wire)

    @contextlib.contextmanager
    def _using(self, address: str) -> Iterator[Wire]:
        try:
            peer = parse_address(address)
        except ValueError:
            raise TransferError(f"{address!r} is not host:port") from None
        wire = self._take(peer) or self._connect(peer)
        try:
            wire.within(TRANSFER_S)
            yield wire
        except BaseException as error:
            wire.close()
            if isinstance(error, MoonpoolError) and not isinstance(error, TransferError):
                raise TransferError(str(error)) from None
            raise
        self._give(peer, wire)

    def _take(self, peer: tuple[str, int]) -> Wire | None:
        with self._lock:
            idle = self._idle.get(peer, [])
            while idle:
                wire = idle.pop()
                if wire.quiet():
                    return wire
                wire.close()
        return None

    def _give(self, peer: tuple[str, int], wire: Wire) -> None:
        with self._lock:
            if peer in self._idle or len(self._idle) < PEERS_MAX:
                idle = self._idle.setdefault(peer, [])
                if len(idle) < IDLE_PER_PEER:
                    idle.append(wire)
                    return
        wire.close()

    def _connect(self, peer: tuple[str, int]) -> Wire:
        wire = wires.connect(*peer, CONNECT_S)
        try:
            wire.within(CONNECT_S)
            wire.send(m.Open(m.VERSION, self._token))
            answer = m.answer_of(wire.receive(m.FRAME_MAX))
            if not isinstance(answer, m.Opened) or answer.code:
                raise TransferError("the peer does not let this process in")
        except BaseException as error:
            wire.close()
            if isinstance(error, ProtocolError):
                raise TransferError(str(error)) from None
            raise
        return wire


def _move(wire: Wire, ours: U64, theirs: U64, lengths: U64, *, write: bool) -> None:
    wire.within(TRANSFER_S)
    what = (m.packed(theirs), m.packed(lengths))
    if write:
        wire.send(m.Write(*what))
        wire.send_memory(vectors(ours, lengths))
        _done(wire)
    else:
        wire.send(m.Read(*what))
        _done(wire)
        wire.receive_memory(vectors(ours, lengths))


def _done(wire: Wire) -> int:
    answer = m.answer_of(wire.receive(m.FRAME_MAX))
    if not isinstance(answer, m.Done) or answer.code:
        raise TransferError("the peer has no such range registered")
    return answer.value
