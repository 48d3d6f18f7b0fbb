"""A pool inside this process: the master's state machine and a segment, without any socket."""

from __future__ import annotations

import threading
import time

from moonpool.client.connection import Connection
from moonpool.core.master import MasterConfig, MasterState
from moonpool.core.messages import (
    Announce,
    Await,
    DropSlots,
    Failed,
    Mount,
    Mounted,
    Reply,
    Request,
    SegmentInfo,
    Tick,
)
from moonpool.errors import MasterUnreachableError, MoonpoolError, error_for
from moonpool.protocol.versions import PROTOCOL_MAX
from moonpool.transport.base import Transport
from moonpool.transport.segment import Segment
from moonpool.transport.shm import ShmTransport

TICK_S = 0.1
EPOCH = 1
NODE = "local"
CLIENT = "local-client"


class LocalChannel:
    """The master's state machine under a lock; nodes' pushes go to the one segment."""

    version = PROTOCOL_MAX
    kv_lease_s = 10.0

    def __init__(self, segment: Segment) -> None:
        self._state = MasterState(MasterConfig(), EPOCH)
        self._segment = segment
        self._lock = threading.Lock()
        self._tick_at = 0.0
        self._closed = False
        self._mount()

    def call(self, request: Request, timeout_s: float | None = None) -> Reply:
        """Return the reply, or raise what a Failed stands for."""
        return self.ask(request, timeout_s)[0]

    def ask(self, request: Request, timeout_s: float | None = None) -> tuple[Reply, int]:
        """Return the reply and the epoch; raise what a Failed stands for."""
        if isinstance(request, Await):
            # Nobody could be told later.
            request = Await(request.keys, request.transfer)
        with self._lock:
            if self._closed:
                raise MasterUnreachableError("the store is closed")
            now = time.monotonic()
            if now >= self._tick_at:
                self._tick_at = now + TICK_S
                self._handle(Tick(), now)
            reply = self._handle(request, now)
        if reply is None:
            raise MoonpoolError(f"{type(request).__name__} has no answer")
        if isinstance(reply, Failed):
            raise error_for(reply.code, reply.text)
        return reply, EPOCH

    def send_only(self, request: Request) -> None:
        """Hand in a request that is not answered."""
        with self._lock:
            if not self._closed:
                self._handle(request, time.monotonic())

    def dedicated(self, timeout_s: float) -> Connection:
        """There are no connections."""
        raise MasterUnreachableError("a pool inside this process cannot be waited for")

    def board(self) -> None:
        """There is none: the state machine itself is here."""

    def close(self) -> None:
        """Refuse all further requests."""
        with self._lock:
            self._closed = True

    def opener(self, info: SegmentInfo) -> Transport:
        """Return the way to the segment."""
        return ShmTransport(self._segment)

    def _handle(self, request: Request | Tick, now: float) -> Reply | None:
        outcome = self._state.handle(request, CLIENT, now)
        for _, push in outcome.pushes:
            if isinstance(push, DropSlots):
                self._segment.drop(push.indexes, push.generations)
        return outcome.reply

    def _mount(self) -> None:
        shape = self._segment.geometry
        info = SegmentInfo(NODE, NODE, NODE, "", "", shape.data_bytes, shape.slots)
        mounted = self._state.handle(Mount(info), NODE, time.monotonic()).reply
        if not isinstance(mounted, Mounted):
            raise MoonpoolError(f"the segment could not be mounted: {mounted}")
        self._state.handle(Announce(mounted.handle, [], True), NODE, time.monotonic())
