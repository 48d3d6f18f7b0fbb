"""Connections to a Service without sockets, and a clock that tests move."""

from __future__ import annotations

import asyncio
from typing import Any

from moonpool.core import messages as m
from moonpool.core.master import MasterConfig, MasterState
from moonpool.master.service import Service
from moonpool.master.session import Session
from moonpool.protocol.codec import decode_reply, encode
from moonpool.protocol.framing import FrameDecoder

EPOCH = 7
MIB = 1 << 20


class Clock:
    """Seconds, moved by hand."""

    def __init__(self) -> None:
        self.now = 1000.0

    def __call__(self) -> float:
        return self.now


class Pipe(asyncio.Transport):
    """Keeps what is written; ``unread`` is what a slow peer leaves in the buffer."""

    def __init__(self) -> None:
        super().__init__()
        self.sent = bytearray()
        self.writes = 0
        self.unread = 0
        self.reading = True
        self.closed = ""

    def get_extra_info(self, name: str, default: Any = None) -> Any:
        return ("192.0.2.1", 4242) if name == "peername" else default

    def set_write_buffer_limits(self, high: int | None = None, low: int | None = None) -> None:
        pass

    def get_write_buffer_size(self) -> int:
        return self.unread

    def write(self, data: Any) -> None:
        self.writes += 1
        self.sent += data

    def pause_reading(self) -> None:
        self.reading = False

    def resume_reading(self) -> None:
        self.reading = True

    def close(self) -> None:
        self.closed = self.closed or "closed"

    def abort(self) -> None:
        self.closed = "aborted"


class Peer:
    """One connection. ``ask`` is a round trip; ``feed`` and ``replies`` are the parts of it."""

    def __init__(
        self, service: Service, name: str = "", role: str = "client", token: str = ""
    ) -> None:
        self.pipe = Pipe()
        self.session = Session(service)
        self.session.connection_made(self.pipe)
        self._frames = FrameDecoder()
        self._id = 0
        if name:
            welcome = self.ask(m.Hello(1, 1, role, name, token))
            assert welcome == m.Welcome(1, service.epoch), welcome

    @property
    def closed(self) -> bool:
        return bool(self.pipe.closed)

    def feed(self, *requests: m.Request) -> None:
        data = b""
        for request in requests:
            self._id += 1
            data += encode(self._id, request)
        self.session.data_received(data)

    def replies(self) -> list[tuple[int, m.Reply | m.Push]]:
        frames = self._frames.feed(bytes(self.pipe.sent))
        self.pipe.sent.clear()
        return [decode_reply(frame) for frame in frames]

    def ask(self, request: m.Request) -> m.Reply | m.Push:
        self.feed(request)
        ((request_id, reply),) = self.replies()
        assert request_id == self._id
        return reply

    def hang_up(self) -> None:
        self.session.connection_lost(None)


def new_service(clock: Clock | None = None, token: str = "") -> Service:
    state = MasterState(MasterConfig(), EPOCH)
    return Service(state, EPOCH, token=token, clock=clock or Clock())


def mount(node: Peer, name: str = "n1") -> int:
    """Mount an empty segment of 64 MiB; return its handle."""
    info = m.SegmentInfo("s", name, "host", "127.0.0.1:1", "/x", 64 * MIB, 1024)
    mounted = node.ask(m.Mount(info))
    assert isinstance(mounted, m.Mounted), mounted
    assert node.ask(m.Announce(mounted.handle, [], True)) == m.Announced([])
    return mounted.handle


def put(client: Peer, key: bytes, size: int = 100) -> m.Grant:
    """Put an object as far as the master is concerned."""
    grant = start(client, key, size)
    assert client.ask(m.PutEnd([grant.generation], [0])) == m.Codes([0])
    return grant


def start(client: Peer, key: bytes, size: int = 100) -> m.Grant:
    """Begin a put."""
    started = client.ask(m.PutStart([m.PutItem(key, size)]))
    assert isinstance(started, m.PutStarted), started
    assert started.grants[0].code == 0
    return started.grants[0]
