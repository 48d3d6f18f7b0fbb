"""An engine's answer on its way to the client, byte for byte as it comes."""

from __future__ import annotations

import asyncio
import contextlib

import aiohttp
import msgspec
from aiohttp import web

from moonpool.router import upstream as up
from moonpool.router.headers import end_to_end
from moonpool.router.metrics import RouterMetrics
from moonpool.router.openai import error_body
from moonpool.router.pd_messages import MessageTokens
from moonpool.router.pd_params import MESSAGES
from moonpool.router.pd_prefill import Prefill
from moonpool.router.pd_usage import CachedTokens
from moonpool.router.usage import Tail, Usage

SSE = "text/event-stream"


class Relay:
    """One answer. ``usage`` is what the engine counted, once the answer has come to its end;
    ``events`` how many events it was streamed in, ``whole`` whether its end has come.

    prefill: the prompt's, where it was computed elsewhere; its cached tokens are those that count.
    write_timeout_s: how long the client may leave the answer unread.
    """

    def __init__(
        self,
        request: web.Request,
        upstream: aiohttp.ClientResponse,
        prefill: Prefill | None,
        metrics: RouterMetrics,
        write_timeout_s: float,
    ) -> None:
        self.usage: Usage | None = None
        self.events = 0
        self.whole = False
        self._request, self._upstream = request, upstream
        self._metrics, self._write_timeout_s = metrics, write_timeout_s
        readable = upstream.headers.get("Content-Encoding", "identity") == "identity"
        merged = prefill is not None and upstream.status == 200 and readable
        self._prefill = prefill if merged else None
        self._counts: CachedTokens | MessageTokens | None = None
        if merged and request.path == MESSAGES:
            self._counts = MessageTokens(stream=upstream.content_type == SSE)
        elif merged:
            self._counts = CachedTokens()
        self._response = web.StreamResponse(
            status=upstream.status, headers=end_to_end(upstream.headers)
        )
        length = upstream.content_length
        if length is not None and not isinstance(self._counts, MessageTokens):
            self._response.content_length = length

    async def run(self, chunk: bytes, url: str) -> web.StreamResponse:
        """Pass on the first bytes and all that follow; ``url`` names the engine in metrics."""
        await self._response.prepare(self._request)
        tail = Tail()
        while True:
            at_end = not chunk
            if self._counts is not None:
                chunk = self._merged(self._counts, chunk)
            tail.feed(chunk)
            if chunk and not await self._written(chunk):
                return self._response
            if at_end:
                break
            try:
                chunk = await up.read(self._upstream)
            except up.UpstreamError:
                self._metrics.broken_streams.labels(url).inc()
                await self._break_off()
                return self._response
        with contextlib.suppress(ConnectionResetError):
            await self._response.write_eof()
        self.events, self.whole = tail.events, True
        self.usage = tail.usage() if self._upstream.status == 200 else None
        return self._response

    def _merged(self, counts: CachedTokens | MessageTokens, chunk: bytes) -> bytes:
        outcome = self._prefill.outcome if self._prefill is not None else None
        if outcome is not None and isinstance(counts, MessageTokens):
            counts.prompt = outcome.prompt
        elif outcome is not None and isinstance(counts, CachedTokens):
            counts.cached = outcome.cached
        return counts.feed(chunk) if chunk else counts.end()

    async def _written(self, chunk: bytes) -> bool:
        try:
            async with asyncio.timeout(self._write_timeout_s):
                await self._response.write(chunk)
        except (ConnectionResetError, TimeoutError):
            # The client has left or does not read: the instance need not go on either.
            self._metrics.disconnects.inc()
            self._upstream.close()
            self._abort()
            return False
        return True

    async def _break_off(self) -> None:
        """Tell the client that the answer will not go on, as far as HTTP still allows."""
        if self._response.content_type == SSE:
            body = error_body("the instance broke off the answer", 502)
            with contextlib.suppress(ConnectionResetError):
                await self._response.write(b"data: " + msgspec.json.encode(body) + b"\n\n")
                await self._response.write_eof()
        else:
            # A body without its end is the only sign that is left.
            self._abort()

    def _abort(self) -> None:
        if self._request.transport is not None:
            self._request.transport.abort()
