"""The standard library's ``socket`` and ``select`` over the simulated network."""

from __future__ import annotations

import ctypes
import errno
import os
import socket as real
import struct
from collections import deque
from typing import Any

from tests.sim.world.hub import Thread, hub
from tests.sim.world.network import End, Listener, Network

_net: Network | None = None
_by_fileno: dict[int, Socket] = {}
FILENO_FIRST = 1_000_000
_WAITALL, _PEEK, _DONTWAIT = int(real.MSG_WAITALL), int(real.MSG_PEEK), int(real.MSG_DONTWAIT)


def use(net: Network | None) -> None:
    """Make one the network that sockets are of."""
    global _net
    _net = net
    _by_fileno.clear()


def net() -> Network:
    """Return the network."""
    assert _net is not None
    return _net


class Socket:
    """A socket. Sends never wait: what was sent and not received is the network's to keep."""

    def __init__(self, family: int = real.AF_INET, kind: int = real.SOCK_STREAM) -> None:
        self.family = family
        self._end: End | None = None
        self._buffer = bytearray()
        self._over: str | None = None
        self._shut = False
        self._closed = False
        self._timeout: float | None = None
        self._receive_s: float | None = None
        self._waiting: list[Thread] = []
        self._listener: Listener | None = None
        self.backlog: deque[End] = deque()
        self._fileno = FILENO_FIRST + hub().number()
        _by_fileno[self._fileno] = self

    # --- what arrives -------------------------------------------------------------------------

    def of(self, end: End) -> Socket:
        """Be this end."""
        self._end, end.reader = end, self
        return self

    def arrived(self, data: bytes) -> None:
        self._buffer += data
        self._wake()

    def ended(self, error: str) -> None:
        if self._over is None:
            self._over = error
        self._wake()

    def _wake(self) -> None:
        waiting, self._waiting = self._waiting, []
        for each in waiting:
            hub().wake(each)

    def ready(self) -> bool:
        return bool(self._buffer or self.backlog) or self._over is not None or self._shut

    def wait_ready(self, seconds: float | None) -> bool:
        """Wait until there is something to receive."""
        running = hub()
        until = None if seconds is None else running.now + seconds
        while not self.ready():
            left = None if until is None else until - running.now
            if left is not None and left <= 0:
                return False
            assert running.thread is not None
            self._waiting.append(running.thread)
            if not running.park(left) and running.thread in self._waiting:
                self._waiting.remove(running.thread)
            if self._closed:
                raise OSError(errno.EBADF, "Bad file descriptor")
        return True

    # --- the verbs ----------------------------------------------------------------------------

    def _check(self) -> None:
        if self._closed:
            raise OSError(errno.EBADF, "Bad file descriptor")

    def recv(self, nbytes: int, flags: int = 0) -> bytes:
        self._check()
        flags = int(flags)
        wanted = nbytes if flags & _WAITALL else 1
        if flags & _DONTWAIT and not self.ready():
            raise BlockingIOError(errno.EAGAIN, "Resource temporarily unavailable")
        while len(self._buffer) < wanted and self._over is None and not self._shut:
            self._await_more()
        if not self._buffer and self._over:
            raise ConnectionResetError(errno.ECONNRESET, self._over)
        data = bytes(self._buffer[:nbytes])
        if not flags & _PEEK:
            del self._buffer[:nbytes]
        return data

    def _await_more(self) -> None:
        limit = self._timeout if self._timeout is not None else self._receive_s
        running = hub()
        assert running.thread is not None
        self._waiting.append(running.thread)
        if not running.park(limit):
            if running.thread in self._waiting:
                self._waiting.remove(running.thread)
            if self._timeout is not None:
                raise TimeoutError("timed out")
            raise BlockingIOError(errno.EAGAIN, "Resource temporarily unavailable")
        self._check()

    def recv_into(self, target: Any) -> int:
        data = self.recv(len(target))
        target[: len(data)] = data
        return len(data)

    def send(self, data: Any) -> int:
        self._check()
        if self._over:
            raise ConnectionResetError(errno.ECONNRESET, self._over)
        if self._end is None or self._shut:
            raise BrokenPipeError(errno.EPIPE, "Broken pipe")
        raw = bytes(data)
        self._end.send(raw)
        return len(raw)

    def sendall(self, data: Any) -> None:
        self.send(data)

    def connect(self, address: Any) -> None:
        where = (address, 0) if isinstance(address, str) else address
        running = hub()
        me = running.thread
        assert me is not None
        assert running.process is not None
        found: list[Any] = []
        given_up: list[bool] = []

        def done(end: End | None, why: str) -> None:
            if given_up:
                if end is not None:
                    end.close()
                return
            found.append((end, why))
            if end is not None:
                self.of(end)
            running.wake(me)

        net().connect(running.process, where, done)
        if not running.park(self._timeout):
            given_up.append(True)
            self.close()
            raise TimeoutError("timed out")
        end, why = found[0]
        if end is None:
            raise ConnectionRefusedError(errno.ECONNREFUSED, why)

    def bind(self, address: Any) -> None:
        where = (address, 0) if isinstance(address, str) else address
        process = hub().process
        assert process is not None
        if where in net().listeners:
            raise OSError(errno.EADDRINUSE, "Address already in use")
        self._listener = Listener(net(), process, where, self._came)

    def listen(self, backlog: int = 0) -> None:
        pass

    def _came(self, end: End) -> None:
        if self._closed:
            end.reset()
            end.peer.reset()
            return
        end.reader = Early(end)
        self.backlog.append(end)
        self._wake()

    def accept(self) -> tuple[Socket, tuple[str, int]]:
        self._check()
        if not self.backlog:
            self.wait_ready(None)
        if self._shut or not self.backlog:
            raise OSError(errno.EINVAL, "Invalid argument")
        end = self.backlog.popleft()
        sock = Socket()
        early = end.reader
        sock.of(end)
        if isinstance(early, Early):
            early.replay(sock)
        return sock, end.peer.address

    def shutdown(self, _how: int) -> None:
        self._check()
        self._shut = True
        if self._end is not None:
            self._end.finish()
        self._wake()

    def close(self) -> None:
        if self._closed or hub().ending:
            return
        self._closed = True
        _by_fileno.pop(self._fileno, None)
        if self._end is not None:
            self._end.close()
        if self._listener is not None:
            self._listener.close()
        self._wake()

    # --- options ------------------------------------------------------------------------------

    def settimeout(self, seconds: float | None) -> None:
        self._timeout = seconds

    def setblocking(self, blocking: bool) -> None:
        self._timeout = None if blocking else 0.0

    def setsockopt(self, _level: int, option: int, value: Any) -> None:
        self._check()
        if option == real.SO_RCVTIMEO:
            seconds, micros = struct.unpack("ll", value)
            self._receive_s = seconds + micros / 1e6

    def getsockopt(self, _level: int, option: int, _size: int = 0) -> Any:
        if option == real.SO_PEERCRED:
            return struct.pack("3i", 1, os.getuid(), 1)
        return b"\0" * 128

    def getsockname(self) -> Any:
        if self._listener is not None:
            where = self._listener.address
            return where[0].encode() if self.family == real.AF_UNIX else where
        if self._end is None:
            raise OSError(errno.ENOTCONN, "not connected")
        return self._end.address

    def getpeername(self) -> Any:
        if self._end is None:
            raise OSError(errno.ENOTCONN, "not connected")
        return self._end.peer.address

    def fileno(self) -> int:
        return -1 if self._closed else self._fileno


