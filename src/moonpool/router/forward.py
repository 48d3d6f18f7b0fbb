"""Carrying a request to an instance and its answer back.

Answers are passed on as they come, byte for byte. Until an answer's first byte another instance is
tried when one gives none; after it the client learns that the answer broke.
"""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import Callable
from dataclasses import dataclass

import aiohttp
import msgspec
from aiohttp import web

from moonpool.router import upstream as up
from moonpool.router.headers import end_to_end
from moonpool.router.instance import Instance, Plan, Ticket
from moonpool.router.knowledge import Knowledge
from moonpool.router.members import Members
from moonpool.router.metrics import RouterMetrics
from moonpool.router.openai import error_body, error_response
from moonpool.router.options import Options
from moonpool.router.policy import Policy
from moonpool.router.prompt import RoutedRequest
from moonpool.router.usage import Tail

ATTEMPTS_MAX = 3
# A request that makes engines hang up must not go through all of them.
REACHED_MAX = 2
BUSY = frozenset((429, 502, 503, 504))
SSE = "text/event-stream"


@dataclass(slots=True)
class Forwarder:
    """Chooses, sends, retries, relays, and learns from what comes back."""

    members: Members
    policy: Policy
    knowledge: Knowledge
    metrics: RouterMetrics
    options: Options
    clock: Callable[[], float]
    http: aiohttp.ClientSession | None = None

    async def answer(self, request: web.Request, routed: RoutedRequest) -> web.StreamResponse:
        """Return the answer of the first instance that gives one."""
        tried: list[Instance] = []
        reached, last = 0, up.UpstreamError("", reached=False)
        while len(tried) < ATTEMPTS_MAX and reached < REACHED_MAX:
            plan = self._plan(routed, tried)
            if plan is None:
                break
            tried.append(plan.serve)
            more = (
                routed.home is None
                and len(tried) < ATTEMPTS_MAX
                and bool(self.candidates(routed.model, tried))
            )
            try:
                answer = await self._attempt(request, routed, plan, more)
            except up.UpstreamError as error:
                self._note_failure(plan.serve, error)
                if error.silent:
                    return self._refuse(504, "silent", f"{plan.serve.url} kept silent for too long")
                reached, last = reached + error.reached, error
            else:
                if answer is not None:
                    return answer
        return self._no_answer(tried, last)

    def _plan(self, routed: RoutedRequest, tried: list[Instance]) -> Plan | None:
        home = routed.home
        if home is not None and home in self.members.instances:
            return None if tried else Plan(home)
        candidates = self.candidates(routed.model, tried)
        return self.policy.choose(routed, candidates) if candidates else None

    def candidates(self, model: str, tried: list[Instance]) -> list[Instance]:
        """Return the instances to choose from: those that are up and have the model, else those
        that are up, else all that are not draining."""
        now = self.clock()
        left = [each for each in self.members.instances if each not in tried]
        ups = [each for each in left if each.is_up(now)]
        if ups:
            return [each for each in ups if each.serves(model)] or ups
        return [each for each in left if not each.draining]

    def _no_answer(self, tried: list[Instance], last: up.UpstreamError) -> web.Response:
        if last.garbage:
            return self._refuse(502, "garbage", "an instance gave no valid HTTP answer")
        if last.reached:
            return self._refuse(502, "hung up", "instances hung up without an answer")
        count = len(self.members.instances)
        return self._refuse(503, "no instance", f"none of {count} instances can be reached")

    def _refuse(self, status: int, reason: str, message: str) -> web.Response:
        self.metrics.refused.labels(reason).inc()
        return error_response(message, status, {"Retry-After": "1"} if status == 503 else None)

    def _note_failure(self, instance: Instance, error: up.UpstreamError) -> None:
        self.metrics.retries.labels(instance.url).inc()
        instance.circuit.failure(self.clock())
        instance.asked = False

    async def _attempt(
        self, request: web.Request, routed: RoutedRequest, plan: Plan, more: bool
    ) -> web.StreamResponse | None:
        """Return the answer; None for one that says "busy" while there are others to ask."""
        instance, now = plan.serve, self.clock()
        instance.circuit.begin(now)
        ticket = Ticket(plan, now)
        # A whole answer tells nothing of its first token: that is taken to come as predicted.
        timer = None
        if plan.prefill_tokens and not routed.stream:
            later = asyncio.get_running_loop().call_later
            timer = later(plan.predicted_s, ticket.first_token)
        try:
            async with await self._send(request, routed, plan) as upstream:
                if upstream.status in BUSY and more:
                    self.metrics.retries.labels(instance.url).inc()
                    return None
                first = await up.read(upstream)
                self._first_byte(routed, ticket, upstream)
                if routed.made is not None:
                    routed.made(first, instance)
                return await self._pass_on(request, routed, plan, upstream, first)
        finally:
            if timer is not None:
                timer.cancel()
            ticket.end()

    async def _send(
        self, request: web.Request, routed: RoutedRequest, plan: Plan
    ) -> aiohttp.ClientResponse:
        assert self.http is not None, "the application has not been started"
        self.policy.sent(routed, plan)
        headers = end_to_end(request.headers)
        self.metrics.own_seconds.observe(self.clock() - routed.ready_s)
        return await up.send(
            self.http, plan.serve, request.method, routed.path, headers, routed.body
        )

    def _first_byte(
        self, routed: RoutedRequest, ticket: Ticket, upstream: aiohttp.ClientResponse
    ) -> None:
        plan, now = ticket.plan, self.clock()
        plan.serve.circuit.success()
        self.metrics.first_byte_seconds.observe(now - routed.arrived_s)
        self.metrics.requests.labels(plan.serve.url, str(upstream.status)).inc()
        ticket.first_token()
        plan.serve.answers += upstream.status == 200
        # Only a stream's first byte is its first token.
        if routed.stream and upstream.status == 200 and routed.prompt.keys:
            seconds = now - ticket.began_s
            self.members.fleet.observe(plan.work, seconds)
            plan.serve.model.observe(plan.work, seconds)
            self.metrics.foreseen_tokens.inc(max(plan.local_tokens, plan.pool_tokens))

    async def _pass_on(
        self,
        request: web.Request,
        routed: RoutedRequest,
        plan: Plan,
        upstream: aiohttp.ClientResponse,
        chunk: bytes,
    ) -> web.StreamResponse:
        response = web.StreamResponse(status=upstream.status, headers=end_to_end(upstream.headers))
        if (length := upstream.content_length) is not None:
            response.content_length = length
        await response.prepare(request)
        tail = Tail()
        while chunk:
            tail.feed(chunk)
            try:
                async with asyncio.timeout(self.options.write_timeout_s):
                    await response.write(chunk)
            except (ConnectionResetError, TimeoutError):
                # The client has left or does not read: the instance need not go on either.
                self.metrics.disconnects.inc()
                upstream.close()
                _abort(request)
                return response
            try:
                chunk = await up.read(upstream)
            except up.UpstreamError:
                self.metrics.broken_streams.labels(plan.serve.url).inc()
                await _break_off(request, response)
                return response
        with contextlib.suppress(ConnectionResetError):
            await response.write_eof()
        if upstream.status == 200 and (usage := tail.usage()) is not None:
            self.knowledge.learn(routed.prompt, usage)
        return response


async def _break_off(request: web.Request, response: web.StreamResponse) -> None:
    """Tell the client that the answer will not go on, as far as HTTP still allows."""
    if response.content_type == SSE:
        body = error_body("the instance broke off the answer", 502)
        with contextlib.suppress(ConnectionResetError):
            await response.write(b"data: " + msgspec.json.encode(body) + b"\n\n")
            await response.write_eof()
    else:
        # A body without its end is the only sign that is left.
        _abort(request)


def _abort(request: web.Request) -> None:
    if request.transport is not None:
        request.transport.abort()
