"""Asking instances whether they are well."""

from __future__ import annotations

import asyncio
from collections.abc import Callable

import aiohttp

from moonpool.router import facts, presence
from moonpool.router.headers import ROUTER_HEADER
from moonpool.router.instance import Instance
from moonpool.router.members import Members
from moonpool.router.metrics import RouterMetrics

# One lost answer of a busy engine is no failure.
MISSES_MAX = 2
AT_ONCE = 64


class Health:
    """Checks all instances; also learns what an engine is when it comes, or comes back."""

    def __init__(
        self,
        members: Members,
        metrics: RouterMetrics,
        clock: Callable[[], float],
        identity: str = "",
    ) -> None:
        self._headers = {ROUTER_HEADER: identity}
        self.http: aiohttp.ClientSession | None = None
        self._members, self._metrics, self._clock = members, metrics, clock
        self._turn = asyncio.Semaphore(AT_ONCE)

    async def check_all(self, timeout_s: float) -> None:
        """Check every instance once, side by side."""
        checks = [self._check(each, timeout_s) for each in self._members.instances]
        await asyncio.gather(*checks)

    async def _check(self, instance: Instance, timeout_s: float) -> None:
        async with self._turn:
            well = await self._is_well(instance.url, timeout_s)
            self._metrics.health_checks.labels(instance.url, "ok" if well else "failed").inc()
            self.note(instance, well)
            if well and not instance.asked and self.http is not None:
                found = await facts.fetch(self.http, instance.url, timeout_s)
                self._members.learn(instance, found)

    def note(self, instance: Instance, well: bool) -> None:
        """Take the outcome of a check."""
        if well:
            instance.misses = 0
            instance.circuit.success()
            presence.back(instance)
        else:
            instance.misses += 1
            instance.asked = False
        instance.healthy = instance.misses < MISSES_MAX
        if not instance.healthy:
            presence.gone(instance, f"{MISSES_MAX} health checks in a row failed")
            # A busy engine may seem dead: while there is no other, waiting is all that is left.
            others = (each for each in self._members.instances if each is not instance)
            if any(each.is_up(self._clock()) for each in others):
                presence.give_up(instance)

    async def _is_well(self, url: str, timeout_s: float) -> bool:
        if self.http is None:
            return False
        try:
            timeout = aiohttp.ClientTimeout(total=timeout_s)
            async with self.http.get(
                f"{url}/health", headers=self._headers, timeout=timeout, allow_redirects=False
            ) as response:
                return response.status == 200
        except (aiohttp.ClientError, TimeoutError, OSError, ValueError):
            return False
