"""A connection to or from a data port: frames and raw memory over a blocking TCP socket.

Memory goes from and to where it lies (sendmsg and recvmsg over arrays of addresses and lengths,
which are arrays of ``struct iovec`` as they are), with the GIL released. Where it is hashed, that
happens right after each step, while the cache has it. Every operation ends by the connection's
deadline.
"""

from __future__ import annotations

import contextlib
import ctypes
import errno
import os
import select
import socket
import struct
import sys
import time
from collections.abc import Callable

import numpy as np
import numpy.typing as npt

from moonpool.errors import DeadlineError, TransferError
from moonpool.protocol import data
from moonpool.protocol.framing import FRAME_BYTES_MAX, HEADER_BYTES
from moonpool.transport import copy, native, streams
from moonpool.transport.base import U64, Pieces

IOVECS_MAX = 1024
WAIT_S_MAX = 3600.0
STEP_BYTES = 256 * 1024
"""Moved and hashed in turn; less than a core's own cache."""
SLICE_S = 0.05
"""The compiled loop comes back this often: for signals, and for the deadline."""
_FRAME_STEP_BYTES = 65_536
_IOVEC_BYTES = 16
_LOOPBACK_CONGESTION = b"reno"
"""In every kernel, and allowed to every process."""
_AGAIN = (errno.EAGAIN, errno.EWOULDBLOCK)
_TCP_INFO_RTT = slice(68, 72)
"""``tcpi_rtt`` in struct tcp_info, in microseconds."""


class _Message(ctypes.Structure):
    """struct msghdr."""

    _fields_ = (
        ("name", ctypes.c_void_p),
        ("name_bytes", ctypes.c_uint32),
        ("iovecs", ctypes.c_void_p),
        ("iovec_count", ctypes.c_size_t),
        ("control", ctypes.c_void_p),
        ("control_bytes", ctypes.c_size_t),
        ("flags", ctypes.c_int),
    )


Iovecs = npt.NDArray[np.uint64]
_Call = Callable[[int, int, int], int]
_signature = ctypes.CFUNCTYPE(
    ctypes.c_ssize_t, ctypes.c_int, ctypes.c_void_p, ctypes.c_int, use_errno=True
)
_sendmsg: _Call = _signature(("sendmsg", native.libc))
_recvmsg: _Call = _signature(("recvmsg", native.libc))
_piece_signature = ctypes.CFUNCTYPE(
    ctypes.c_ssize_t,
    ctypes.c_int,
    ctypes.c_void_p,
    ctypes.c_size_t,
    ctypes.c_int,
    use_errno=True,
)
_PieceCall = Callable[[int, int, int, int], int]
_send: _PieceCall = _piece_signature(("send", native.libc))
_recv: _PieceCall = _piece_signature(("recv", native.libc))


class _Limit:
    """The deadline of one direction of a socket; the kernel keeps it."""

    def __init__(self, sock: socket.socket, option: int) -> None:
        self._socket = sock
        self._option = option
        self._armed_s = 0.0
        self._deadline = time.monotonic() + WAIT_S_MAX

    def within(self, seconds: float) -> None:
        self._deadline = time.monotonic() + min(seconds, WAIT_S_MAX)

    def arm(self) -> None:
        """Let the next system call wait until about the deadline and not longer."""
        left = self._deadline - time.monotonic()
        if left <= 0:
            raise DeadlineError("the peer took too long")
        if 0.8 * self._armed_s <= left <= 1.2 * self._armed_s:
            return
        wait = struct.pack("@ll", *divmod(int(left * 1e6) + 1, 1_000_000))
        try:
            self._socket.setsockopt(socket.SOL_SOCKET, self._option, wait)
        except OSError as error:
            raise _failure(error) from None
        self._armed_s = left

    def slice_ns(self) -> int:
        """Arm; return until when (monotonic clock) that is good for further system calls."""
        self.arm()
        now = time.monotonic()
        return int((now + min(SLICE_S, 0.2 * max(0.0, self._deadline - now))) * 1e9)


def _failure(error: OSError) -> TransferError | DeadlineError:
    if error.errno in _AGAIN:
        return DeadlineError("the peer took too long")
    return TransferError(f"the connection broke: {error.strerror or error}")


def _stays_on_host(sock: socket.socket) -> bool:
    if sock.family not in (socket.AF_INET, socket.AF_INET6):
        return True
    try:
        return bool(sock.getsockname()[0] == sock.getpeername()[0])
    except OSError:  # closed already
        return True


