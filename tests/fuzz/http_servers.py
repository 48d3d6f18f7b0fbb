"""Whole requests to servers: the master's HTTP side, and a router before an engine."""

from __future__ import annotations

import asyncio
import random
from contextlib import AsyncExitStack
from typing import Any

import aiohttp
from aiohttp import web

from moonpool.master.http import HttpSession
from moonpool.master.pages import pages_of
from moonpool.router.front import Front
from moonpool.router.options import Options
from moonpool.router.service import listen, serving
from tests.fuzz import mutate
from tests.fuzz.http_bodies import GOOD, INSTANCE, PATHS, body_of
from tests.fuzz.target import REFUSED, TAKEN, Target, require
from tests.unit.master.peers import Peer, Pipe, mount, new_service, put
from tests.unit.router.upstream import serving_app

HEADS = (
    b"GET /metrics HTTP/1.1\r\nHost: x\r\n\r\n",
    b"GET /status?a=b&c=%41 HTTP/1.1\r\nAuthorization: Bearer t\r\n\r\n",
    b"POST /health HTTP/1.1\r\nContent-Length: 3\r\n\r\nabc",
    b"GET /query_key?key=a HTTP/1.1\r\nContent-Length: " + b"9" * 4500 + b"\r\n\r\n",
    b"HEAD /get_all_keys HTTP/1.1\r\nA: " + b"x" * 900 + b"\r\n\r\n",
)


class MasterHttp(Target):
    """Bytes to the master's HTTP port."""

    name = "master's HTTP"
    share = 4.0
    episode = 100

    def begin(self) -> None:
        self._loop = asyncio.new_event_loop()
        self._service = new_service()
        node, client = Peer(self._service, "n1", "node"), Peer(self._service, "c1")
        mount(node)
        for i in range(8):
            put(client, b"\0key-%d" % i)
        self._pages = pages_of(self._service)
        paths = [path.encode() for path in self._pages]
        heads = [b"%b %b?key=key-1&key= HTTP/1.1\r\nContent-Length: 4\r\n\r\n{}  " % (way, path)
                 for path in paths for way in (b"GET", b"PUT", b"DELETE", b"POST")]  # fmt: skip
        self._heads = [*HEADS, *heads]

    def take(self, chance: random.Random) -> str:
        raw = chance.choice(self._heads)
        if chance.random() < 0.85:
            raw = mutate.bytes_of(chance, raw)
        sent = self._loop.run_until_complete(self._answer(chance, raw))
        return TAKEN if sent.startswith(b"HTTP/1.1 2") else REFUSED

    async def _answer(self, chance: random.Random, raw: bytes) -> bytes:
        pipe = Pipe()
        session = HttpSession(self._pages)
        session.connection_made(pipe)
        cut = chance.randrange(len(raw) + 1)
        for part in (raw[:cut], raw[cut:]):
            session.data_received(part)
        for _ in range(20):
            if pipe.closed:
                break
            await asyncio.sleep(0)
        session.connection_lost(None)
        sent = bytes(pipe.sent)
        require(not sent or sent.startswith(b"HTTP/1.1 "), f"an answer: {sent[:40]!r}")
        return sent

    def end(self) -> None:
        self._service.state.validate_state()
        self._loop.close()


class RouterHttp(Target):
    """Requests to a router that listens, with an engine behind it."""

    name = "router's HTTP"
    share = 0.6
    episode = 200

    def begin(self) -> None:
        self._loop = asyncio.new_event_loop()
        self._stack = AsyncExitStack()
        self._statuses: set[int] = set()
        self._loop.run_until_complete(self._start())

    async def _start(self) -> None:
        app = web.Application(client_max_size=1 << 30)
        app.router.add_post("/{any:.*}", _engine)
        url = await self._stack.enter_async_context(serving_app(app))
        self._front = Front([url], options=Options(admin_key="key"))
        sock = listen("port", "127.0.0.1", 0)
        await self._stack.enter_async_context(serving(self._front, sock))
        self._url = f"http://127.0.0.1:{sock.getsockname()[1]}"
        self._http = await self._stack.enter_async_context(aiohttp.ClientSession())

    def take(self, chance: random.Random) -> str:
        status = self._loop.run_until_complete(self._ask(chance))
        require(status < 500 or status in (502, 503), f"the router answers {status}")
        return TAKEN if status == 200 else REFUSED

    async def _ask(self, chance: random.Random) -> int:
        path, good, headers = chance.choice(PATHS), chance.choice(GOOD), {}
        if chance.random() < 0.2:
            # Nothing is added: an instance that is not there would take requests.
            path, good = "/instances/" + chance.choice(("drain", "remove", "x")), INSTANCE
            headers = {"X-API-Key": chance.choice(("key", "wrong"))}
        body = body_of(chance, good)
        async with self._http.post(self._url + path, data=body, headers=headers) as response:
            await response.read()
            return response.status

    def end(self) -> None:
        self._loop.run_until_complete(self._finish())
        self._loop.close()

    async def _finish(self) -> None:
        async with self._http.post(self._url + PATHS[1], data=b'{"prompt": "x"}') as response:
            require(response.status == 200, "the router still serves")
        admission: Any = self._front.admission
        require(admission.in_flight == 0 == admission.waiting, "no request is left behind")
        await self._stack.aclose()


async def _engine(request: web.Request) -> web.Response:
    await request.read()
    return web.json_response({"id": "resp_1", "ok": True})
