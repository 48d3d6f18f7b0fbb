"""Engines as far as split requests go: they record, answer, wait and break as a test says."""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncIterator
from contextlib import AsyncExitStack, asynccontextmanager
from typing import Any

from aiohttp import web

from moonpool.router.front import Front
from moonpool.router.index import PrefixIndex
from moonpool.router.members import named
from moonpool.router.options import Options
from moonpool.router.policy import create
from moonpool.router.service import listen, serving
from tests.unit.router.upstream import serving_app

WAIT_S = 10.0
DETAILS = "prompt_tokens_details"


TRANSFERS: dict[str, asyncio.Event] = {}
"""Prompts that are handed over in this process, by name: set once they are computed."""


class Engine:
    """``params`` is what it says of its KV; ``cached`` what it counts as cached; ``waits``:
    whether it waits for prompts that others compute for it."""

    def __init__(self, name: str) -> None:
        self.name = name
        self.url = ""
        self.bodies: list[dict[str, Any]] = []
        self.headers: list[dict[str, str]] = []
        self.params: dict[str, Any] | None = None
        self.cached = 0
        self.status = 200
        self.hang_up = False
        self.waits = True
        self.fails_handover = False
        self.begun, self.go_on, self.cancelled = asyncio.Event(), asyncio.Event(), asyncio.Event()
        self.go_on.set()

    def app(self) -> web.Application:
        app = web.Application()
        app.router.add_get("/query", self.query)
        app.router.add_get("/health", self.health)
        app.router.add_post("/v1/completions", self.answer)
        app.router.add_post("/v1/chat/completions", self.answer)
        app.router.add_post("/v1/embeddings", self.answer)
        app.router.add_post("/v1/messages", self.answer)
        return app

    async def health(self, request: web.Request) -> web.Response:
        return web.Response()

    async def query(self, request: web.Request) -> web.Response:
        ranks = {str(n): {"engine_id": f"{self.name}-{n}", "worker_addr": {}} for n in range(2)}
        return web.json_response(ranks)

    async def answer(self, request: web.Request) -> web.StreamResponse:
        body = await request.json()
        self.bodies.append(body)
        self.headers.append({**request.headers})
        self.begun.set()
        try:
            await self.go_on.wait()
            await self._handed_over(body.get("kv_transfer_params") or {})
        except asyncio.CancelledError:
            self.cancelled.set()
            raise
        if self.hang_up:
            assert request.transport is not None
            request.transport.abort()
        if self.fails_handover and "kv_transfer_params" in body:
            error = {"error": {"message": "KV load failure"}}
            if not body.get("stream"):
                return web.json_response(error, status=500)
            return web.Response(text=f"data: {json.dumps(error)}\n\n")
        if self.status != 200:
            return web.json_response({"error": {"by": self.name}}, status=self.status)
        self._hand_over(body.get("kv_transfer_params") or {})
        usage: dict[str, Any] = {"prompt_tokens": 100, DETAILS: {"cached_tokens": self.cached}}
        if request.path == "/v1/messages":
            usage = {"input_tokens": 100 - self.cached, "cache_read_input_tokens": self.cached}
        if not body.get("stream"):
            return web.json_response(
                {"by": self.name, "usage": usage, "kv_transfer_params": self.params}
            )
        return await self._stream(request, usage)

    async def _stream(self, request: web.Request, usage: dict[str, Any]) -> web.StreamResponse:
        response = web.StreamResponse(headers={"Content-Type": "text/event-stream; charset=utf-8"})
        await response.prepare(request)
        for event in ({"by": self.name}, {"usage": usage}):
            text = f"data: {json.dumps(event)}\n\n".encode()
            # In pieces, as networks deliver them.
            for part in (text[:9], text[9:]):
                await response.write(part)
                await asyncio.sleep(0)
        await response.write(b"data: [DONE]\n\n")
        return response

    async def _handed_over(self, params: dict[str, Any]) -> None:
        if self.waits and params.get("do_remote_prefill") and "transfer_id" in params:
            await TRANSFERS.setdefault(params["transfer_id"], asyncio.Event()).wait()

    def _hand_over(self, params: dict[str, Any]) -> None:
        if params.get("do_remote_decode") and "transfer_id" in params:
            TRANSFERS.setdefault(params["transfer_id"], asyncio.Event()).set()


class House:
    """A front before prefilling engines ``ps`` and decoding engines ``ds``."""

    def __init__(self, ps: list[Engine], ds: list[Engine], front: Front, url: str) -> None:
        self.ps, self.ds, self.front, self.url = ps, ds, front, url

    def count(self, name: str, **labels: str) -> float:
        """Return a counter, summed over the labels that are not given."""
        total = 0.0
        for line in self.front.metrics.text().decode().splitlines():
            fits = line.startswith(f"moonpool_router_{name}_total")
            if fits and all(f'{key}="{value}"' in line for key, value in labels.items()):
                total += float(line.rpartition(" ")[2])
        return total


@asynccontextmanager
async def house(
    prefill: int = 2,
    decode: int = 2,
    *,
    policy: str = "round_robin",
    bootstrap: bool = False,
    **options: Any,
) -> AsyncIterator[House]:
    """Give a front with so many engines of both roles."""
    ps = [Engine(f"p{n}") for n in range(prefill)]
    ds = [Engine(f"d{n}") for n in range(decode)]
    async with AsyncExitStack() as stack:
        for each in ps + ds:
            each.url = await stack.enter_async_context(serving_app(each.app()))
        members = [named(each.url, "prefill", each.url if bootstrap else "") for each in ps]
        members += [named(each.url, "decode") for each in ds]
        index = PrefixIndex()
        chosen = create(policy, index)
        settings = Options(**{"pd": "pool", "bypass_tokens": 160, **options})
        front = Front(members, chosen, options=settings, index=index, clock=lambda: 1.0)
        sock = listen("port", "127.0.0.1", 0)
        await stack.enter_async_context(serving(front, sock))
        yield House(ps, ds, front, f"http://127.0.0.1:{sock.getsockname()[1]}")
        assert all(each.in_flight == 0 for each in front.instances)
        assert all(each.pending_tokens == 0 for each in front.instances)
