"""An OpenAI-compatible server made of several: what clients see of the router."""

from __future__ import annotations

import asyncio
import time
from collections.abc import AsyncIterator, Callable, Coroutine, Sequence
from typing import Any, Protocol

from aiohttp import web
from aiohttp.typedefs import Handler

from moonpool.router import text, upstream
from moonpool.router.admin import Admin
from moonpool.router.admission import PRIORITY_MAX, Admission, Entry, Refused
from moonpool.router.forward import LOOP, Forwarder
from moonpool.router.headers import ROUTER_HEADER
from moonpool.router.health import Health
from moonpool.router.index import PrefixIndex
from moonpool.router.instance import PREFILL, Instance
from moonpool.router.knowledge import Knowledge
from moonpool.router.members import Members, Named
from moonpool.router.metrics import RouterMetrics
from moonpool.router.openai import BadRequest, Fields, error_response, priority_of
from moonpool.router.options import Options
from moonpool.router.policy import Policy, RoundRobin, policy_name
from moonpool.router.prompt import RoutedRequest
from moonpool.router.record import Passing, Recorder
from moonpool.router.responses import Responses

READ = ("/v1/models", "/v1/models/{model}")
PROXIED = (
    "/v1/chat/completions",
    "/v1/completions",
    "/v1/embeddings",
    "/v1/messages",
    "/v1/messages/count_tokens",
    "/v1/rerank",
    "/v1/responses",
    "/v1/score",
    "/detokenize",
    "/tokenize",
)
BACKGROUND_STOP_S = 2.0
# What a trace is made of.
RECORDED = frozenset(("/v1/chat/completions", "/v1/completions", "/v1/messages", "/v1/responses"))
# Requests whose bodies are being read, beside those in flight or waiting.
READING_MAX = 1024
# All bodies together may be so many times as large as one.
BODIES_HELD = 16

# Connections that have not sent a whole head yet, and what ends them.
UNHEARD: dict[object, asyncio.TimerHandle] = {}


class EventsState(Protocol):
    """Who follows KV events."""

    def describe(self, instance: Instance) -> dict[str, object]:
        """Return how an instance's events are followed, for people."""


