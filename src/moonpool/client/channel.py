"""How a client talks to the master: a few connections, shared by its threads.

A call never waits longer than its deadline, and while the master is known to be down it does not
wait at all: one background thread looks for the master until it is back.
"""

from __future__ import annotations

import contextlib
import os
import random
import threading
import time
import weakref
from typing import Protocol

from moonpool.client.board import Board, board_of
from moonpool.client.connection import Connection, LostAnswerError
from moonpool.client.following import Watch
from moonpool.config_ha import address_text
from moonpool.core.messages import (
    Exists,
    Failed,
    Get,
    GetChanges,
    GetKeys,
    GetSegments,
    GetStatus,
    Hello,
    Hold,
    List,
    Match,
    MatchKeys,
    Reply,
    Request,
    Stat,
    Tell,
)
from moonpool.errors import (
    DeadlineError,
    MasterUnreachableError,
    MoonpoolError,
    ProtocolError,
    error_for,
)
from moonpool.ha.seeker import Seeker
from moonpool.protocol.versions import PROTOCOL_MAX, PROTOCOL_MIN

CONNECT_TIMEOUT_S = 1.0
RETRY_MIN_S = 0.05
RETRY_MAX_S = 1.0
FOLLOW_RETRY_MAX_S = 0.2
"""The same where another master may lead any moment."""
TRUSTED_IDLE_S = 0.05
"""A connection that was idle for longer is looked at before it is used."""

REPEATABLE = frozenset(
    {Match, MatchKeys, Exists, Get, Hold, List, Stat, GetStatus, GetSegments, GetChanges, GetKeys}
    | {Tell},
)
"""Requests that may be sent twice."""


_forks = 0
"""How often this process's line has forked: a child must not use its parent's connections."""


def _forked() -> None:
    global _forks
    _forks += 1


os.register_at_fork(after_in_child=_forked)


def _deposed(connection: Connection) -> LostAnswerError:
    """Return why the answer on a connection does not count."""
    connection.close()
    return LostAnswerError(f"a master of epoch {connection.epoch} answered, which leads no more")


class Channel(Protocol):
    """A way to a master."""

    def call(self, request: Request, timeout_s: float | None = None) -> Reply:
        """Return the reply, or raise MasterUnreachableError, DeadlineError, or a Failed's error."""
        ...

    def ask(self, request: Request, timeout_s: float | None = None) -> tuple[Reply, int]:
        """Return the reply and the epoch of the master that gave it."""
        ...

    def send_only(self, request: Request) -> None:
        """Send a request that is not answered; never raises for a master that is away."""
        ...

    @property
    def version(self) -> int:
        """The protocol version spoken with the master last connected to."""
        ...

    @property
    def kv_lease_s(self) -> float:
        """What that master said in Welcome of the same name."""
        ...

    def dedicated(self, timeout_s: float) -> Connection:
        """Return a new connection that is the caller's alone, or raise why there is none."""
        ...

    def board(self) -> Board | None:
        """Return the table in which this host's clients look objects up, if it can be believed."""
        ...

    def close(self) -> None:
        """Give up all connections."""
        ...


