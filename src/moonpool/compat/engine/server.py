"""The side of an engine that others reach: reads and writes within what is registered here."""

from __future__ import annotations

import contextlib
import hmac
import logging
import socket
import threading
from collections import deque

import numpy as np

from moonpool.compat.engine import messages as m
from moonpool.compat.engine.registry import Registry
from moonpool.errors import MoonpoolError, ProtocolError
from moonpool.transport.base import U64
from moonpool.transport.wire import Wire

CONNECTIONS_MAX = 512
HELLO_S = 10.0
PAYLOAD_S = 60.0
"""How long the payload of one message may take."""
NOTES_MAX = 65_536
REFUSED = -1

log = logging.getLogger(__name__)


class Server:
    """Serves at ``port`` from ``start`` until ``close``."""

    def __init__(self, host: str, registry: Registry, token: str = "") -> None:
        """Raises OSError if the host is none of this machine."""
        family = socket.getaddrinfo(host, 0, type=socket.SOCK_STREAM)[0][0]
        self._socket = socket.create_server((host, 0), family=family, backlog=128)
        self.port: int = self._socket.getsockname()[1]
        self.notes: deque[tuple[str, str]] = deque(maxlen=NOTES_MAX)
        self._registry = registry
        self._token = token.encode()
        self._lock = threading.Lock()
        self._wires: set[Wire] = set()
        self._closing = threading.Event()
        self._thread = threading.Thread(target=self._accept, name="moonpool-engine", daemon=True)

    def start(self) -> None:
        """Begin to accept."""
        self._thread.start()

    def close(self) -> None:
        """End all connections."""
        self._closing.set()
        with contextlib.suppress(OSError):
            self._socket.shutdown(socket.SHUT_RDWR)
        self._socket.close()
        with self._lock:
            for wire in self._wires:
                wire.interrupt()

    def _accept(self) -> None:
        while not self._closing.is_set():
            try:
                sock, _ = self._socket.accept()
            except OSError:
                # Out of descriptors, or a connection that broke in the queue.
                self._closing.wait(0.05)
                continue
            self._admit(Wire(sock))

    def _admit(self, wire: Wire) -> None:
        with self._lock:
            full = self._closing.is_set() or len(self._wires) >= CONNECTIONS_MAX
            if not full:
                self._wires.add(wire)
        if full:
            wire.close()
            return
        threading.Thread(target=self._serve, args=(wire,), daemon=True).start()

    def _serve(self, wire: Wire) -> None:
        try:
            wire.within(HELLO_S)
            if self._greet(wire):
                while True:
                    wire.wait_for_end()
                    wire.within(PAYLOAD_S)
                    self._answer(wire, m.request_of(wire.receive(m.FRAME_MAX)))
        except MoonpoolError as error:
            log.debug("engine: connection ended: %s", error)
        finally:
            with self._lock:
                self._wires.discard(wire)
            wire.close()

    def _greet(self, wire: Wire) -> bool:
        said = m.request_of(wire.receive(m.FRAME_MAX))
        if not isinstance(said, m.Open) or said.version < m.VERSION:
            raise ProtocolError("the first message is not Open")
        token = said.token.encode(errors="replace")
        fits = not self._token or hmac.compare_digest(token, self._token)
        wire.send(m.Opened(m.VERSION, 0 if fits else REFUSED))
        return fits

    def _answer(self, wire: Wire, request: m.Request) -> None:
        if isinstance(request, m.Write | m.Read):
            self._move(wire, request)
        elif isinstance(request, m.Note):
            if len(request.name) + len(request.text) > m.NOTE_CHARS_MAX:
                raise ProtocolError("a note that is too long")
            self.notes.append((request.name, request.text))
            wire.send(m.Done(0))
        elif isinstance(request, m.Ask):
            wire.send(m.Done(0, self._registry.first()))
        else:
            raise ProtocolError("Open, once more")

    def _move(self, wire: Wire, request: m.Write | m.Read) -> None:
        addresses, lengths = m.ranges_of(request)
        hold = self._registry.hold(addresses, lengths, wire.interrupt)
        if hold is None:
            wire.send(m.Done(REFUSED))
            # Whatever payload follows is not read.
            raise ProtocolError("ranges that are not registered")
        with hold:
            if isinstance(request, m.Write):
                wire.receive_memory(vectors(addresses, lengths))
                wire.send(m.Done(0))
            else:
                wire.send(m.Done(0))
                wire.send_memory(vectors(addresses, lengths))


def vectors(addresses: U64, lengths: U64) -> U64:
    """Return ranges as an array of ``struct iovec``."""
    return np.stack((addresses, lengths), axis=1)