class Early:
    """Keeps what comes before a connection was accepted."""

    def __init__(self, end: End) -> None:
        self._end = end
        self._kept: list[tuple[str, Any]] = []

    def arrived(self, data: bytes) -> None:
        self._kept.append(("arrived", data))

    def ended(self, error: str) -> None:
        self._kept.append(("ended", error))

    def replay(self, reader: Any) -> None:
        for verb, what in self._kept:
            getattr(reader, verb)(what)


class SocketModule:
    """In the place of the module ``socket``."""

    socket = Socket

    def __getattr__(self, name: str) -> Any:
        return getattr(real, name)

    def create_connection(self, address: tuple[str, int], timeout: float | None = None) -> Socket:
        sock = Socket()
        sock.settimeout(timeout)
        sock.connect(tuple(address))
        sock.settimeout(None)
        return sock

    def create_server(self, address: tuple[str, int], **_options: Any) -> Socket:
        sock = Socket()
        host, port = address
        sock.bind((host, port or 20_000 + hub().number()))
        return sock

    def getaddrinfo(self, _host: str, _port: int, **_options: Any) -> Any:
        return [(real.AF_INET,)]

    def gethostname(self) -> str:
        process = hub().process
        return "" if process is None else process.host


class _Poll:
    def __init__(self) -> None:
        self._sock: Any = None

    def register(self, sock: Any, _mask: int) -> None:
        if sock.fileno() < 0:
            raise ValueError("closed")
        self._sock = sock

    def poll(self, milliseconds: float | None = None) -> list[int]:
        seconds = None if milliseconds is None else milliseconds / 1000
        if seconds == 0:
            return [1] if self._sock.ready() else []
        try:
            return [1] if self._sock.wait_ready(seconds) else []
        except OSError:
            return [1]


