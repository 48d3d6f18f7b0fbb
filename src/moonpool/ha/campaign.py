"""An election held: the state machine, a store and the clock, in an event loop."""

from __future__ import annotations

import asyncio
import contextlib
import logging
import time
from collections.abc import Callable

from moonpool.ha.backend import Backend, BackendError
from moonpool.ha.election import RENEW, Answer, Election, Write

WAIT_S_MAX = 1.0
WAIT_S_MIN = 0.005

log = logging.getLogger("moonpool.ha")


def clock() -> float:
    """Return seconds that also pass while the machine sleeps."""
    return time.clock_gettime(time.CLOCK_BOOTTIME)


class Campaign:
    """Runs for as long as ``run`` is not cancelled. ``on_change`` is called after every answer."""

    def __init__(
        self, election: Election, backend: Backend, on_change: Callable[[], None] = lambda: None
    ) -> None:
        self.election = election
        self._backend = backend
        self._on_change = on_change
        self._told = ""

    async def run(self) -> None:
        """Take part in the election."""
        election = self.election
        while True:
            # A second later than now: no master without an election had that one yet.
            action = election.next(clock(), int(time.time()) + 1)
            if action is None:
                wait_s = min(max(election.wait_s(clock()), WAIT_S_MIN), WAIT_S_MAX)
                await asyncio.sleep(wait_s)
                continue
            try:
                answer = await self._do(action)
            except BackendError as error:
                self._tell(str(error))
                election.failed(clock())
            else:
                self._tell("")
                election.answered(answer, clock())
            self._on_change()

    async def resign(self) -> None:
        """Let another lead without waiting for the lease to end. Call once ``run`` has ended."""
        write = self.election.resign()
        if write is not None:
            with contextlib.suppress(BackendError):
                await self._do(write)

    async def close(self) -> None:
        """Give up the store."""
        await self._backend.close()

    async def _do(self, action: object) -> Answer:
        limit_s = RENEW * self.election.lease_s
        try:
            async with asyncio.timeout(limit_s):
                if isinstance(action, Write):
                    return await self._backend.write(action.record, action.version)
                return await self._backend.read()
        except TimeoutError:
            raise BackendError(f"no answer within {limit_s:.3g} s") from None

    def _tell(self, why: str) -> None:
        """Log a change of the store's state once."""
        if why != self._told:
            self._told = why
            if why:
                log.warning("the election's store: %s", why)
            else:
                log.info("the election's store answers again")
