"""An open load of chats over HTTP: requests leave when their time has come, whatever answers do."""

from __future__ import annotations

import asyncio
import random
import time
from collections import deque
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import cast

from moonpool.bench.router_chats import Asking
from moonpool.bench.router_engine import expected
from moonpool.bench.router_wire import Reader, WireError

DRAIN_S = 60.0
# Below the shortest keep-alive of what is measured.
KEPT_S = 2.0


@dataclass(slots=True)
class Taken:
    """What came of a load. first_s, whole_s: from the moment a request was due to the answer's
    first byte and its end. failures: what went wrong, by text. late_s: how late the load's own
    process sent requests, at most."""

    first_s: list[float] = field(default_factory=list)
    whole_s: list[float] = field(default_factory=list)
    new: list[bool] = field(default_factory=list)
    failures: dict[str, int] = field(default_factory=dict)
    late_s: list[float] = field(default_factory=list)

    def fail(self, why: str) -> None:
        """Count a failure."""
        self.failures[why] = self.failures.get(why, 0) + 1


class _Call(asyncio.Protocol):
    """A connection, used for one request after the other."""

    def __init__(self) -> None:
        self.transport: asyncio.Transport | None = None
        self.used_at = 0.0
        self._reader = Reader()
        self._done: asyncio.Future[Reader] | None = None
        self.first_at = 0.0

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self.transport = cast("asyncio.Transport", transport)

    def connection_lost(self, exc: Exception | None) -> None:
        self.transport = None
        if self._done is not None and not self._done.done():
            self._done.set_exception(ConnectionResetError(str(exc or "closed")))

    def data_received(self, data: bytes) -> None:
        reader, done = self._reader, self._done
        if done is None or done.done():
            return
        try:
            reader.feed(data)
        except (WireError, ValueError) as error:
            done.set_exception(WireError(str(error)))
            return
        if reader.body and not self.first_at:
            self.first_at = time.perf_counter()
        if reader.done:
            done.set_result(reader)

    async def ask(self, request: bytes, timeout_s: float) -> Reader:
        self._reader, self.first_at = Reader(), 0.0
        self._done = asyncio.get_running_loop().create_future()
        assert self.transport is not None
        self.transport.write(request)
        return await asyncio.wait_for(self._done, timeout_s)


class Load:
    """Sends to one address, over as many connections as are needed at a time."""

    def __init__(self, host: str, port: int, timeout_s: float = DRAIN_S) -> None:
        self._host, self._port, self._timeout_s = host, port, timeout_s
        self._idle: deque[_Call] = deque()
        self.taken = Taken()

    async def run(self, asked: Sequence[Asking], per_s: float, seed: int) -> Taken:
        """Send all requests, so many a second with random distances; wait for their answers."""
        chance = random.Random(seed)
        due = time.perf_counter() + 0.05
        tasks = []
        for each in asked:
            due += chance.expovariate(per_s)
            await self._until(due)
            tasks.append(asyncio.create_task(self.one(each, due)))
        await asyncio.gather(*tasks)
        self.close()
        return self.taken

    async def _until(self, due: float) -> None:
        wait = due - time.perf_counter()
        if wait > 0:
            await asyncio.sleep(wait)

    def close(self) -> None:
        """Close the idle connections."""
        while self._idle:
            transport = self._idle.popleft().transport
            if transport is not None:
                transport.close()

    async def one(self, asked: Asking, due: float) -> None:
        """Send a request, and compare every byte of its answer."""
        taken = self.taken
        try:
            call = await self._connection()
            taken.late_s.append(time.perf_counter() - due)
            answer = await call.ask(self._request(asked), self._timeout_s)
        except (OSError, WireError, TimeoutError) as error:
            taken.fail(f"{type(error).__name__} {error}"[:80])
            return
        now = call.used_at = time.perf_counter()
        self._idle.append(call)
        if " 200 " not in answer.start + " ":
            taken.fail(f"{answer.start}: {bytes(answer.body[:120])!r}")
        elif not same(bytes(answer.body), asked):
            taken.fail("other bytes than the engine sent")
        else:
            taken.first_s.append(call.first_at - due)
            taken.whole_s.append(now - due)
            taken.new.append(asked.first)

    async def _connection(self) -> _Call:
        now = time.perf_counter()
        while self._idle:
            call = self._idle.pop()
            if call.transport is not None and not call.transport.is_closing():
                if now - call.used_at < KEPT_S:
                    return call
                call.transport.close()
        loop = asyncio.get_running_loop()
        _, call = await loop.create_connection(_Call, self._host, self._port)
        return call

    def _request(self, asked: Asking) -> bytes:
        return (
            f"POST /v1/chat/completions HTTP/1.1\r\nHost: {self._host}:{self._port}\r\n"
            "Content-Type: application/json\r\nAccept: */*\r\nUser-Agent: bench\r\n"
            f"Content-Length: {len(asked.body)}\r\n\r\n"
        ).encode() + asked.body


def same(body: bytes, asked: Asking) -> bool:
    """Return whether an answer is, byte for byte, the one to this request."""
    tokens = body.count(b'"delta"')
    return body == expected(asked.user, tokens) and tokens > 0
