"""Beginning a split request: the prefill is sent, and the decode is told where to find it."""

from __future__ import annotations

import uuid
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

import aiohttp

from moonpool.router import presence
from moonpool.router.headers import to_instance
from moonpool.router.instance import Plan, Ticket
from moonpool.router.members import Members
from moonpool.router.metrics import RouterMetrics
from moonpool.router.options import Options
from moonpool.router.pd_bootstrap import BootstrapError, Bootstraps
from moonpool.router.pd_params import (
    AUTO,
    DECODE_PARAMS,
    MOONCAKE,
    NIXL,
    POOL,
    RANK_HEADER,
    decode_body,
    prefill_body,
)
from moonpool.router.pd_plan import way_of
from moonpool.router.pd_prefill import Prefill, PrefillFailed
from moonpool.router.prompt import RoutedRequest

NIXL_PARAMS = dict.fromkeys(
    ("remote_engine_id", "remote_block_ids", "remote_host", "remote_port"), None
)


@dataclass(frozen=True, slots=True)
class Split:
    """A prefill that is under way, or done, and what the decoding engine is sent."""

    prefill: Prefill
    body: bytes
    beside: bool
    """Whether prefill and decode run at the same time."""


class Splits:
    """Begins split requests in the way that their prefilling engine knows."""

    def __init__(
        self,
        members: Members,
        metrics: RouterMetrics,
        clock: Callable[[], float],
        identity: str = "",
    ) -> None:
        self._identity = identity
        self.bootstraps = Bootstraps(clock)
        self._members, self._metrics, self._clock = members, metrics, clock

    async def begin(
        self,
        http: aiohttp.ClientSession,
        routed: RoutedRequest,
        headers: Mapping[str, str],
        plan: Plan,
        options: Options,
    ) -> Split:
        """Return a split request; the caller must close its prefill. Raises PrefillFailed."""
        ahead = plan.ahead
        assert ahead is not None, "only for plans with two engines"
        ahead.serve.circuit.begin(self._clock())
        prefill = Prefill(Ticket(ahead, self._clock()), lambda s: self._done(routed, ahead, s))
        way = way_of(ahead.serve, options)
        try:
            own = {**to_instance(headers, self._identity)}
            more, sent = await self._told(http, way, prefill, own)
            about = NIXL_PARAMS if way in (NIXL, AUTO) else {}
            if way != NIXL:
                about = {**about, "transfer_id": more["transfer_id"]}
            body = prefill_body(routed.path, routed.fields, about)
            prefill.start(http, routed.path, sent, body, options.prefill_timeout_s)
            if way in (POOL, MOONCAKE):
                return Split(prefill, decode_body(routed.body, {**DECODE_PARAMS, **more}), True)
            params = await self._params(prefill, way)
            body = routed.body if params is None else decode_body(routed.body, params)
            return Split(prefill, body, False)
        except BaseException:
            if prefill.close():
                self._metrics.pd_cancelled.inc()
            raise

    async def _told(
        self, http: aiohttp.ClientSession, way: str, prefill: Prefill, headers: dict[str, str]
    ) -> tuple[dict[str, Any], dict[str, str]]:
        """Return what the decoding engine is told, and the prefill's headers."""
        told: dict[str, Any] = {"transfer_id": f"xfer-{uuid.uuid4().hex}"}
        # A rank that the client names is one of the decoding engine's.
        headers = {k: v for k, v in headers.items() if k.lower() != RANK_HEADER.lower()}
        if way == MOONCAKE:
            instance = prefill.instance
            try:
                rank, engine, ranks = await self.bootstraps.next(http, instance)
            except BootstrapError:
                raise PrefillFailed("no bootstrap", instance) from None
            told |= {"remote_bootstrap_addr": instance.bootstrap, "remote_engine_id": engine}
            if ranks > 1:
                headers[RANK_HEADER] = str(rank)
        return told, headers

    async def _params(self, prefill: Prefill, way: str) -> dict[str, Any] | None:
        """Wait for the prefill; return what it hands on for the decoding engine."""
        outcome = await prefill.result()
        params = outcome.params or {}
        pulled = "remote_block_ids" in params
        if way == AUTO:
            prefill.instance.transfer = NIXL if pulled else POOL
        if not pulled:
            # What a pool has is found there without being told.
            return None
        return params

    def _done(self, routed: RoutedRequest, ahead: Plan, seconds: float) -> None:
        ahead.serve.circuit.success()
        presence.back(ahead.serve)
        ahead.serve.answers += 1
        self._metrics.requests.labels(ahead.serve.url, "200").inc()
        self._metrics.prefill_seconds.observe(seconds)
        if routed.prompt.keys:
            self._members.fleet.observe(ahead.work, seconds)
            ahead.serve.model.observe(ahead.work, seconds)
