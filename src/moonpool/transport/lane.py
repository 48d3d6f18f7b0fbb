"""One connection that several threads use one behind the other, without a pause between them.

A request is sent while the replies to earlier ones are still on their way: on a long way a
connection would otherwise stand still for a round trip after each. The peer answers in order.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Callable
from types import TracebackType

from moonpool.errors import DeadlineError, TransferError
from moonpool.transport.wire import Wire


class Lane:
    """A connection and who may send and receive on it. ``users`` and ``alone`` are the pool's."""

    def __init__(self, wire: Wire) -> None:
        self.wire = wire
        self.users = 0
        self.alone = False
        self.broken = False
        self._turn = threading.Condition()
        self._sending = False
        self._begun = 0
        self._ended = 0

    def fail(self) -> None:
        """Make all that use the connection, or wait for it, fail."""
        with self._turn:
            self.broken = True
            self.wire.interrupt()
            self._turn.notify_all()

    def begin(self, seconds: float) -> int:
        """Wait until nobody sends; return the ticket of the one that may send now."""
        with self._turn:
            self._wait(lambda: not self._sending, seconds)
            self._sending = True
            self._begun += 1
            return self._begun

    def sent(self, ticket: int, seconds: float) -> None:
        """Let the next one send; wait until all before have received."""
        with self._turn:
            self._sending = False
            self._turn.notify_all()
            self._wait(lambda: self._ended == ticket - 1, seconds)

    def end(self, ticket: int) -> None:
        """Let the next one receive."""
        with self._turn:
            self._ended = ticket
            self._turn.notify_all()

    def _wait(self, ready: Callable[[], bool], seconds: float) -> None:
        deadline = time.monotonic() + seconds
        while not self.broken and not ready():
            left = deadline - time.monotonic()
            if left <= 0:
                raise DeadlineError("the requests before this one took too long")
            self._turn.wait(left)
        if self.broken:
            raise TransferError("a request before this one broke the connection")


class Exchange:
    """One request and its reply: a ``with`` block that begins when the request may be sent.

    allowed_s: for what the request itself sends, and again for what it receives; wait_s: for those
    before it. An exception inside breaks the lane.
    """

    def __init__(self, lane: Lane, allowed_s: float, wait_s: float) -> None:
        self.wire = lane.wire
        self._lane = lane
        self._allowed_s = allowed_s
        self._wait_s = wait_s
        self._ticket = 0

    def __enter__(self) -> Exchange:
        self._ticket = self._lane.begin(self._wait_s)
        self.wire.send_within(self._allowed_s)
        return self

    def sent(self) -> Wire:
        """Say that the request is sent; return the connection when the reply is next on it."""
        self._lane.sent(self._ticket, self._wait_s)
        self.wire.receive_within(self._allowed_s)
        return self.wire

    def __exit__(
        self,
        kind: type[BaseException] | None,
        _error: BaseException | None,
        _trace: TracebackType | None,
    ) -> None:
        if kind is None:
            self._lane.end(self._ticket)
        else:
            self._lane.fail()
