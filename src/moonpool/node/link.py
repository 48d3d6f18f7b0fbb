"""One connection to the master: requests answered by id, pushes handed on."""

from __future__ import annotations

import asyncio
import contextlib
import socket
from collections.abc import Callable
from typing import TypeVar

from moonpool.core.messages import Failed, Hello, Message, Push, Reply, Welcome
from moonpool.errors import (
    DeadlineError,
    MoonpoolError,
    NotLeaderError,
    ProtocolError,
    TransferError,
    error_for,
)
from moonpool.protocol.codec import PUSH_ID, REQUEST_ID_MAX, decode_reply, encode
from moonpool.protocol.framing import FrameDecoder
from moonpool.protocol.versions import PROTOCOL_MAX, PROTOCOL_MIN

R = TypeVar("R", bound=Message)

CONNECT_S = 5.0
REQUEST_S = 30.0
READ_BYTES = 256 * 1024


class Link:
    """A session with the master. Errors are MoonpoolError; the link is then of no more use."""

    def __init__(
        self,
        reader: asyncio.StreamReader,
        writer: asyncio.StreamWriter,
        on_push: Callable[[Push], None],
    ) -> None:
        self._reader = reader
        self._writer = writer
        self._on_push = on_push
        self._waiting: dict[int, asyncio.Future[Reply]] = {}
        self._last_id = 0
        self.ended = asyncio.create_task(self._receive())

    @classmethod
    async def open(
        cls,
        host: str,
        port: int,
        hello: Hello,
        on_push: Callable[[Push], None],
        connect_s: float = CONNECT_S,
        greet_s: float = REQUEST_S,
    ) -> tuple[Link, Welcome]:
        """Connect and greet. Raises MoonpoolError, NotLeaderError."""
        try:
            async with asyncio.timeout(connect_s):
                reader, writer = await asyncio.open_connection(host, port)
        except TimeoutError:
            raise DeadlineError(f"no connection to {host}:{port} within {connect_s} s") from None
        except OSError as error:
            raise TransferError(f"{host}:{port}: {error.strerror or error}") from None
        _keep_alive(writer.get_extra_info("socket"))
        link = cls(reader, writer, on_push)
        try:
            return link, await link.request(hello, Welcome, greet_s)
        except BaseException:
            await link.close()
            raise

    async def request(self, message: Message, wanted: type[R], seconds: float = REQUEST_S) -> R:
        """Send a request and return its answer; raise what a Failed stands for."""
        self._last_id = self._last_id % REQUEST_ID_MAX + 1
        number = self._last_id
        answer: asyncio.Future[Reply] = asyncio.get_running_loop().create_future()
        self._waiting[number] = answer
        try:
            # A transport that has closed raises RuntimeError before the receiver knows of its end.
            if self.ended.done() or self._writer.is_closing():
                raise TransferError("the session has ended")
            self._writer.write(encode(number, message))
            async with asyncio.timeout(seconds):
                await self._writer.drain()
                reply = await answer
        except TimeoutError:
            raise DeadlineError(f"no answer to {type(message).__name__}") from None
        except OSError as error:
            raise TransferError(f"the session broke: {error}") from None
        finally:
            self._waiting.pop(number, None)
        if isinstance(reply, Failed):
            if reply.code == NotLeaderError.code:
                raise NotLeaderError(reply.text, reply.leader, reply.epoch)
            raise error_for(reply.code, reply.text)
        if not isinstance(reply, wanted):
            raise ProtocolError(f"{type(reply).__name__} answers {type(message).__name__}")
        return reply

    def abort(self) -> None:
        """End the connection at once; whoever waits for an answer is told."""
        self._writer.transport.abort()

    async def close(self) -> None:
        """End the session."""
        self.ended.cancel()
        with contextlib.suppress(asyncio.CancelledError):
            await self.ended
        self._writer.close()
        with contextlib.suppress(OSError):
            await self._writer.wait_closed()

    async def _receive(self) -> str:
        """Hand on what comes until the connection ends; return why it did."""
        frames = FrameDecoder()
        why = "the master closed the connection"
        try:
            while chunk := await self._reader.read(READ_BYTES):
                for payload in frames.feed(chunk):
                    self._handle(*decode_reply(payload))
        except (OSError, MoonpoolError) as error:
            why = str(error)
        finally:
            for answer in self._waiting.values():
                if not answer.done():
                    answer.set_exception(TransferError(why))
        return why

    def _handle(self, number: int, message: Reply | Push) -> None:
        if isinstance(message, Push):
            if number != PUSH_ID:
                raise ProtocolError("a push with a request's id")
            self._on_push(message)
            return
        answer = self._waiting.get(number)
        if answer is None or answer.done():
            return  # its asker has given up
        answer.set_result(message)


def hello(peer: str, token: str) -> Hello:
    """Return a node's first message."""
    return Hello(PROTOCOL_MIN, PROTOCOL_MAX, "node", peer, token)


def _keep_alive(sock: socket.socket) -> None:
    """Let the system notice within seconds that the other machine is gone."""
    sock.setsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE, 1)
    sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_KEEPIDLE, 5)
    sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_KEEPINTVL, 2)
    sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_KEEPCNT, 3)
