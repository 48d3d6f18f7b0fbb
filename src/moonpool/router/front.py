"""A reverse proxy that makes several engines look like one OpenAI-compatible server.

Answers are passed on as they come, byte for byte. Until the first byte of an answer another
instance is tried when one cannot be reached; after it the client learns that the answer broke.
"""

from __future__ import annotations

import asyncio
import contextlib
import time
from collections.abc import Callable, Mapping, Sequence

import aiohttp
import msgspec
from aiohttp import web
from aiohttp.typedefs import Handler
from multidict import CIMultiDict

from moonpool.router.metrics import RouterMetrics
from moonpool.router.policy import Instance, Policy, RoundRobin, RoutedRequest

ATTEMPTS_MAX = 3
CONNECT_TIMEOUT_S = 5.0
IDLE_TIMEOUT_S = 600.0
BODY_BYTES_MAX = 64 << 20
IN_FLIGHT_MAX = 4096

PROXIED = (
    ("GET", "/v1/models"),
    ("POST", "/v1/completions"),
    ("POST", "/v1/chat/completions"),
)
# What belongs to one connection, or what this side sets itself (RFC 9110, section 7.6.1).
HOP_HEADERS = frozenset(
    (
        "connection",
        "keep-alive",
        "proxy-authenticate",
        "proxy-authorization",
        "te",
        "trailer",
        "transfer-encoding",
        "upgrade",
        "host",
        "content-length",
        "accept-encoding",
    )
)
SSE = "text/event-stream"


class UpstreamError(Exception):
    """An instance cannot be reached, or broke off its answer."""


def error_body(message: str, kind: str, status: int) -> dict[str, object]:
    """Return an error in the form that OpenAI's clients read."""
    return {"error": {"message": message, "type": kind, "param": None, "code": status}}


def error_response(message: str, kind: str, status: int) -> web.Response:
    """Return an HTTP answer that carries ``error_body``."""
    return web.json_response(error_body(message, kind, status), status=status)


