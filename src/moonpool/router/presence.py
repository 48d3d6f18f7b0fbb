"""One line in the log when an instance goes, and one when it is back."""

from __future__ import annotations

import asyncio
import contextlib
import logging
from collections.abc import AsyncIterator

from moonpool.router.instance import Instance

log = logging.getLogger("moonpool.router.instances")


def gone(instance: Instance, why: str) -> None:
    """Note that an instance is not used for now."""
    if not instance.down:
        log.warning("%s (%s) is gone: %s", instance.url, instance.role, why)
    instance.down = why


def back(instance: Instance) -> None:
    """Note that an instance has answered."""
    if instance.down:
        log.info("%s (%s) is back", instance.url, instance.role)
        instance.down = ""


@contextlib.asynccontextmanager
async def patience(instance: Instance, timeout_s: float | None = None) -> AsyncIterator[None]:
    """Raise TimeoutError after so long, or when ``give_up`` says so."""
    async with asyncio.timeout(timeout_s) as limit:
        instance.waits.add(limit)
        try:
            yield
        finally:
            instance.waits.discard(limit)


def give_up(instance: Instance) -> None:
    """Let those that wait for a dead instance ask another one."""
    now = asyncio.get_running_loop().time()
    for wait in instance.waits:
        # One that has ended by itself just now cannot be told any more.
        with contextlib.suppress(RuntimeError):
            wait.reschedule(now)
