"""A client's connections to one node's data port: kept open, bounded, shared where they are few."""

from __future__ import annotations

import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager

from moonpool.errors import DeadlineError, InvalidArgumentError, MoonpoolError, TransferError
from moonpool.protocol import data
from moonpool.protocol.versions import PROTOCOL_MAX, PROTOCOL_MIN
from moonpool.transport.lane import Lane
from moonpool.transport.wire import Wire, connect

PORT_CHARS_MAX = 5
CONNECTIONS_MAX = 8
DEPTH_MAX = 4
"""Requests that are under way on one connection."""


def parse_address(address: str) -> tuple[str, int]:
    """Return (host, port) of ``host:port``; raise InvalidArgumentError."""
    host, colon, port = address.rpartition(":")
    sound = port.isdecimal() and len(port) <= PORT_CHARS_MAX and 0 < int(port) < 65_536
    if not colon or not host or not sound:
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
        self._lanes: set[Lane] = set()
        self._opening = 0
        self._max = connections_max
        self._closed = False
        self.round_trip_s = 0.0
        """The shortest that was seen when a connection was opened; 0 before and on one host."""

    @contextmanager
    def connection(self, *, fresh: bool = False) -> Iterator[Wire]:
        """Lend a connection to one user; it is kept for later only if the block ends without an
        exception.

        fresh: do not take one that has been idle. Raises TransferError, DeadlineError.
        """
        with self.lane(fresh=fresh, depth=1) as lane:
            yield lane.wire

    @contextmanager
    def lane(
        self, *, fresh: bool = False, width: int = CONNECTIONS_MAX, depth: int = DEPTH_MAX
    ) -> Iterator[Lane]:
        """Lend a connection that others may be using too, up to ``depth`` at once; new ones are
        opened only while there are fewer than ``width``. As ``connection`` else."""
        lane = self._take(fresh, min(width, self._max), depth)
        good = False
        try:
            yield lane
            good = True
        finally:
            with self._free:
                if not good:
                    self._drop(lane)
                lane.users -= 1
                if lane.users == 0 and (self._closed or lane not in self._lanes):
                    lane.wire.close()
                self._free.notify_all()

    def close(self) -> None:
        """Close all connections; what is moving fails."""
        with self._free:
            self._closed = True
            for lane in list(self._lanes):
                self._drop(lane)
            self._free.notify_all()

    def _drop(self, lane: Lane) -> None:
        """Use a connection no more; whoever does so last closes it."""
        self._lanes.discard(lane)
        if lane.users:
            lane.fail()
        else:
            lane.wire.close()

    def _take(self, fresh: bool, width: int, depth: int) -> Lane:
        deadline = time.monotonic() + self.timeout_s
        with self._free:
            while True:
                if self._closed:
                    raise TransferError(f"{self.address}: closed")
                lane = self._kept(fresh, width, depth)
                if lane is not None:
                    lane.users += 1
                    lane.alone = depth == 1
                    return lane
                wide = depth > 1 and self._opening and len(self._lanes) + self._opening >= width
                if not wide and len(self._lanes) + self._opening < self._max:
                    break  # else one that is being opened will have room
                if not self._free.wait(deadline - time.monotonic()):
                    raise DeadlineError(f"{self.address}: all connections are busy")
            self._opening += 1
        try:
            wire = open_data(self._host, self._port, self.client, self.timeout_s, self._token)
        finally:
            with self._free:
                self._opening -= 1
                self._free.notify_all()
        return self._added(Lane(wire), alone=depth == 1)

    def _added(self, lane: Lane, *, alone: bool) -> Lane:
        with self._free:
            if self._closed:
                lane.wire.close()
                raise TransferError(f"{self.address}: closed")
            lane.users, lane.alone = 1, alone
            self._lanes.add(lane)
            seen_s = lane.wire.round_trip_s()
            self.round_trip_s = min(self.round_trip_s or seen_s, seen_s)
        return lane

    def _kept(self, fresh: bool, width: int, depth: int) -> Lane | None:
        """Return a connection that stands and has room: an idle one, or if there are enough of
        them the one with the fewest users."""
        for lane in [lane for lane in self._lanes if not lane.users]:
            if not fresh and lane.wire.quiet():
                return lane
            self._drop(lane)
        if fresh or depth == 1 or len(self._lanes) + self._opening < width:
            return None
        open_to_all = [lane for lane in self._lanes if lane.users < depth and not lane.alone]
        return min(open_to_all, key=lambda lane: lane.users, default=None)


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
