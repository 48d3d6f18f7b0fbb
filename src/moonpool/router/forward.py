"""Carrying a request to an instance and its answer back.

Answers are passed on as they come, byte for byte. Until an answer's first byte another instance is
tried when one gives none; after it the client learns that the answer broke.
"""

from __future__ import annotations

import asyncio
import secrets
from collections.abc import Callable
from dataclasses import dataclass, field

import aiohttp
from aiohttp import web

from moonpool.router import presence
from moonpool.router import upstream as up
from moonpool.router.headers import to_instance
from moonpool.router.instance import Instance, Plan, Ticket
from moonpool.router.knowledge import Knowledge
from moonpool.router.members import Members
from moonpool.router.metrics import RouterMetrics
from moonpool.router.openai import error_response
from moonpool.router.options import Options
from moonpool.router.pd_plan import Planner, Tried
from moonpool.router.pd_prefill import PrefillFailed
from moonpool.router.pd_split import Split, Splits
from moonpool.router.policy import Policy
from moonpool.router.prompt import RoutedRequest
from moonpool.router.relay import Relay

ATTEMPTS_MAX = 3
# A request that makes engines hang up must not go through all of them.
REACHED_MAX = 2
REACHED_IN_ALL_MAX = 3
# So many prefilling engines are tried; then the decoding one computes the prompt for itself.
PREFILLS_MAX = 2
BUSY = frozenset((429, 502, 503, 504))
LOOP = 508
ENGINE_DIED = b"EngineCore encountered an issue"


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
    identity: str = field(default_factory=lambda: secrets.token_hex(8))
    planner: Planner = field(init=False)
    splits: Splits = field(init=False)

    def __post_init__(self) -> None:
        down = self.knowledge.is_pool_down
        self.planner = Planner(self.members, self.metrics, self.clock, down)
        self.splits = Splits(self.members, self.metrics, self.clock, self.identity)

    async def answer(self, request: web.Request, routed: RoutedRequest) -> web.StreamResponse:
        """Return the answer of the first instance that gives one."""
        tried = Tried()
        reached, last = 0, up.UpstreamError("", reached=False)
        while (
            len(tried.serving) < ATTEMPTS_MAX
            and reached < REACHED_MAX
            and reached + tried.prefills_reached < REACHED_IN_ALL_MAX
        ):
            plan = self.planner.plan(routed, tried, self.policy, self.options)
            if plan is None:
                break
            left = [*tried.serving, plan.serve]
            more = (
                routed.home is None
                and len(left) < ATTEMPTS_MAX
                and bool(self.planner.candidates(routed.model, left))
            )
            try:
                answer = await self._attempt(request, routed, plan, more)
            except PrefillFailed as error:
                self._note_prefill(tried, error)
                continue
            except up.UpstreamError as error:
                tried.serving.append(plan.serve)
                self._note_failure(plan.serve, error)
                if error.silent:
                    return self._refuse(504, "silent", f"{plan.serve.url} kept silent for too long")
                reached, last = reached + error.reached, error
            else:
                if answer is not None:
                    return answer
                tried.serving.append(plan.serve)
        return self._no_answer(tried, last)

    def _note_prefill(self, tried: Tried, error: PrefillFailed) -> None:
        """Go on without that engine, and without any after PREFILLS_MAX of them."""
        instance = error.instance
        tried.prefilling.append(instance)
        tried.prefills_reached += error.reached
        tried.whole = error.final or len(tried.prefilling) >= PREFILLS_MAX
        self.metrics.pd_fallbacks.labels(instance.url, error.reason).inc()
        self.splits.bootstraps.forget(instance)
        if error.broken:
            instance.circuit.failure(self.clock())
            instance.asked = False
            presence.gone(instance, error.reason)

    def candidates(self, model: str, tried: list[Instance]) -> list[Instance]:
        """Return the instances that may answer."""
        return self.planner.candidates(model, tried)

    def _no_answer(self, tried: Tried, last: up.UpstreamError) -> web.Response:
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
        presence.gone(instance, str(error))

    async def _attempt(
        self, request: web.Request, routed: RoutedRequest, plan: Plan, more: bool
    ) -> web.StreamResponse | None:
        """Return the answer; None for one that says "busy" while there are others to ask."""
        assert self.http is not None, "the application has not been started"
        instance, now = plan.serve, self.clock()
        instance.circuit.begin(now)
        ticket = Ticket(plan, now)
        # A whole answer tells nothing of its first token: that is taken to come as predicted.
        timer = None
        if plan.prefill_tokens and not routed.stream:
            later = asyncio.get_running_loop().call_later
            timer = later(plan.predicted_s, ticket.first_token)
        split = None
        self.policy.sent(routed, plan)
        self.metrics.own_seconds.observe(self.clock() - routed.ready_s)
        try:
            if plan.ahead is not None:
                split = await self.splits.begin(
                    self.http, routed, request.headers, plan, self.options
                )
                ticket.began_s = self.clock()
            return await self._exchange(request, routed, ticket, split, more)
        finally:
            if timer is not None:
                timer.cancel()
            if split is not None and split.prefill.close():
                self.metrics.pd_cancelled.inc()
            ticket.end()

    async def _exchange(
        self,
        request: web.Request,
        routed: RoutedRequest,
        ticket: Ticket,
        split: Split | None,
        more: bool,
    ) -> web.StreamResponse | None:
        instance = ticket.plan.serve
        begun = self._begin(request, routed, instance, split)
        upstream, first = await (split.prefill.unless_failed(begun) if split else begun)
        async with upstream:
            if upstream.status == LOOP:
                raise up.UpstreamError("it leads back to this router", reached=False)
            if engine_died(upstream.status, first):
                raise up.UpstreamError("its engine has died")
            if upstream.status in BUSY and more:
                self.metrics.retries.labels(instance.url).inc()
                return None
            if split is not None and handover_failed(upstream.status, first):
                raise PrefillFailed("not handed over", split.prefill.instance, final=True)
            self._first_byte(routed, ticket, upstream, split)
            if routed.made is not None:
                routed.made(first, instance)
            prefill = split.prefill if split is not None else None
            relay = Relay(request, upstream, prefill, self.metrics, self.options.write_timeout_s)
            answer = await relay.run(first, instance.url)
            if routed.counted is not None and answer.status == 200 and relay.whole:
                routed.counted(relay.usage, relay.events)
            if relay.usage is not None:
                self.knowledge.learn(routed.prompt, relay.usage)
            return answer

    async def _begin(
        self, request: web.Request, routed: RoutedRequest, instance: Instance, split: Split | None
    ) -> tuple[aiohttp.ClientResponse, bytes]:
        """Return the answer's head and the first bytes of its body."""
        assert self.http is not None, "the application has been started"
        headers = to_instance(request.headers, self.identity)
        body = routed.body if split is None else split.body
        upstream = None
        try:
            async with presence.patience(instance):
                upstream = await up.send(
                    self.http, instance, request.method, routed.path, headers, body
                )
                return upstream, await up.read(upstream)
        except BaseException as error:
            if upstream is not None:
                upstream.close()
            if isinstance(error, TimeoutError):
                raise up.UpstreamError("its health checks fail", reached=False) from None
            raise

    def _first_byte(
        self,
        routed: RoutedRequest,
        ticket: Ticket,
        upstream: aiohttp.ClientResponse,
        split: Split | None,
    ) -> None:
        plan, now = ticket.plan, self.clock()
        plan.serve.circuit.success()
        presence.back(plan.serve)
        self.metrics.first_byte_seconds.observe(now - routed.arrived_s)
        self.metrics.requests.labels(plan.serve.url, str(upstream.status)).inc()
        ticket.first_token()
        plan.serve.answers += upstream.status == 200
        if split is not None:
            way = "beside" if split.beside else "before"
            self.metrics.pd_requests.labels("split", way).inc()
        # Only a stream's first byte is its first token.
        if routed.stream and upstream.status == 200 and routed.prompt.keys:
            if split is None or not split.beside:
                seconds = now - ticket.began_s
                self.members.fleet.observe(plan.work, seconds)
                plan.serve.model.observe(plan.work, seconds)
            known = plan.ahead or plan
            self.metrics.foreseen_tokens.inc(max(known.local_tokens, known.pool_tokens))


def engine_died(status: int, first: bytes) -> bool:
    """Return whether vLLM's front says that the engine behind it is no more: it answers so, before
    any token, for a moment before it ends as well."""
    failed = status >= 500 or (status == 200 and first.startswith(b'data: {"error"'))
    return failed and ENGINE_DIED in first


def handover_failed(status: int, first: bytes) -> bool:
    """Return whether a decoding engine that was to take a prompt's KV says that it failed, as vLLM
    does where it may not recompute (``kv_load_failure_policy``)."""
    return status == 500 or (status == 200 and first.startswith(b'data: {"error"'))
