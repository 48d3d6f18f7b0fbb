"""One connection to the master: frames in, replies out, in order and bounded."""

from __future__ import annotations

import asyncio
import socket
from collections import deque
from typing import Protocol, cast

from moonpool.core.messages import Failed, Hello, Message, Parked, Release, Reply, Request
from moonpool.errors import ProtocolError
from moonpool.protocol.codec import PUSH_ID, check_hello, decode_request, encode
from moonpool.protocol.framing import FRAME_BYTES_MAX, HELLO_BYTES_MAX, FrameDecoder

OUT_BYTES_HIGH = 1 << 20
"""Unsent bytes at which a connection's requests are left waiting."""
OUT_BYTES_LOW = 1 << 18
OUT_BYTES_MAX = 1 << 28
"""Unsent bytes at which a connection that reads nothing (pushes pile up) is given up."""
TURN_REQUESTS = 128
"""Requests of one connection in a row, before the others get their turn."""
STUCK_S = 10.0
"""How long a peer may leave its replies unread, its hello unsaid or a frame half sent."""


class Desk(Protocol):
    """What a session needs of the service."""

    def now(self) -> float:
        """Return the monotonic time in seconds."""
        ...

    def opened(self, session: Session) -> bool:
        """Note a new connection; False if there are too many."""
        ...

    def greet(self, session: Session, hello: Hello) -> Reply:
        """Answer the first message; a Failed ends the connection."""
        ...

    def answer(self, session: Session, request: Request) -> Reply | Parked | None:
        """Answer a request; None if it wants no answer, Parked if it is answered later."""
        ...

    def park(self, session: Session, request_id: int, parked: Parked) -> None:
        """Remember who is to have the answer of this number."""
        ...

    def refused(self, session: Session, reason: Exception) -> None:
        """Note that the connection is closed for what its peer sent."""
        ...

    def closed(self, session: Session) -> None:
        """Note the end of a connection."""
        ...