class SelectModule:
    """In the place of the module ``select``."""

    poll = _Poll
    POLLIN, POLLRDHUP = 1, 0x2000


# --- what the data port's code does with descriptors and addresses ------------------------------


class _Iovec(ctypes.Structure):
    _fields_ = (("base", ctypes.c_uint64), ("length", ctypes.c_uint64))


def send_memory(fileno: int, address: int, nbytes: int, _flags: int) -> int:
    """As send(2)."""
    return _sent(fileno, ctypes.string_at(address, nbytes))


def receive_memory(fileno: int, address: int, nbytes: int, _flags: int) -> int:
    """As recv(2) with MSG_WAITALL."""
    data = _received(fileno, nbytes)
    if data is None:
        return -1
    ctypes.memmove(address, data, len(data))
    return len(data)


def send_message(fileno: int, message: int, _flags: int) -> int:
    """As sendmsg(2)."""
    parts = _iovecs(message)
    return _sent(fileno, b"".join(ctypes.string_at(base, length) for base, length in parts))


def receive_message(fileno: int, message: int, _flags: int) -> int:
    """As recvmsg(2) with MSG_WAITALL."""
    parts = _iovecs(message)
    data = _received(fileno, sum(length for _, length in parts))
    if data is None:
        return -1
    at = 0
    for base, length in parts:
        piece = data[at : at + length]
        ctypes.memmove(base, piece, len(piece))
        at += len(piece)
    return len(data)


def _iovecs(message: int) -> list[tuple[int, int]]:
    where = ctypes.c_uint64.from_address(message + 16).value
    count = ctypes.c_uint64.from_address(message + 24).value
    found = (_Iovec * count).from_address(where)
    return [(each.base, each.length) for each in found]


def _sent(fileno: int, data: bytes) -> int:
    sock = _by_fileno.get(fileno)
    if sock is None:
        ctypes.set_errno(errno.EBADF)
        return -1
    try:
        return sock.send(data)
    except OSError as error:
        ctypes.set_errno(error.errno or errno.EIO)
        return -1


def _received(fileno: int, nbytes: int) -> bytes | None:
    sock = _by_fileno.get(fileno)
    if sock is None:
        ctypes.set_errno(errno.EBADF)
        return None
    try:
        return sock.recv(nbytes, _WAITALL)
    except OSError as error:
        ctypes.set_errno(error.errno or errno.EIO)
        return None
