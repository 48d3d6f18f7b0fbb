"""Following the pool's changes at its master, so that no prompt costs it a question."""

from __future__ import annotations

import asyncio
import logging
import time
from collections.abc import Callable

from moonpool.client.async_store import AsyncStore
from moonpool.errors import MoonpoolError
from moonpool.router.pool_index import PoolIndex

POLL_S = 0.1
PAGE = 4096
# Of all blocks fewer at a time: the master answers nobody else meanwhile.
SNAPSHOT_PAGE = 1024
PAGES_MAX = 100_000
# A master that does not know of changes is asked again after so long.
UNKNOWN_S = 60.0
# Heard of less lately, the index is not believed.
STALE_S = 2.0

log = logging.getLogger("moonpool.router.pool")


class PoolFeed:
    """Keeps an index of the pool. Where it is not ``current`` the master must be asked."""

    def __init__(
        self, index: PoolIndex | None = None, clock: Callable[[], float] = time.monotonic
    ) -> None:
        self.index = PoolIndex() if index is None else index
        self.error = "not connected yet"
        self._clock = clock
        self._heard = float("-inf")

    @property
    def current(self) -> bool:
        """Whether the index can be believed."""
        index = self.index
        return index.synced and not index.full and self._clock() - self._heard < STALE_S

    async def follow(self, store: AsyncStore) -> None:
        """Follow until the master fails; raises MoonpoolError, OSError."""
        try:
            while True:
                more = await self.step(store)
                if not more:
                    await asyncio.sleep(POLL_S)
        except (MoonpoolError, OSError) as error:
            self.error = str(error)
            raise

    async def step(self, store: AsyncStore) -> bool:
        """Take what has changed; return whether there is more already."""
        index = self.index
        told = await store.changes(index.next)
        if not index.take(told):
            log.info("pool: all blocks are asked for: %s", "changes are lost" if told.lost else "")
            await self._snapshot(store)
        self._heard = self._clock()
        self.error = ""
        return len(told.keys) >= PAGE

    async def _snapshot(self, store: AsyncStore) -> None:
        index = self.index
        index.begin()
        after = -1
        for _ in range(PAGES_MAX):
            page = await store.blocks(after, SNAPSHOT_PAGE)
            index.page(page)
            if page.next <= after or index.full:
                break
            after = page.next
            await asyncio.sleep(0)
        index.end()

    def describe(self) -> dict[str, object]:
        """Return its state for people."""
        index = self.index
        return {
            "current": self.current,
            "error": "more blocks than fit" if index.full else self.error,
            "blocks": index.blocks,
            "changes": index.counts.changes,
            "gaps": index.counts.gaps,
            "snapshots": index.counts.snapshots,
        }
