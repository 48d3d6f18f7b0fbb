"""The store of an election: one record, reached over the simulated network."""

from __future__ import annotations

import asyncio

from moonpool.errors import MoonpoolError
from moonpool.ha.backend import BackendError
from moonpool.ha.election import Answer, Record, Seen, Written
from tests.sim.world.hub import Process, hub
from tests.sim.world.sockets import net


class Register:
    """What is kept, whatever fails. ``slow_s``: the longest that a request or answer takes."""

    host = "etcd"

    def __init__(self) -> None:
        self.seen = Seen("", None)
        self.slow_s = 0.02
        self.lose = 0.0
        self._version = 0

    def write(self, record: Record, version: str) -> Answer:
        if self.seen.version != version:
            return self.seen
        self._version += 1
        self.seen = Seen(str(self._version), record)
        return Written(self.seen.version)

    def way_s(self, process: Process) -> float | None:
        """Draw how long a message takes, None if it is lost."""
        rng = hub().rng
        if net().is_cut(process.host, self.host) or rng.random() < self.lose:
            return None
        return rng.random() * self.slow_s


class SimBackend:
    """A Backend at a register."""

    def __init__(self, register: Register, process: Process) -> None:
        self._register = register
        self._process = process

    async def read(self) -> Seen:
        await self._way()
        seen = self._register.seen
        await self._way()
        return seen

    async def write(self, record: Record, version: str) -> Answer:
        await self._way()
        answer = self._register.write(record, version)
        await self._way()
        return answer

    async def close(self) -> None:
        pass

    async def _way(self) -> None:
        taken = self._register.way_s(self._process)
        if taken is None:
            await asyncio.sleep(60.0)
            raise BackendError("lost")
        await asyncio.sleep(taken)


def look_in(register: Register, timeout_s: float) -> Record | None:
    """As ha.look, in a thread."""
    running = hub()
    assert running.process is not None
    for _ in range(2):
        taken = register.way_s(running.process)
        if taken is None or taken > timeout_s:
            running.park(timeout_s)
            raise MoonpoolError("the store does not answer")
        running.park(taken)
    return register.seen.record
