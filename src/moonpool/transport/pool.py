"""A client's connections to one node's data port: kept open, bounded, handed to one thread."""

from __future__ import annotations

import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager

from moonpool.errors import DeadlineError, InvalidArgumentError, MoonpoolError, TransferError
from moonpool.protocol import data
from moonpool.protocol.versions import PROTOCOL_MAX, PROTOCOL_MIN
from moonpool.transport.wire import Wire, connect

CONNECTIONS_MAX = 8


def parse_address(address: str) -> tuple[str, int]:
    """Return (host, port) of ``host:port``; raise InvalidArgumentError."""
    host, colon, port = address.rpartition(":")
    if not colon or not host or not port.isdecimal() or not 0 < int(port) < 65_536:
        raise InvalidArgumentError(f"{address!r} is not host:port")
    return host.strip("[]"), int(port)


class ConnectionPool:
    """Connections of one client to one node; may be shared by all segments of the node.

    client: the name of the client's session with the master. timeout_s bounds how long anybody
    waits for a connection or for an opening handshake.
    """

    def __init__(
        self,
        address: str,
        client: str,
        *,
        connections_max: int = CONNECTIONS_MAX,
        timeout_s: float = 5.0,
        token: str = "",
    ) -> None:
        self.address = address
        self.timeout_s = timeout_s
        self.client = client
        self._token = token
        self._host, self._port = parse_address(address)
        self._free = threading.Condition()
        self._idle: list[Wire] = []
        self._busy: set[Wire] = set()
        self._slots = connections_max
        self._closed = False

    @contextmanager
    def connection(self, *, fresh: bool = False) -> Iterator[Wire]:
        """Lend a connection; it is kept for later only if the block ends without an exception.

        fresh: do not take one that has been idle. Raises TransferError, DeadlineError.
        """
        wire = self._take(fresh)
        good = False
        try:
            yield wire
            good = True
        finally:
            with self._free:
                self._busy.discard(wire)
                self._slots += 1
                if good and not self._closed:
                    self._idle.append(wire)
                else:
                    wire.close()
                self._free.notify()

    def close(self) -> None:
        """Close all connections; what is moving fails."""
        with self._free:
            self._closed = True
            for wire in self._idle:
                wire.close()
            for wire in self._busy:
                wire.interrupt()
            self._idle.clear()
            self._free.notify_all()

    def _take(self, fresh: bool) -> Wire:
        deadline = time.monotonic() + self.timeout_s
        with self._free:
            while not self._closed and self._slots == 0:
                if not self._free.wait(deadline - time.monotonic()):
                    raise DeadlineError(f"{self.address}: all connections are busy")
            if self._closed:
                raise TransferError(f"{self.address}: closed")
            self._slots -= 1
            kept = self._kept(fresh)
        try:
            wire = kept or open_data(
                self._host, self._port, self.client, self.timeout_s, self._token
            )
        except BaseException:
            with self._free:
                self._slots += 1
                self._free.notify()
            raise
        with self._free:
            self._busy.add(wire)
        return wire

    def _kept(self, fresh: bool) -> Wire | None:
        """Return an idle connection that still stands; close those that do not."""
        while self._idle:
            wire = self._idle.pop()
            if not fresh and wire.quiet():
                return wire
            wire.close()
        return None


def open_data(host: str, port: int, client: str, timeout_s: float, token: str = "") -> Wire:
    """Open a connection to a data port and say who we are; raise TransferError."""
    wire = connect(host, port, timeout_s)
    try:
        wire.within(timeout_s)
        wire.send(data.OpenData(PROTOCOL_MIN, PROTOCOL_MAX, client, token))
        data.decode_reply(wire.receive(data.OPEN_BYTES_MAX), data.DataReady)
    except MoonpoolError as error:
        wire.close()
        raise TransferError(f"{host}:{port}: {error}") from None
    return wire
