"""Waiting for objects that others are about to put: one thread and one connection for all.

Every question is answered exactly once: with what the master says, or with None when it cannot be
reached or does not answer. Who still wants to know asks again.
"""

from __future__ import annotations

import contextlib
import os
import select
import socket
import threading
import time
from collections import deque
from collections.abc import Callable, Sequence

from moonpool.client.connection import Connection
from moonpool.core.messages import Await, Awaited
from moonpool.errors import MoonpoolError, ProtocolError
from moonpool.protocol.codec import REQUEST_ID_MAX, decode_reply, encode
from moonpool.protocol.framing import FrameDecoder
from moonpool.protocol.versions import AWAIT_SINCE

Answer = Callable[[Awaited | None], None]

QUESTIONS_MAX = 8_192
CONNECT_S = 1.0
OVERDUE_S = 5.0
"""How much later than asked for an answer may come before the master is taken for stuck."""
IDLE_S = 60.0
"""A connection that nobody has needed for so long is closed."""
_RECEIVE_BYTES = 1 << 16


class Watcher:
    """Asks questions for any thread. Answers are given on the watcher's own thread."""

    def __init__(self, dial: Callable[[float], Connection]) -> None:
        """dial: makes a connection, within so many seconds; not called before it is needed."""
        self._dial = dial
        self._lock = threading.Lock()
        self._new: deque[tuple[Await, Answer]] = deque()
        self._open: dict[int, tuple[float, Answer]] = {}
        self._ids = 0
        self._sock: socket.socket | None = None
        self._connection: Connection | None = None
        """Kept, since the channel interrupts the connections to a master that leads no more."""
        self._frames = FrameDecoder()
        self._out = bytearray()
        self._wake, self._bell = os.pipe2(os.O_CLOEXEC | os.O_NONBLOCK)
        self._closed = False
        self._thread: threading.Thread | None = None

    def ask(self, keys: Sequence[bytes], transfer: str, wait_s: float, answer: Answer) -> None:
        """Ask; ``answer`` is called once, at the latest some seconds after ``wait_s``."""
        with self._lock:
            refused = self._closed or len(self._new) + len(self._open) >= QUESTIONS_MAX
            if not refused:
                self._new.append((Await(list(keys), transfer, wait_s), answer))
                if self._thread is None:
                    self._thread = threading.Thread(
                        target=self._run, name="moonpool-watch", daemon=True
                    )
                    self._thread.start()
                self._ring()
        if refused:
            answer(None)

    def close(self) -> None:
        """Answer everything with None and stop. Idempotent."""
        with self._lock:
            if self._closed:
                return
            self._closed = True
            thread = self._thread
            self._ring()
        if thread is None:
            self._end()
        elif thread is not threading.current_thread():
            thread.join(2.0)

    def _ring(self) -> None:
        # A full pipe rings already.
        with contextlib.suppress(BlockingIOError):
            os.write(self._bell, b"\0")

    def _run(self) -> None:
        try:
            while not self._closed:
                self._send_new()
                self._turn(self._patience())
                self._give_up_overdue()
        finally:
            with self._lock:
                self._closed = True
            self._end()

    def _end(self) -> None:
        self._lost()
        # Under the lock: nobody rings with a number that is another file's by then.
        with self._lock:
            os.close(self._wake)
            os.close(self._bell)

    def _patience(self) -> float:
        """Return how long to wait for something to happen, in seconds."""
        if not self._open:
            return IDLE_S
        return max(0.0, min(due for due, _ in self._open.values()) - time.monotonic())

    def _send_new(self) -> None:
        while self._new:
            question, answer = self._new.popleft()
            try:
                self._connect()
                self._ids = self._ids % REQUEST_ID_MAX + 1
                self._out += encode(self._ids, question)
            except MoonpoolError:
                answer(None)
                continue
            self._open[self._ids] = time.monotonic() + question.wait_s + OVERDUE_S, answer

    def _connect(self) -> None:
        if self._sock is not None:
            return
        connection = self._dial(CONNECT_S)
        if connection.welcome.version < AWAIT_SINCE:
            connection.close()
            raise ProtocolError("this master cannot be waited for")
        self._connection, self._frames = connection, FrameDecoder()
        self._sock = connection.hand_over()
        self._sock.setblocking(False)
        self._out.clear()

    def _turn(self, wait_s: float) -> None:
        """Wait until something can be read or written, and do it."""
        sock, poll = self._sock, select.poll()
        poll.register(self._wake, select.POLLIN)
        if sock is not None:
            poll.register(sock, select.POLLIN | (select.POLLOUT if self._out else 0))
        events = dict(poll.poll(wait_s * 1000))
        if self._wake in events:
            with contextlib.suppress(BlockingIOError):
                os.read(self._wake, 4096)
        if sock is None:
            return
        event = events.get(sock.fileno(), 0)
        try:
            if event & select.POLLOUT:
                del self._out[: sock.send(self._out)]
            if event & ~select.POLLOUT:
                self._receive(sock)
        except BlockingIOError:
            return
        except (OSError, ProtocolError):
            self._lost()
        if not events and not self._open:
            self._lost()

    def _receive(self, sock: socket.socket) -> None:
        data = sock.recv(_RECEIVE_BYTES)
        if not data:
            raise ConnectionResetError("it closed the connection")
        for payload in self._frames.feed(data):
            request_id, reply = decode_reply(payload)
            asked = self._open.pop(request_id, None)
            if asked is not None:
                asked[1](reply if isinstance(reply, Awaited) else None)

    def _give_up_overdue(self) -> None:
        now = time.monotonic()
        if any(due <= now for due, _ in self._open.values()):
            self._lost()

    def _lost(self) -> None:
        """Close the connection and tell everyone who waits on it."""
        sock, self._sock, self._connection = self._sock, None, None
        if sock is not None:
            sock.close()
        self._out.clear()
        waiting, self._open = self._open, {}
        for _, answer in waiting.values():
            answer(None)
        while self._closed and self._new:
            self._new.popleft()[1](None)