class Front:
    """The proxy: ``app()`` gives the aiohttp application that serves it.

    ``instances`` may change at any time; a request sees the list as it is when it arrives.
    idle_timeout_s: the longest silence of an instance, before and within an answer.
    """

    def __init__(
        self,
        urls: Sequence[str] = (),
        policy: Policy | None = None,
        *,
        idle_timeout_s: float = IDLE_TIMEOUT_S,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self.instances = [Instance(url.rstrip("/")) for url in urls]
        self.metrics = RouterMetrics()
        self._policy = policy or RoundRobin()
        self._idle_timeout_s = idle_timeout_s
        self._clock = clock
        self._http: aiohttp.ClientSession | None = None
        self._in_flight = 0

    def replace_instances(self, urls: Sequence[str]) -> None:
        """Send requests to these instances from now on."""
        self.instances = [Instance(url.rstrip("/")) for url in urls]

    def app(self) -> web.Application:
        """Return the application; serve it with ``handler_cancellation`` on."""
        app = web.Application(client_max_size=BODY_BYTES_MAX, middlewares=[_openai_errors])
        for method, path in PROXIED:
            app.router.add_route(method, path, self._proxy)
        app.router.add_get("/health", self._health)
        app.router.add_get("/metrics", self._metrics)
        app.on_startup.append(self._open)
        app.on_cleanup.append(self._close)
        return app

    async def _open(self, app: web.Application) -> None:
        self._http = aiohttp.ClientSession(
            connector=aiohttp.TCPConnector(limit=IN_FLIGHT_MAX),
            timeout=aiohttp.ClientTimeout(
                total=None, sock_connect=CONNECT_TIMEOUT_S, sock_read=self._idle_timeout_s
            ),
            auto_decompress=False,
        )

    async def _close(self, app: web.Application) -> None:
        if self._http is not None:
            await self._http.close()

    async def _health(self, request: web.Request) -> web.Response:
        now = self._clock()
        up = [instance.is_up(now) for instance in self.instances]
        body = {
            "status": "ok" if any(up) else "no instance is up",
            "instances": [
                {"url": instance.url, "up": alive, "in_flight": instance.in_flight}
                for instance, alive in zip(self.instances, up, strict=True)
            ],
        }
        return web.json_response(body, status=200 if any(up) else 503)

    async def _metrics(self, request: web.Request) -> web.Response:
        return web.Response(body=self.metrics.text(), content_type="text/plain", charset="utf-8")

    async def _proxy(self, request: web.Request) -> web.StreamResponse:
        if self._in_flight >= IN_FLIGHT_MAX:
            self.metrics.refused.labels("too many requests").inc()
            return error_response("too many requests in flight", "overloaded_error", 503)
        self._in_flight += 1
        self.metrics.in_flight.set(self._in_flight)
        try:
            routed = RoutedRequest(request.path_qs, await request.read(), self._clock())
            return await self._first_that_answers(request, routed)
        except (asyncio.CancelledError, ConnectionResetError):
            self.metrics.disconnects.inc()
            raise
        finally:
            self._in_flight -= 1
            self.metrics.in_flight.set(self._in_flight)

    async def _first_that_answers(
        self, request: web.Request, routed: RoutedRequest
    ) -> web.StreamResponse:
        tried: list[Instance] = []
        while len(tried) < ATTEMPTS_MAX and (candidates := self._candidates(tried)):
            instance = self._policy.choose(routed, candidates).serve
            tried.append(instance)
            try:
                return await self._attempt(request, routed, instance)
            except UpstreamError:
                self._note_failure(instance)
        self.metrics.refused.labels("no instance").inc()
        return error_response(
            f"none of {len(self.instances)} instances can be reached", "service_unavailable", 503
        )

    def _candidates(self, tried: list[Instance]) -> list[Instance]:
        """Return the instances to choose from: those that are up, else all not yet tried."""
        now = self._clock()
        left = [instance for instance in self.instances if instance not in tried]
        return [instance for instance in left if instance.is_up(now)] or left

    def _note_failure(self, instance: Instance) -> None:
        self.metrics.retries.labels(instance.url).inc()
        instance.circuit.failure(self._clock())

    async def _attempt(
        self, request: web.Request, routed: RoutedRequest, instance: Instance
    ) -> web.StreamResponse:
        instance.in_flight += 1
        try:
            async with await self._send(request, routed, instance) as upstream:
                first = await _read(upstream)
                instance.circuit.success()
                self.metrics.first_byte_seconds.observe(self._clock() - routed.arrived_s)
                self.metrics.requests.labels(instance.url, str(upstream.status)).inc()
                return await self._pass_on(request, instance, upstream, first)
        finally:
            instance.in_flight -= 1

    async def _send(
        self, request: web.Request, routed: RoutedRequest, instance: Instance
    ) -> aiohttp.ClientResponse:
        assert self._http is not None, "the application has not been started"
        try:
            return await self._http.request(
                request.method,
                instance.url + routed.path,
                data=routed.body or None,
                headers=_end_to_end(request.headers),
                allow_redirects=False,
            )
        except (aiohttp.ClientError, TimeoutError, OSError) as error:
            raise UpstreamError(str(error)) from error

    async def _pass_on(
        self,
        request: web.Request,
        instance: Instance,
        upstream: aiohttp.ClientResponse,
        chunk: bytes,
    ) -> web.StreamResponse:
        response = web.StreamResponse(status=upstream.status, headers=_end_to_end(upstream.headers))
        await response.prepare(request)
        while chunk:
            try:
                await response.write(chunk)
            except ConnectionResetError:
                # The client has left: the instance need not go on either.
                upstream.close()
                return response
            try:
                chunk = await _read(upstream)
            except UpstreamError:
                self.metrics.broken_streams.labels(instance.url).inc()
                await _break_off(request, response)
                return response
        with contextlib.suppress(ConnectionResetError):
            await response.write_eof()
        return response


async def _read(upstream: aiohttp.ClientResponse) -> bytes:
    """Return what has come of the answer's body, b"" at its end."""
    try:
        return await upstream.content.readany()
    except (aiohttp.ClientError, TimeoutError, OSError) as error:
        raise UpstreamError(str(error)) from error


def _end_to_end(headers: Mapping[str, str]) -> CIMultiDict[str]:
    kept = CIMultiDict[str]()
    for name, value in headers.items():
        if name.lower() not in HOP_HEADERS:
            kept.add(name, value)
    return kept


async def _break_off(request: web.Request, response: web.StreamResponse) -> None:
    """Tell the client that the answer will not go on, as far as HTTP still allows."""
    if response.content_type == SSE:
        body = error_body("the instance broke off the answer", "upstream_error", 502)
        with contextlib.suppress(ConnectionResetError):
            await response.write(b"data: " + msgspec.json.encode(body) + b"\n\n")
            await response.write_eof()
    elif request.transport is not None:
        # A chunked body without its end is the only sign that is left.
        request.transport.abort()


@web.middleware
async def _openai_errors(request: web.Request, handler: Handler) -> web.StreamResponse:
    """Turn aiohttp's own plain-text errors into those that OpenAI's clients read."""
    try:
        return await handler(request)
    except web.HTTPException as error:
        message = f"{request.method} {request.path}: {error.reason}"
        return error_response(message, "invalid_request_error", error.status)