def _unpaced_on_loopback(sock: socket.socket) -> None:
    """Do without pacing where there is no network: BBR, which some systems use for all, halves
    what goes between two processes of one host. Other connections keep the system's choice."""
    if _stays_on_host(sock):
        with contextlib.suppress(OSError):  # closed, or not TCP
            sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_CONGESTION, _LOOPBACK_CONGESTION)


class Wire:
    """One connected socket, used by one thread at a time, or by one that sends and one that
    receives.

    Raises TransferError when the connection broke, DeadlineError, and ProtocolError for what the
    peer sends; after any of them the connection is of no more use.
    """

    def __init__(self, sock: socket.socket) -> None:
        sock.setblocking(True)
        with contextlib.suppress(OSError):  # not TCP
            sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        _unpaced_on_loopback(sock)
        self._socket = sock
        self._sending = _Limit(sock, socket.SO_SNDTIMEO)
        self._receiving = _Limit(sock, socket.SO_RCVTIMEO)

    def within(self, seconds: float) -> None:
        """Set the deadline of all operations from now on."""
        self._sending.within(seconds)
        self._receiving.within(seconds)

    def send_within(self, seconds: float) -> None:
        """Set the deadline of what is sent; one thread may send while another receives."""
        self._sending.within(seconds)

    def receive_within(self, seconds: float) -> None:
        """Set the deadline of what is received."""
        self._receiving.within(seconds)

    def interrupt(self) -> None:
        """Make the operations of other threads on this connection fail."""
        with contextlib.suppress(OSError):
            self._socket.shutdown(socket.SHUT_RDWR)

    def close(self) -> None:
        """Close the connection."""
        self._socket.close()

    def fileno(self) -> int:
        """Return the socket's descriptor, -1 when closed."""
        return self._socket.fileno()

    def round_trip_s(self) -> float:
        """Return the kernel's estimate of a round trip; 0.0 on one host and where it has none."""
        if _stays_on_host(self._socket):
            return 0.0
        try:
            info = self._socket.getsockopt(socket.IPPROTO_TCP, socket.TCP_INFO, 128)
        except OSError:
            return 0.0
        return int.from_bytes(info[_TCP_INFO_RTT], sys.byteorder) / 1e6

    def quiet(self) -> bool:
        """Tell whether the peer has neither closed nor sent anything."""
        return self._socket.fileno() >= 0 and not self._poll(0)

    def wait_for_end(self) -> None:
        """Return when the peer has closed the connection or sends anything; no deadline."""
        self._poll(None)

    def wait_for_data(self, seconds: float) -> bool:
        """Tell whether the peer sends or closes within that time."""
        return self._poll(seconds * 1000)

    def _poll(self, milliseconds: float | None) -> bool:
        poll = select.poll()
        poll.register(self._socket, select.POLLIN | select.POLLRDHUP)
        return bool(poll.poll(milliseconds))

    # --- frames -------------------------------------------------------------------------------

    def send(self, message: data.DataMessage) -> None:
        """Send a control message."""
        left = memoryview(data.encode(message))
        while left:
            self._sending.arm()
            try:
                sent = self._socket.send(left)
            except OSError as error:
                raise _failure(error) from None
            left = left[sent:]

    def receive(self, limit: int = FRAME_BYTES_MAX) -> bytearray:
        """Return the payload of the next frame."""
        return self._exactly(data.frame_bytes(self._exactly(HEADER_BYTES), limit))

    def _exactly(self, nbytes: int) -> bytearray:
        # Grows with what arrives: a length alone must not make anybody reserve memory.
        result = bytearray()
        while len(result) < nbytes:
            step = min(nbytes - len(result), max(_FRAME_STEP_BYTES, len(result)))
            self._receiving.arm()
            try:
                part = self._socket.recv(step, socket.MSG_WAITALL)
            except OSError as error:
                raise _failure(error) from None
            if not part:
                raise TransferError("the peer closed the connection")
            result += part
        return result

    # --- memory -------------------------------------------------------------------------------

    def send_memory(self, iovecs: Iovecs) -> None:
        """Send pieces of memory, in order. ``iovecs`` is changed."""
        self._move(_sendmsg, socket.MSG_NOSIGNAL, iovecs, self._sending)

    def receive_memory(self, iovecs: Iovecs) -> None:
        """Fill pieces of memory, in order. ``iovecs`` is changed."""
        self._move(_recvmsg, socket.MSG_WAITALL, iovecs, self._receiving)

    def send_hashed(self, memory: Pieces) -> U64:
        """Send objects, in order; return xxh3_64 of each, shape (n,)."""
        return self._hashed(memory, receiving=False)

    def receive_hashed(self, memory: Pieces) -> U64:
        """Fill the memory of objects, in order; return xxh3_64 of what each got, shape (n,)."""
        return self._hashed(memory, receiving=True)

    def _hashed(self, memory: Pieces, *, receiving: bool) -> U64:
        memory, sums = copy.coalesce(memory), np.zeros(len(memory), np.uint64)
        kernels = copy.kernels(int(memory.lengths.sum()))
        if kernels is None:
            self._hashed_by_parts(memory, sums, receiving=receiving)
            return sums
        flags = socket.MSG_WAITALL if receiving else socket.MSG_NOSIGNAL
        limit = self._receiving if receiving else self._sending
        move = kernels.Move(iovecs(memory), memory.starts, sums)
        while True:
            result = move.run(receiving, self._socket.fileno(), flags, limit.slice_ns())
            if result == kernels.DONE:
                return sums
            if result == kernels.STOPPED:
                _check(-1 if move.errno else 0, move.errno)

    def _hashed_by_parts(self, memory: Pieces, sums: U64, *, receiving: bool) -> None:
        """As the compiled loop does, but small objects many at once, and large ones of many
        pieces one at once."""
        vectors, starts = iovecs(memory), memory.starts
        for first, last in streams.steps(memory.sizes(), STEP_BYTES):
            a, b = int(starts[first]), int(starts[last])
            if last - first == 1 == b - a:
                address, nbytes = vectors[a].tolist()
                sums[first] = self._hashed_piece(address, nbytes, receiving=receiving)
                continue
            (self.receive_memory if receiving else self.send_memory)(vectors[a:b])
            copy.digest_some(memory, first, last, sums)

    def _hashed_piece(self, address: int, nbytes: int, *, receiving: bool) -> int:
        hasher = native.Hasher()
        limit = self._receiving if receiving else self._sending
        call, flags = (_recv, socket.MSG_WAITALL) if receiving else (_send, socket.MSG_NOSIGNAL)
        while nbytes:
            limit.arm()
            moved = call(self._socket.fileno(), address, min(nbytes, STEP_BYTES), flags)
            if moved <= 0:
                _check(moved, ctypes.get_errno())
                continue
            hasher.update(address, moved)
            address, nbytes = address + moved, nbytes - moved
        return hasher.digest()

    def _move(self, call: _Call, flags: int, iovecs: Iovecs, limit: _Limit) -> None:
        base, at = int(iovecs.ctypes.data), 0
        while at < len(iovecs):
            count = min(len(iovecs) - at, IOVECS_MAX)
            done = np.cumsum(iovecs[at : at + count, 1])
            if not done[-1]:
                at += count
                continue
            message = _Message(iovecs=base + _IOVEC_BYTES * at, iovec_count=count)
            limit.arm()
            moved = call(self._socket.fileno(), ctypes.addressof(message), flags)
            if moved > 0:
                at = _advance(iovecs, at, done, moved)
            else:
                _check(moved, ctypes.get_errno())


