"""The data port: accepts connections and gives each a thread, up to a limit."""

from __future__ import annotations

import contextlib
import logging
import socket
import threading

from moonpool.errors import ConfigError, MoonpoolError, TransferError
from moonpool.node.direct import DirectReads
from moonpool.node.handler import Handler, Shelf
from moonpool.node.onesided import OneSided
from moonpool.node.writers import Writers
from moonpool.protocol import data
from moonpool.ssd.pace import Pace
from moonpool.transport.wire import Wire

_log = logging.getLogger(__name__)

CONNECTIONS_MAX = 512
BACKLOG = 128


class DataServer:
    """Serves a node's segments at ``host:port`` (port 0: any) from ``start`` until ``close``.

    token: what peers must say before they may do anything; empty: nothing. onesided: the engines
    by which clients may read the segments themselves. pace: holds copies back while clients read.
    """

    def __init__(
        self,
        shelf: Shelf,
        writers: Writers,
        host: str = "127.0.0.1",
        port: int = 0,
        *,
        connections_max: int = CONNECTIONS_MAX,
        token: str = "",
        onesided: OneSided | None = None,
        pace: Pace | None = None,
    ) -> None:
        self.disk: DirectReads | None = None
        """What reads from the node's disk for clients; to be set before ``start``."""
        self._onesided = onesided
        self._pace = pace or Pace()
        self._shelf = shelf
        self._writers = writers
        self._token = token
        try:
            self._socket = socket.create_server((host, port), backlog=BACKLOG)
        except (OSError, OverflowError) as error:
            raise ConfigError(
                f"port: cannot listen on {host}:{port}: {error}; a free port, or 0 for any"
            ) from None
        self.host, self.port = self._socket.getsockname()[:2]
        self._max = connections_max
        self._lock = threading.Lock()
        self._wires: dict[Wire, threading.Thread] = {}
        self._closing = threading.Event()
        self._accepting = threading.Thread(target=self._accept, name="moonpool-accept")

    def start(self) -> None:
        """Begin to accept."""
        self._accepting.start()

    def close(self, timeout_s: float = 5.0) -> None:
        """Stop accepting, end all connections and wait for their threads."""
        self._closing.set()
        with contextlib.suppress(OSError):
            self._socket.shutdown(socket.SHUT_RDWR)
        self._socket.close()
        if self._accepting.is_alive():
            self._accepting.join(timeout_s)
        with self._lock:
            threads = list(self._wires.values())
            for wire in self._wires:
                wire.interrupt()
        for thread in threads:
            thread.join(timeout_s)

    def connections(self) -> int:
        """Return how many connections are open."""
        with self._lock:
            return len(self._wires)

    def _accept(self) -> None:
        while not self._closing.is_set():
            try:
                sock, peer = self._socket.accept()
            except OSError as error:
                if self._closing.is_set():
                    return
                # Out of descriptors, or a connection that broke in the queue.
                _log.warning("data port: accept failed: %s", error)
                self._closing.wait(0.05)
                continue
            self._admit(sock, f"{peer[0]}:{peer[1]}")

    def _admit(self, sock: socket.socket, peer: str) -> None:
        wire = Wire(sock)
        thread = threading.Thread(
            target=self._serve, args=(wire, peer), name=f"moonpool-data-{peer}", daemon=True
        )
        with self._lock:
            full = self._closing.is_set() or len(self._wires) >= self._max
            if not full:
                self._wires[wire] = thread
        try:
            if not full:
                thread.start()
                return
            _log.warning("data port: %s refused: %d connections are open", peer, self._max)
        except RuntimeError as error:
            _log.warning("data port: %s refused: %s", peer, error)
            with self._lock:
                self._wires.pop(wire, None)
        wire.close()

    def _serve(self, wire: Wire, peer: str) -> None:
        handler = Handler(
            wire, self._shelf, self._writers, self._token, self._onesided, self._pace, self.disk
        )
        try:
            handler.run()
        except TransferError as error:
            _log.debug("data port: %s (%s) ended: %s", peer, handler.client, error)
        except MoonpoolError as error:
            _log.warning("data port: %s (%s) closed: %s", peer, handler.client, error)
            _refuse(wire, error)
        except (MemoryError, ValueError, OverflowError) as error:
            _log.warning("data port: %s (%s) closed: %r", peer, handler.client, error)
        finally:
            with self._lock:
                self._wires.pop(wire, None)
            wire.close()


def _refuse(wire: Wire, error: MoonpoolError) -> None:
    """Say why the connection is closed, if the peer still listens."""
    wire.within(1.0)
    with contextlib.suppress(MoonpoolError):
        wire.send(data.Refused(error.code, str(error)[:500]))