class Front:
    """The router: ``app()`` gives the aiohttp application that serves it.

    ``members`` may change at any time; a request sees them as they are when it is sent.
    """

    def __init__(
        self,
        wanted: Sequence[str | Named] = (),
        policy: Policy | None = None,
        *,
        options: Options | None = None,
        index: PrefixIndex | None = None,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self.options = options or Options()
        self.metrics = RouterMetrics()
        self.index = PrefixIndex() if index is None else index
        self.members = Members(self.index)
        self.knowledge = Knowledge(self.metrics, pool_wait_s=self.options.pool_wait_s)
        self.admission = Admission(self.options.limits)
        self.forward = Forwarder(
            self.members, policy or RoundRobin(), self.knowledge, self.metrics, self.options, clock
        )
        self.health = Health(self.members, self.metrics, clock, self.forward.identity)
        self.responses = Responses()
        self.events: EventsState | None = None
        self.recorder: Recorder | None = None
        self.background: list[Callable[[], Coroutine[Any, Any, None]]] = []
        self._clock = clock
        self._open = self._held = 0
        self.replace_instances(wanted)

    @property
    def instances(self) -> list[Instance]:
        """The instances that are known."""
        return self.members.instances

    @property
    def policy(self) -> Policy:
        """Who chooses among them."""
        return self.forward.policy

    def replace_instances(self, wanted: Sequence[str | Named], source: str = "config") -> None:
        """Let the instances of a source be exactly these from now on."""
        self.members.sync(source, wanted)
        self.resize()

    @property
    def policy_name(self) -> str:
        """The policy's name, as people write it."""
        return policy_name(self.forward.policy)

    def events_of(self, instance: Instance) -> dict[str, object]:
        """Return how an instance's KV events are followed, for people."""
        return self.events.describe(instance) if self.events is not None else {"followed": False}

    def resize(self) -> None:
        """Let in as many requests as the instances that are up can answer."""
        now = self._clock()
        ups = [each for each in self.members.instances if each.is_up(now)]
        self.admission.resize(sum(each.role != PREFILL for each in ups) or len(ups))

    def reconfigure(self, options: Options, policy: Policy | None = None) -> None:
        """Take other options; what is in flight or waits is not touched."""
        self.options = self.forward.options = options
        self.admission.replace(options.limits)
        if policy is not None:
            self.forward.policy = policy

    def app(self) -> web.Application:
        """Return the application; serve it with ``handler_cancellation`` on."""
        checks = [_openai_errors, self._no_loop]
        app = web.Application(client_max_size=1 << 62, middlewares=checks)
        for path in PROXIED:
            app.router.add_post(path, self._proxy)
        for path in READ:
            app.router.add_get(path, self._read)
        app.router.add_get("/v1/responses/{id}", self._response)
        app.router.add_post("/v1/responses/{id}/cancel", self._response)
        Admin(self).register(app)
        app.cleanup_ctx.append(self._running)
        return app

    @web.middleware
    async def _no_loop(self, request: web.Request, handler: Handler) -> web.StreamResponse:
        """Refuse what this router has sent itself, however the instance is called."""
        if self.forward.identity in request.headers.getall(ROUTER_HEADER, ()):
            return error_response("the router is one of its own instances", LOOP)
        return await handler(request)

    async def _running(self, app: web.Application) -> AsyncIterator[None]:
        self.forward.http = self.health.http = upstream.session(self.options.idle_timeout_s)
        if self.knowledge.tokens is not None:
            self.knowledge.tokens.start(self.forward.http)
        self.resize()
        tasks = [asyncio.create_task(self._check_health())]
        tasks += [asyncio.create_task(each()) for each in self.background]
        yield
        for task in tasks:
            task.cancel()
        await asyncio.wait(tasks, timeout=BACKGROUND_STOP_S)
        await self.forward.http.close()
        if self.recorder is not None:
            await asyncio.to_thread(self.recorder.close)

    async def _check_health(self) -> None:
        while self.options.health_s:
            await self.health.check_all(self.options.health_s)
            self.resize()
            await asyncio.sleep(self.options.health_s)

    async def _read(self, request: web.Request) -> web.StreamResponse:
        """Answer what costs no engine's time, and so needs no turn."""
        now = self._clock()
        return await self.forward.answer(request, RoutedRequest(_path(request), b"", now, now))

    async def _response(self, request: web.Request) -> web.StreamResponse:
        """Answer for a stored response: only the instance that made it knows of it."""
        now = self._clock()
        routed = RoutedRequest(_path(request), b"", now, now)
        routed.home = self.responses.home(request.match_info["id"])
        return await self.forward.answer(request, routed)

    async def _proxy(self, request: web.Request) -> web.StreamResponse:
        limits = self.options.limits
        if self._open >= limits.in_flight + limits.queue + READING_MAX:
            self.metrics.refused.labels("open").inc()
            return error_response("too many requests are open", 429, {"Retry-After": "1"})
        self._open += 1
        held: list[int] = []
        try:
            return await self._serve(request, held)
        finally:
            self._open -= 1
            self._held -= sum(held)

    async def _serve(self, request: web.Request, held: list[int]) -> web.StreamResponse:
        """Answer a request; ``held`` gets the bytes that its body occupies."""
        arrived = self._clock()
        try:
            routed = await self._understood(request, arrived, held)
            entry = await self._let_in(request, arrived)
        except BadRequest as error:
            self.metrics.refused.labels("bad request").inc()
            return error_response(str(error), 400)
        except Refused as error:
            self.metrics.refused.labels(error.reason).inc()
            return error_response(str(error), 429, {"Retry-After": str(error.retry_after_s)})
        began = routed.ready_s = self._clock()
        served_s: float | None = None
        passing: Passing | None = None
        try:
            await self._inform(routed)
            passing = self._record(routed)
            answer = await self.forward.answer(request, routed)
            served_s = self._clock() - began
            return answer
        except BadRequest as error:
            # A field's text, which is read only now, may be none.
            self.metrics.refused.labels("bad request").inc()
            return error_response(str(error), 400)
        except (asyncio.CancelledError, ConnectionResetError):
            self.metrics.disconnects.inc()
            raise
        finally:
            if passing is not None and self.recorder is not None:
                self.recorder.ended(passing)
            self.admission.leave(entry, served_s)
            self.metrics.in_flight.set(self.admission.in_flight)

    async def _understood(
        self, request: web.Request, arrived: float, held: list[int]
    ) -> RoutedRequest:
        body = await self._body(request, held)
        fields = Fields(body)
        routed = RoutedRequest(_path(request), fields.without_private(body), arrived)
        routed.model = fields.text("model")
        routed.stream = fields.is_true("stream")
        routed.fields = fields
        routed.session = request.headers.get(self.options.session_header, "")
        if request.path == "/v1/responses":
            routed.home = self.responses.home(fields.text("previous_response_id"))
            routed.made = self.responses.note
        return routed

    async def _inform(self, routed: RoutedRequest) -> None:
        """Fill in what the policy wants to know."""
        path, fields = routed.path.partition("?")[0], routed.fields
        if not routed.session:
            routed.session = fields.text("prompt_cache_key") or fields.text("user")
        if not routed.session and self.policy.needs_session:
            routed.session = text.session_of(path, fields)
        if self.policy.needs_prompt or self.recorder is not None:
            routed.prompt = await self.knowledge.prompt(path, fields)
        if self.policy.needs_pool:
            await self.knowledge.ask_pool(routed)

    def _record(self, routed: RoutedRequest) -> Passing | None:
        """Let the recorder know of a request, if there is one and the request has a prompt."""
        if self.recorder is None or routed.path.partition("?")[0] not in RECORDED:
            return None
        recorder, prompt = self.recorder, routed.prompt
        entry = recorder.arrived(routed.session, self._clock() - routed.arrived_s)
        routed.counted = lambda usage, events: recorder.answered(entry, prompt, usage, events)
        return entry

    async def _body(self, request: web.Request, held: list[int]) -> bytes:
        most = self.options.body_bytes
        if (request.content_length or 0) > most:
            raise web.HTTPRequestEntityTooLarge(most, request.content_length or 0)
        parts, size = [], 0
        try:
            async with asyncio.timeout(self.options.body_timeout_s):
                async for part in request.content.iter_any():
                    parts.append(part)
                    size += len(part)
                    held.append(len(part))
                    self._held += len(part)
                    if size > most:
                        raise web.HTTPRequestEntityTooLarge(most, size)
                    if self._held > BODIES_HELD * most:
                        raise Refused("memory", "too many large requests are open", 1.0)
        except TimeoutError:
            raise web.HTTPRequestTimeout from None
        except web.RequestPayloadError as error:
            raise BadRequest(f"the body cannot be read: {error}") from None
        return b"".join(parts)

    async def _let_in(self, request: web.Request, now: float) -> Entry:
        """Return the request's entry once it is its turn; raise Refused."""
        priority = priority_of(request.headers, PRIORITY_MAX)
        named = request.headers.get("Authorization", "")
        key = self.admission.limits.counted_as(named, request.remote or "")
        entry = self.admission.arrive(key, priority, now)
        if not entry.admitted:
            await self._wait(entry)
        self.metrics.in_flight.set(self.admission.in_flight)
        return entry

    async def _wait(self, entry: Entry) -> None:
        turn: asyncio.Future[bool] = asyncio.get_running_loop().create_future()
        entry.decided = lambda let_in: None if turn.done() else turn.set_result(let_in)
        self.metrics.waiting.set(self.admission.waiting)
        try:
            async with asyncio.timeout(self.options.limits.queue_s):
                let_in = await turn
        except BaseException as error:
            self.admission.leave(entry)
            if isinstance(error, TimeoutError):
                wait_s = self.admission.retry_after_s()
                raise Refused("wait", "its turn did not come in time", wait_s) from None
            raise
        finally:
            self.metrics.waiting.set(self.admission.waiting)
        if not let_in:
            wait_s = self.admission.retry_after_s()
            raise Refused("displaced", "more urgent requests took its place", wait_s)


def _path(request: web.Request) -> str:
    """Return the path and query as the client wrote them, without any host."""
    return request.rel_url.raw_path_qs


@web.middleware
async def _openai_errors(request: web.Request, handler: Handler) -> web.StreamResponse:
    """Turn aiohttp's own plain-text errors into those that OpenAI's clients read."""
    timer = UNHEARD.pop(request.protocol, None)
    if timer is not None:
        timer.cancel()
    try:
        return await handler(request)
    except web.HTTPException as error:
        message = f"{request.method} {request.path}: {error.reason}"
        allow = {"Allow": error.headers["Allow"]} if "Allow" in error.headers else None
        return error_response(message, error.status, allow)