def _check(moved: int, code: int) -> None:
    """Raise for a system call that moved nothing, unless it was only interrupted."""
    if moved == 0:
        raise TransferError("the peer closed the connection")
    if code != errno.EINTR:
        raise _failure(OSError(code, os.strerror(code)))


def connect(host: str, port: int, seconds: float) -> Wire:
    """Open a connection; raise TransferError."""
    try:
        return Wire(socket.create_connection((host, port), timeout=seconds))
    except OSError as error:
        raise TransferError(f"{host}:{port}: {error.strerror or error}") from None


def iovecs(memory: Pieces) -> Iovecs:
    """Return pieces as an array of ``struct iovec``, shape (p, 2)."""
    result = np.empty((len(memory.lengths), 2), np.uint64)
    result[:, 0] = memory.addresses
    result[:, 1] = memory.lengths
    return result


def _advance(iovecs: Iovecs, at: int, done: npt.NDArray[np.uint64], moved: int) -> int:
    """Return the first iovec that is not done, shortened by what of it is done."""
    if moved == done[-1]:
        return at + len(done)
    whole = int(np.searchsorted(done, np.uint64(moved), side="right"))
    rest = moved - (int(done[whole - 1]) if whole else 0)
    if rest:
        iovecs[at + whole, 0] += np.uint64(rest)
        iovecs[at + whole, 1] -= np.uint64(rest)
    return at + whole
