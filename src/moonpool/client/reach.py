"""From the number of a segment to a way there; opened when first needed, closed when it is gone."""

from __future__ import annotations

import contextlib
import logging
import threading
import time
from collections.abc import Callable, Iterable
from typing import TypeGuard

from moonpool.client.attachment import AttachedTransport
from moonpool.client.channel import Channel
from moonpool.client.turns import in_turn
from moonpool.core.messages import GetSegments, SegmentInfo, Segments
from moonpool.errors import MoonpoolError, ProtocolError
from moonpool.protocol.data import DISK
from moonpool.transport.base import I64, Places, Transport
from moonpool.transport.host import shares_memory
from moonpool.transport.onesided import OneSidedTransport
from moonpool.transport.shm import ShmTransport
from moonpool.transport.tcp import TcpTransport

RETRY_S = 0.5
"""A segment that could not be reached, or is not known to the master, is not asked for earlier."""
REFRESH_S = 10.0
"""Segments that vanished are noticed at least this often, if anything is transferred."""

OUTDATED_S = 60.0
"""A way for which there is a better one is closed after so long."""
DISKS_MAX = 64
FAR_AT_ONCE = 8
"""Segments on other hosts that one batch is moved to or from at the same time."""

Opener = Callable[[SegmentInfo], Transport]

log = logging.getLogger("moonpool.client")