class Session(asyncio.Protocol):
    """A connection. ``peer`` and ``role`` are empty until its Hello was accepted."""

    def __init__(self, desk: Desk, ttl_s: float = 10.0) -> None:
        """ttl_s: how long nothing may be heard of the peer's host."""
        self._ttl_s = ttl_s
        self.peer = ""
        self.role = ""
        self.may_change = False
        self.parked: set[int] = set()
        self.address = "?"
        self._desk = desk
        self._transport: asyncio.Transport | None = None
        self._frames = FrameDecoder(HELLO_BYTES_MAX)
        self._todo: deque[bytes] = deque()
        self._out: list[bytes] = []
        self._busy = False
        self._paused = False
        self._held_up = False
        self._closing = False
        self._waiting_since: float | None = None

    def __str__(self) -> str:
        return f"{self.role or 'peer'} {self.peer or '?'} at {self.address}"

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        transport = cast("asyncio.Transport", transport)
        self._transport = transport
        name = transport.get_extra_info("peername")
        self.address = f"{name[0]}:{name[1]}" if isinstance(name, tuple) else str(name)
        transport.set_write_buffer_limits(OUT_BYTES_HIGH, OUT_BYTES_LOW)
        _keep_alive(transport.get_extra_info("socket"), self._ttl_s)
        self._waiting_since = self._desk.now()
        if not self._desk.opened(self):
            self._closing = True
            transport.abort()

    def connection_lost(self, exc: Exception | None) -> None:
        self._closing = True
        self._todo.clear()
        self._transport = None
        self._desk.closed(self)

    def data_received(self, data: bytes) -> None:
        if self._closing:
            return
        try:
            frames = self._frames.feed(data)
            if len(frames) == 1 and self._is_at_rest():
                reply = self._reply(frames[0])
                if reply is not None and self._transport is not None:
                    self._transport.write(reply)
                return
        except ProtocolError as error:
            self.refuse(error)
            return
        self._todo.extend(frames)
        if self.peer and not self._paused:
            self._waiting_since = self._desk.now() if self._frames.held_bytes else None
        if not self._busy:
            self._work()

    def _is_at_rest(self) -> bool:
        """Tell whether the one frame that just came is all there is to do."""
        waiting = self._busy or self._paused or self._waiting_since is not None
        return not waiting and not self._frames.held_bytes

    def pause_writing(self) -> None:
        self._paused = True
        self._waiting_since = self._desk.now()

    def resume_writing(self) -> None:
        self._paused = False
        self._waiting_since = None
        if not self._busy:
            self._work()

    def push(self, message: Message) -> None:
        """Send a message that was not asked for."""
        self._send(encode(PUSH_ID, message))

    def answer_later(self, request_id: int, reply: Reply) -> None:
        """Answer a request that was parked."""
        self._send(_encode_reply(request_id, reply))

    def refuse(self, reason: Exception) -> None:
        """Close the connection because of what its peer sent."""
        if not self._closing:
            self._desk.refused(self, reason)
        self.close()

    def close(self) -> None:
        """Send what waits, then close."""
        self._closing = True
        self._todo.clear()
        if self._transport is not None:
            self._flush()
            self._waiting_since = self._desk.now()
            self._transport.close()

    def abort(self) -> None:
        """Close at once; what waits is not sent."""
        self._closing = True
        self._todo.clear()
        self._out.clear()
        if self._transport is not None:
            self._transport.abort()

    def stuck(self, now: float) -> bool:
        """Tell whether the peer has been waited for too long, and if so give it up."""
        if self._waiting_since is None or now - self._waiting_since < STUCK_S:
            return False
        self._closing = True
        if self._transport is not None:
            self._transport.abort()
        return True

    def _work(self) -> None:
        """Answer what has arrived, up to a turn's worth, with one write."""
        self._busy = True
        turn = TURN_REQUESTS
        out_bytes = 0
        while self._todo and turn and not self._paused and not self._closing:
            turn -= 1
            try:
                reply = self._reply(self._todo.popleft())
            except ProtocolError as error:
                self.refuse(error)
                break
            if reply is not None:
                self._out.append(reply)
                out_bytes += len(reply)
                if out_bytes >= OUT_BYTES_HIGH:
                    self._flush()
                    out_bytes = 0
        self._flush()
        self._busy = False
        if self._todo or self._paused:
            self._wait_for_turn()
        elif self._held_up and self._transport is not None and not self._closing:
            self._held_up = False
            self._transport.resume_reading()

    def _wait_for_turn(self) -> None:
        if self._transport is None or self._closing:
            return
        if not self._held_up:
            self._held_up = True
            self._transport.pause_reading()
        if not self._paused:
            self._busy = True
            asyncio.get_running_loop().call_soon(self._work)

    def _reply(self, payload: bytes) -> bytes | None:
        request_id, request = decode_request(payload)
        if request_id == PUSH_ID and type(request) is not Release:
            raise ProtocolError(f"{type(request).__name__} with the id of what wants no answer")
        if self.peer:
            reply = self._desk.answer(self, request)
            if isinstance(reply, Parked):
                self._desk.park(self, request_id, reply)
                return None
            return None if reply is None else _encode_reply(request_id, reply)
        welcome = self._desk.greet(self, check_hello(request))
        if isinstance(welcome, Failed):
            self._out.append(encode(request_id, welcome))
            self.close()
            return None
        self._frames.limit = FRAME_BYTES_MAX
        self._waiting_since = None
        return encode(request_id, welcome)

    def _send(self, frame: bytes) -> None:
        if self._transport is None or self._closing:
            return
        if self._transport.get_write_buffer_size() > OUT_BYTES_MAX:
            self.refuse(ProtocolError("it reads nothing of what it is sent"))
            self._transport.abort()
            return
        self._out.append(frame)
        if not self._busy:
            self._flush()

    def _flush(self) -> None:
        if self._out and self._transport is not None:
            self._transport.write(self._out[0] if len(self._out) == 1 else b"".join(self._out))
            self._out.clear()


def _encode_reply(request_id: int, reply: Reply) -> bytes:
    try:
        return encode(request_id, reply)
    except ProtocolError as error:
        return encode(request_id, Failed(error.code, str(error)))


def _keep_alive(sock: socket.socket | None, ttl_s: float) -> None:
    """Make the kernel notice within about ``ttl_s`` that the peer's machine is gone."""
    if sock is None or sock.family not in (socket.AF_INET, socket.AF_INET6):
        return
    sock.setsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE, 1)
    probes = 3
    idle, interval = max(1, round(ttl_s / 2)), max(1, round(ttl_s / 2 / probes))
    options = (
        ("TCP_KEEPIDLE", idle),
        ("TCP_KEEPINTVL", interval),
        ("TCP_KEEPCNT", probes),
        # The same while something that was sent is not acknowledged: then there are no probes.
        ("TCP_USER_TIMEOUT", round(1000 * ttl_s)),
    )
    for option, value in options:
        if hasattr(socket, option):
            sock.setsockopt(socket.IPPROTO_TCP, getattr(socket, option), value)