class SocketChannel:
    """A master in another process. Threads may share it."""

    def __init__(
        self,
        address: tuple[str, int] | Seeker,
        peer: str,
        *,
        role: str = "client",
        token: str = "",
        timeout_s: float = 5.0,
        connections: int = 4,
        retry_max_s: float = RETRY_MAX_S,
    ) -> None:
        self.peer = peer
        self.timeout_s = timeout_s
        self.version = 0
        self.kv_lease_s = 10.0
        self._seeker = address if isinstance(address, Seeker) else Seeker(address_text(*address))
        self._watch = Watch(self.dedicated, self._mark_down)
        self._all: weakref.WeakSet[Connection] = weakref.WeakSet()
        self._hello = Hello(PROTOCOL_MIN, PROTOCOL_MAX, role, peer, token)
        self._retry_max_s = retry_max_s
        self._forks = _forks
        self._idle: list[Connection] = []
        self._free = threading.Condition()
        self._waiting = 0
        self._open = 0
        self._open_max = connections
        self._down: MoonpoolError | None = None
        self._board: Board | None = None
        self._closed = threading.Event()

    def connect(self) -> None:
        """Make sure that the master answers, or raise why not."""
        self._give(self._take(self.timeout_s))

    def connect_later(self) -> None:
        """Look for the master in the background; calls fail at once until it is there."""
        self._mark_down(MasterUnreachableError("the master has not been reached yet"))

    @property
    def down(self) -> bool:
        """Whether calls fail at once because the master is known to be away."""
        return self._down is not None

    def call(self, request: Request, timeout_s: float | None = None) -> Reply:
        """Return the reply, or raise MasterUnreachableError, DeadlineError, or a Failed's error."""
        return self.ask(request, timeout_s)[0]

    def ask(self, request: Request, timeout_s: float | None = None) -> tuple[Reply, int]:
        """Return the reply and the epoch of the master that gave it; raise as ``call`` does.

        Only requests that change nothing are sent again after a connection broke.
        """
        limit = self.timeout_s if timeout_s is None else timeout_s
        connection = self._take(limit)
        try:
            reply = connection.call(request, limit)
            if connection.epoch < self._seeker.epoch:
                raise _deposed(connection)
        except BaseException as error:
            self._lost(error, limit)
            if type(request) not in REPEATABLE or type(error) is not LostAnswerError:
                raise
            reply, connection = self._again(request, limit)
        self._give(connection)
        if type(reply) is Failed:
            raise error_for(reply.code, reply.text)
        return reply, connection.epoch

    def send_only(self, request: Request) -> None:
        """Send a request that is not answered; never raises for a master that is away."""
        try:
            connection = self._take(self.timeout_s)
        except MasterUnreachableError:
            return
        try:
            connection.send(request, self.timeout_s)
        except MasterUnreachableError as error:
            self._lost(error, self.timeout_s)
            return
        except BaseException as error:
            self._lost(error, self.timeout_s)
            raise
        self._give(connection)

    def dedicated(self, timeout_s: float) -> Connection:
        """Return a new connection that is the caller's alone, or raise why there is none."""
        if self._closed.is_set() or self._down is not None or self._forks != _forks:
            raise self._why_not()
        return self._dial(timeout_s)

    def board(self) -> Board | None:
        """Return the master's table, if there is one on this host and the master is not known to
        be away. A frozen master is noticed by the table itself."""
        board = self._board
        if board is None or board.lost or self._down is not None or self._forks != _forks:
            return None
        try:
            connection = self._idle[-1]
        except IndexError:
            return board
        return board if connection.epoch == board.epoch and connection.alive() else None

    def close(self) -> None:
        """Give up all connections; calls fail from now on."""
        self._closed.set()
        self._watch.stop()
        self._board = None
        with self._free:
            self._down = MasterUnreachableError("the store is closed")
            self._drop_idle()
            self._free.notify_all()

    def _again(self, request: Request, limit: float) -> tuple[Reply, Connection]:
        connection = self._take(limit)
        try:
            return connection.call(request, limit), connection
        except BaseException as error:
            self._lost(error, limit)
            if type(error) is LostAnswerError:
                self._mark_down(error)
            raise

    # --- the pool -----------------------------------------------------------------------------

    def _take(self, limit: float) -> Connection:
        """Return a connection that was just alive."""
        if self._down is not None or self._forks != _forks:
            raise self._why_not()
        try:
            connection = self._idle.pop()
        except IndexError:
            connection = self._take_slowly(time.monotonic() + limit)
        trusted = time.monotonic() - connection.idle_since < TRUSTED_IDLE_S or connection.alive()
        if trusted and connection.epoch >= self._seeker.epoch:
            return connection
        connection.close()
        self._lost(ConnectionResetError(), limit)
        return self._connected(limit) if self._reserve() else self._take(limit)

    def _take_slowly(self, deadline: float) -> Connection:
        while not self._reserve():
            with self._free:
                self._waiting += 1
                try:
                    if self._idle:
                        return self._idle.pop()
                    left = deadline - time.monotonic()
                    if left <= 0 or not self._free.wait(left):
                        raise DeadlineError(
                            f"{self._open_max} connections to the master are all in use"
                        )
                    if self._idle:
                        return self._idle.pop()
                finally:
                    self._waiting -= 1
            if self._down is not None:
                raise self._why_not()
        return self._connected(deadline - time.monotonic())

    def _reserve(self) -> bool:
        with self._free:
            if self._open >= self._open_max:
                return False
            self._open += 1
            return True

    def _connected(self, limit: float) -> Connection:
        """Make a connection for which there is a place."""
        try:
            connection = self._dial(max(0.001, min(limit, CONNECT_TIMEOUT_S)))
        except BaseException as error:
            self._left()
            if isinstance(error, MasterUnreachableError | ProtocolError):
                self._mark_down(error)
            raise
        connection.idle_since = time.monotonic()
        return connection

    def _dial(self, timeout_s: float) -> Connection:
        """Connect to the master, by its Unix socket if that leads to the same one."""
        seeker = self._seeker
        connection = seeker.reach(
            lambda where: Connection(where, self._hello, seeker.patience_s(where, timeout_s)),
            timeout_s,
        )
        if seeker.follows:
            self._watch.start()
            self._remember(connection)
        self.version = connection.welcome.version
        self.kv_lease_s = connection.welcome.kv_lease_s
        self._see_board(connection)
        offer, board = connection.welcome, self._board
        if not offer.local or board is None or board.cookie != offer.board_cookie:
            return connection
        try:
            near = Connection(offer.local, self._hello, timeout_s)
        except (MoonpoolError, ValueError):
            return connection
        if (near.epoch, near.welcome.board_cookie) != (connection.epoch, board.cookie):
            near, connection = connection, near
        connection.close()
        if seeker.follows:
            self._remember(near)
        return near

    def _remember(self, connection: Connection) -> None:
        with self._free:
            self._all.add(connection)

    def _see_board(self, connection: Connection) -> None:
        offer, known = connection.welcome, self._board
        if known is None or known.lost or known.cookie != offer.board_cookie:
            self._board = board_of(offer)

    def _give(self, connection: Connection) -> None:
        if self._closed.is_set():
            connection.close()
            self._left()
            return
        connection.idle_since = time.monotonic()
        self._idle.append(connection)
        if self._waiting:
            with self._free:
                self._free.notify()

    def _left(self) -> None:
        with self._free:
            self._open -= 1
            self._free.notify()

    def _lost(self, error: BaseException, limit: float) -> None:
        """A connection is closed; what was idle beside it has probably ended with it."""
        self._left()
        if isinstance(error, OSError | MasterUnreachableError) and not isinstance(
            error, DeadlineError
        ):
            with self._free:
                self._drop_idle()
        elif isinstance(error, DeadlineError) and limit >= self.timeout_s:
            self._mark_down(error)

    def _drop_idle(self) -> None:
        with contextlib.suppress(IndexError):
            while True:
                self._idle.pop().close()
                self._open -= 1

    # --- a master that is away ----------------------------------------------------------------

    def _why_not(self) -> MoonpoolError:
        if self._closed.is_set():
            return MasterUnreachableError("the store is closed")
        if self._forks != _forks:
            return MasterUnreachableError("the store belongs to another process; connect here too")
        return MasterUnreachableError(f"{self._down}; looking for it in the background")

    def _mark_down(self, error: MoonpoolError) -> None:
        with self._free:
            if self._down is not None or self._closed.is_set():
                return
            self._down = error
            self._drop_idle()
            self._free.notify_all()
            waiting = list(self._all)
        self._seeker.lost()
        for connection in waiting:
            connection.interrupt()  # what waits for a leader that was lost need not wait on
        threading.Thread(target=self._look, name="moonpool-look", daemon=True).start()

    def _look(self) -> None:
        """Try to reach the master until it answers."""
        pause = RETRY_MIN_S
        wait = 0.0
        while not self._closed.wait(wait):
            longest = FOLLOW_RETRY_MAX_S if self._seeker.follows else self._retry_max_s
            wait, pause = pause * random.uniform(0.8, 1.2), min(2 * pause, longest)
            try:
                connection = self._dial(CONNECT_TIMEOUT_S)
            except MoonpoolError as error:
                with self._free:
                    if not self._closed.is_set():
                        self._down = error
                continue
            with self._free:
                self._open += 1
                if not self._closed.is_set():
                    self._down = None
            self._give(connection)
            return
