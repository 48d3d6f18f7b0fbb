"""One blocking connection to the master: a request out, its reply in, before a deadline."""

from __future__ import annotations

import contextlib
import os
import socket
import struct
import time

from moonpool.core.messages import Failed, Hello, Push, Reply, Request, Welcome
from moonpool.errors import (
    DeadlineError,
    MasterUnreachableError,
    NotLeaderError,
    ProtocolError,
    error_for,
)
from moonpool.protocol.codec import PUSH_ID, REQUEST_ID_MAX, decode_reply, encode
from moonpool.protocol.framing import FRAME_BYTES_MAX, HEADER_BYTES

BUFFER_BYTES = 1 << 16
_peer = struct.Struct("3i")
_length = struct.Struct("<I").unpack_from


class LostAnswerError(MasterUnreachableError):
    """The connection broke after a request was sent: whether it was served is not known."""


class LateAnswerError(DeadlineError):
    """A request was sent and not answered in time: whether it was served is not known."""


class Connection:
    """Used by one thread at a time. After an error it is closed and of no use any more.

    epoch: the master's, as of the greeting; a connection never outlives it.
    """

    def __init__(self, address: tuple[str, int] | str, hello: Hello, timeout_s: float) -> None:
        """Connect and greet. ``address``: host and port, or the name of an abstract Unix socket.

        Raises MasterUnreachableError, NotLeaderError, DeadlineError, VersionMismatchError,
        IllegalClientError.
        """
        self.idle_since = 0.0
        near = isinstance(address, str)
        self._address = str(address) if near else f"{address[0]}:{address[1]}"
        self._next_id = 1
        self._timeout_s = 0.0
        self._buffer = bytearray(BUFFER_BYTES)
        self._view = memoryview(self._buffer)
        self._sock = self._connected(address, timeout_s)
        reply = self.call(hello, timeout_s)
        if not isinstance(reply, Welcome):
            self.close()
            if isinstance(reply, Failed):
                if reply.code == NotLeaderError.code:
                    raise NotLeaderError(reply.text, reply.leader, reply.epoch)
                raise error_for(reply.code, reply.text)
            raise ProtocolError(f"{self._address} answered Hello with {type(reply).__name__}")
        self.welcome = reply
        self.epoch = reply.epoch

    def call(self, request: Request, timeout_s: float) -> Reply:
        """Send a request and return its reply.

        Raises LostAnswerError, LateAnswerError or ProtocolError; then the connection is closed.
        """
        request_id = self._next_id
        self._next_id = request_id % REQUEST_ID_MAX + 1
        try:
            frame = encode(request_id, request)
            self._limit(timeout_s)
            self._sock.sendall(frame)
            reply = self._reply(timeout_s)
            while reply[0] == PUSH_ID:
                reply = self._reply(timeout_s)
            if reply[0] != request_id:
                raise ProtocolError(f"reply {reply[0]} to request {request_id}")
        except OSError as error:
            self.close()
            raise self._told(error, request, timeout_s) from None
        except BaseException:
            self.close()
            raise
        return _no_push(reply[1])

    def send(self, request: Request, timeout_s: float) -> None:
        """Send a request that is not answered."""
        try:
            frame = encode(PUSH_ID, request)
            self._limit(timeout_s)
            self._sock.sendall(frame)
        except OSError as error:
            self.close()
            raise self._told(error, request, timeout_s) from None
        except BaseException:
            self.close()
            raise

    def hand_over(self) -> socket.socket:
        """Return the socket: the caller does all further reading and writing, and closes it."""
        return self._sock

    def alive(self) -> bool:
        """Tell whether the other end is still there, as far as this end was told."""
        try:
            self._sock.recv(1, socket.MSG_PEEK | socket.MSG_DONTWAIT)
        except BlockingIOError:
            return True
        except OSError:
            return False
        return False

    def interrupt(self) -> None:
        """End the connection from another thread; who waits on it is told at once."""
        with contextlib.suppress(OSError):
            self._sock.shutdown(socket.SHUT_RDWR)

    def close(self) -> None:
        """Close the socket."""
        self._sock.close()

    def _connected(self, address: tuple[str, int] | str, timeout_s: float) -> socket.socket:
        try:
            if isinstance(address, str):
                return _connected_locally(address, timeout_s)
            sock = socket.create_connection(address, timeout_s)
        except TimeoutError:
            raise DeadlineError(f"the master at {self._address}: no connection in time") from None
        except OSError as error:
            raise MasterUnreachableError(
                f"the master at {self._address} cannot be reached: {error.strerror or error}"
            ) from None
        sock.settimeout(None)
        sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        return sock

    def _limit(self, timeout_s: float) -> None:
        # The kernel keeps the time: Python's own timeouts cost a poll before every call.
        if timeout_s != self._timeout_s:
            whole = int(timeout_s)
            limit = struct.pack("ll", whole, max(1, int((timeout_s - whole) * 1e6)))
            self._sock.setsockopt(socket.SOL_SOCKET, socket.SO_RCVTIMEO, limit)
            self._sock.setsockopt(socket.SOL_SOCKET, socket.SO_SNDTIMEO, limit)
            self._timeout_s = timeout_s

    def _reply(self, timeout_s: float) -> tuple[int, Reply | Push]:
        buffer, view = self._buffer, self._view
        size = self._sock.recv_into(buffer)
        if size >= HEADER_BYTES and size == HEADER_BYTES + _length(buffer)[0]:
            return decode_reply(view[HEADER_BYTES:size])
        return decode_reply(self._rest(size, time.monotonic() + timeout_s))

    def _rest(self, size: int, deadline: float) -> memoryview:
        """Receive what the first read did not bring of a frame."""
        if size == 0:
            raise ConnectionResetError("it closed the connection")
        while size < HEADER_BYTES:
            size += self._more(self._view[size:], deadline)
        need = HEADER_BYTES + int(_length(self._buffer)[0])
        if not HEADER_BYTES < need <= HEADER_BYTES + FRAME_BYTES_MAX or size > need:
            raise ProtocolError(f"a frame of {need - HEADER_BYTES} bytes, {size} received")
        target = self._view[:need]
        if need > BUFFER_BYTES:
            target = memoryview(bytearray(need))
            target[:size] = self._view[:size]
        while size < need:
            size += self._more(target[size:], deadline)
        return target[HEADER_BYTES:]

    def _more(self, target: memoryview, deadline: float) -> int:
        if time.monotonic() >= deadline:
            raise BlockingIOError
        size = self._sock.recv_into(target)
        if size == 0:
            raise ConnectionResetError("it closed the connection")
        return size

    def _told(self, error: OSError, request: Request, timeout_s: float) -> MasterUnreachableError:
        what = type(request).__name__
        if isinstance(error, BlockingIOError):
            return LateAnswerError(
                f"the master at {self._address} did not answer {what} within {timeout_s:.3g} s"
            )
        reason = error.strerror or error
        return LostAnswerError(f"the master at {self._address} was lost during {what}: {reason}")


def _connected_locally(name: str, timeout_s: float) -> socket.socket:
    """Connect to a Unix socket of this user; another user's may have taken the name over."""
    sock = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
    try:
        sock.settimeout(timeout_s)
        sock.connect(f"\0{name}")
        _, owner, _ = _peer.unpack(
            sock.getsockopt(socket.SOL_SOCKET, socket.SO_PEERCRED, _peer.size)
        )
        if owner != os.getuid():
            raise PermissionError("it is another user's")
        sock.settimeout(None)
    except BaseException:
        sock.close()
        raise
    return sock


def _no_push(reply: Reply | Push) -> Reply:
    return reply  # type: ignore[return-value]  # pushes carry PUSH_ID and were skipped