class Reach:
    """The open transports of a store. Numbers of segments count within an epoch of the master."""

    def __init__(self, channel: Channel, opener: Opener) -> None:
        self._channel = channel
        self._opener = opener
        self._lock = threading.Lock()
        self._open: dict[tuple[int, int], Transport] = {}
        self._disks: dict[str, Transport] = {}
        self._outdated: list[tuple[float, Transport]] = []
        self._failed: dict[tuple[int, int], float] = {}
        self._segments: dict[tuple[int, int], SegmentInfo] = {}
        self._refresh_at = 0.0
        self._largest = 0
        self._closed = False
        self.near_host = ""
        """What this machine's memory is called; empty while no node of it is known."""

    def transport(self, epoch: int, segment: int) -> Transport | None:
        """Return the way to a segment, or None if there is none at present.

        Raises MasterUnreachableError if the master had to be asked and could not be.
        """
        where = (epoch, segment)
        found = self._open.get(where)
        if found is not None and time.monotonic() < self._refresh_at and not _is_lost(found):
            return found
        with self._lock:
            return self._found(where)

    def disk(self, address: str) -> Transport | None:
        """Return the way to a node's disk by its data port, or None if there is none at present."""
        with self._lock:
            if address not in self._disks and not self._closed:
                while len(self._disks) >= DISKS_MAX:
                    _close(self._disks.pop(next(iter(self._disks))))
                try:
                    self._disks[address] = self._opener(_disk_info(address))
                except (MoonpoolError, OSError) as error:
                    log.debug("the disk at %s cannot be reached: %s", address, error)
            return self._disks.get(address)

    def size_max(self, wanted: int) -> int:
        """Return what the largest segment can hold, in bytes; the master is asked again if that is
        less than ``wanted``. Nobody should take memory for more, whatever an answer says.

        Raises MasterUnreachableError.
        """
        if wanted > self._largest:
            with self._lock:
                if wanted > self._largest and not self._closed:
                    self._refresh(time.monotonic())
        return self._largest

    def is_near(self, epoch: int, segment: int) -> bool:
        """Tell whether a segment is in this host's memory, as far as that is known."""
        found = self._open.get((epoch, segment))
        if found is not None:
            return is_near(found)
        info = self._segments.get((epoch, segment))
        return info is not None and bool(info.host) and info.host == self.near_host

    def each(
        self,
        epoch: int,
        groups: Iterable[tuple[int, I64, Places]],
        work: Callable[[Transport | None, I64, Places], None],
    ) -> None:
        """Call ``work`` for the objects of each segment: those in this host's memory one after the
        other, then the others side by side, so that nodes that do not answer cost one deadline.

        Raises MasterUnreachableError as ``transport`` does, and then nothing was begun.
        """
        ways = [(self.transport(epoch, segment), at, places) for segment, at, places in groups]
        far: list[tuple[Transport, I64, Places]] = []
        for transport, objects, places in ways:
            if transport is None or is_near(transport):
                work(transport, objects, places)
            else:
                far.append((transport, objects, places))
        in_turn(lambda i, _: work(*far[i]), [(i, i + 1) for i in range(len(far))], FAR_AT_ONCE)

    def open_all(self) -> int:
        """Open the way to every segment that the master knows; return how many are open.

        Raises MasterUnreachableError.
        """
        with self._lock:
            now = time.monotonic()
            if self._closed:
                return 0
            self._refresh(now)
            for where in self._segments:
                if where not in self._open and self._failed.get(where, 0.0) <= now:
                    self._try(where, now)
            return len(self._open)

    def close(self) -> None:
        """Close all transports."""
        with self._lock:
            self._closed = True
            outdated = [each for _, each in self._outdated]
            for transport in [*self._open.values(), *self._disks.values(), *outdated]:
                _close(transport)
            self._open.clear()
            self._disks.clear()

    def _found(self, where: tuple[int, int]) -> Transport | None:
        now = time.monotonic()
        if self._closed or self._failed.get(where, 0.0) > now:
            return None
        lost = where in self._open and _is_lost(self._open[where])
        if lost or where not in self._segments or now >= self._refresh_at:
            self._refresh(now)
        if where not in self._open:
            self._try(where, now)
        return self._open.get(where)

    def _refresh(self, now: float) -> None:
        reply, epoch = self._channel.ask(GetSegments())
        if not isinstance(reply, Segments):
            raise ProtocolError(f"the master answered GetSegments with {type(reply).__name__}")
        self._segments = {(epoch, info.handle): info for info in reply.segments}
        self._refresh_at = now + REFRESH_S
        self._largest = max([0, *(info.data_bytes for info in reply.segments)])
        hosts = {info.host: info.path for info in reply.segments}
        self.near_host = next((h for h, path in hosts.items() if shares_memory(h, path)), "")
        self._failed = {key: until for key, until in self._failed.items() if until > now}
        for _, transport in [each for each in self._outdated if each[0] <= now]:
            _close(transport)
        self._outdated = [each for each in self._outdated if each[0] > now]
        for where, transport in list(self._open.items()):
            if where not in self._segments or _is_lost(transport):
                _close(self._open.pop(where))
            elif _is_outdated(transport):
                # Somebody may be using it just now.
                self._outdated.append((now + OUTDATED_S, self._open.pop(where)))

    def _try(self, where: tuple[int, int], now: float) -> None:
        info = self._segments.get(where)
        if info is None:
            self._failed[where] = now + RETRY_S
            return
        try:
            self._open[where] = self._opener(info)
        except (MoonpoolError, OSError) as error:
            log.warning("segment %s of node %s cannot be reached: %s", info.name, info.node, error)
            self._failed[where] = now + RETRY_S


def _disk_info(address: str) -> SegmentInfo:
    """Return what a node's disk looks like to who opens ways: a segment of no host."""
    return SegmentInfo(DISK, "", "", address, "", 0, 0)


def is_near(transport: Transport) -> TypeGuard[AttachedTransport | ShmTransport]:
    """Tell whether a transport has the shorter verbs for small objects."""
    return isinstance(transport, AttachedTransport | ShmTransport)


def _is_outdated(transport: Transport) -> bool:
    """Tell whether there is a better way now than there was when this one was opened."""
    return isinstance(transport, TcpTransport) and transport.outdated()


def _is_lost(transport: Transport) -> bool:
    return isinstance(transport, AttachedTransport | OneSidedTransport) and transport.lost


def _close(transport: Transport) -> None:
    with contextlib.suppress(MoonpoolError, OSError):
        transport.close()
