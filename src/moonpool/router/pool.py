"""What the pool has of a prompt."""

from __future__ import annotations

import asyncio
import itertools
import logging
from collections.abc import Awaitable, Callable, Sequence
from typing import Protocol

from moonpool.client.async_store import AsyncStore
from moonpool.core.keys import DIGEST_BYTES, split
from moonpool.core.messages import MATCH_DIGESTS_MAX
from moonpool.errors import MasterUnreachableError, MoonpoolError
from moonpool.router.pool_feed import PoolFeed

LOOK_S = 10.0
RETRY_S = 2.0
LOOKUP_TIMEOUT_S = 1.0
FEED_RETRY_MAX_S = 60.0
LOOK_STORE_S = 0.1
LISTED_MAX = 2000
NOT_YET = "not connected yet"
# A prompt is looked for in so many namespaces, those that have had hits first.
NAMESPACES_ASKED = 3
NAMESPACES_MAX = 64

log = logging.getLogger("moonpool.router.pool")


class PoolView(Protocol):
    """One source of knowledge of the pool."""

    async def prefix(self, hashes: Sequence[bytes], block_tokens: int) -> int:
        """Return how many leading tokens of a prompt the pool has.

        hashes: the engines' block hashes, in order. Does not raise; 0 where nothing is known.
        """

    def known(self, hashes: Sequence[bytes], block_tokens: int) -> int | None:
        """Return the same where it is known without asking anybody, else None."""

    def hosts(self, hashes: Sequence[bytes], block_tokens: int) -> dict[str, int]:
        """Return how many of these tokens each host has, by its address; empty if unknown."""

    @property
    def down(self) -> bool:
        """Whether it is known to be out of reach."""

    def describe(self) -> dict[str, object]:
        """Return its state for people."""


class StorePool:
    """Knows which blocks a master has: by following its changes, else by asking it.

    namespace: that of the engines, as each of them logs it; None looks for namespaces of engines
    in the pool and counts the one that has the most of a prompt, which is right as long as
    engines with other models use other pools. object_tokens: the connector's setting.
    """

    def __init__(
        self,
        address: str,
        namespace: bytes | None = None,
        object_tokens: int = 256,
        *,
        connect: Callable[[str], Awaitable[AsyncStore]] | None = None,
    ) -> None:
        self._address = address
        self._object_tokens = object_tokens
        self._fixed = namespace is not None
        self._hits: dict[bytes, int] = {} if namespace is None else {namespace: 0}
        self._connect = connect or _connect
        self._store: AsyncStore | None = None
        self._error = NOT_YET
        self._away = False
        self.feed = PoolFeed()

    async def run(self) -> None:
        """Keep a connection, follow changes, and look for namespaces, until cancelled."""
        following = asyncio.create_task(self._follow())
        try:
            while True:
                try:
                    if self._store is None:
                        self._store = await self._connect(self._address)
                        log.info("pool: connected to %s", self._address)
                    if not self._fixed:
                        await self._look(self._store)
                    self._error = ""
                    await asyncio.sleep(LOOK_S)
                except (MoonpoolError, OSError) as error:
                    await self._drop(str(error))
                    await asyncio.sleep(RETRY_S)
        finally:
            following.cancel()
            await asyncio.wait({following})
            await self._drop("stopped")

    async def _follow(self) -> None:
        """Follow changes whenever there is a connection; a feed that fails is survived."""
        wait_s = RETRY_S
        while True:
            store = self._store
            if store is not None:
                try:
                    await self.feed.follow(store)
                except (MoonpoolError, OSError) as error:
                    self._away = isinstance(error, MasterUnreachableError)
                    log.warning("pool: its changes cannot be followed, it is asked: %s", error)
                    # A master that is too old to tell ends the connection each time.
                    wait_s = min(2 * wait_s, FEED_RETRY_MAX_S)
                await asyncio.sleep(wait_s)
            else:
                await asyncio.sleep(LOOK_STORE_S)

    @property
    def down(self) -> bool:
        """See PoolView."""
        if self._store is None:
            return self._error not in ("", NOT_YET)
        return self._away and bool(self.feed.error)

    def known(self, hashes: Sequence[bytes], block_tokens: int) -> int | None:
        """See PoolView."""
        if not self.feed.current:
            return None
        return min(self._best(hashes, block_tokens)[1], len(hashes)) * block_tokens

    def hosts(self, hashes: Sequence[bytes], block_tokens: int) -> dict[str, int]:
        """Return how many leading tokens of a prompt each host of the pool has, by its address;
        empty where changes are not followed."""
        if not self.feed.current:
            return {}
        space, blocks = self._best(hashes, block_tokens)
        found = self.feed.index.hosts(space, hashes, self._stride(block_tokens), blocks)
        return {name: count * block_tokens for name, count in found.items()}

    def _best(self, hashes: Sequence[bytes], block_tokens: int) -> tuple[bytes, int]:
        """Return the namespace that has the most of a prompt, and how many of its blocks."""
        index, stride = self.feed.index, self._stride(block_tokens)
        likely = [*self._hits] if self._fixed else index.namespaces[:NAMESPACES_MAX]
        found = [(index.prefix(each, hashes, stride), each) for each in likely]
        count, space = max(found, default=(0, b""))
        return space, count

    def _stride(self, block_tokens: int) -> int:
        return max(1, self._object_tokens // block_tokens)

    async def prefix(self, hashes: Sequence[bytes], block_tokens: int) -> int:
        """See PoolView."""
        store = self._store
        if store is None or not self._hits:
            return 0
        digests = b"".join([each[:DIGEST_BYTES] for each in hashes[:MATCH_DIGESTS_MAX]])
        stride = self._stride(block_tokens)
        likely = sorted(self._hits, key=lambda each: -self._hits[each])[:NAMESPACES_ASKED]
        best = 0
        try:
            for namespace in likely:
                found = await store.match_digests(namespace, digests, stride)
                self._hits[namespace] = self._hits.get(namespace, 0) + (found > 0)
                best = max(best, found)
                if best:
                    break
        except (MoonpoolError, OSError) as error:
            await self._drop(str(error))
        return min(best, len(hashes)) * block_tokens

    def describe(self) -> dict[str, object]:
        """See PoolView."""
        return {
            "master": self._address,
            "connected": self._store is not None,
            "error": self._error,
            "feed": self.feed.describe(),
            "namespaces": {name.hex(): hits for name, hits in self._hits.items()},
        }

    async def _look(self, store: AsyncStore) -> None:
        """Find out which namespaces of engines the pool has."""
        seen = await asyncio.to_thread(_namespaces, store)
        for namespace in seen:
            if len(self._hits) < NAMESPACES_MAX:
                self._hits.setdefault(namespace, 0)

    async def _drop(self, reason: str) -> None:
        if self._store is not None:
            store, self._store = self._store, None
            log.warning("pool: %s: %s", self._address, reason)
            await store.close()
        self._error = reason


def _namespaces(store: AsyncStore) -> set[bytes]:
    listed = itertools.islice(store.store.list(), LISTED_MAX)
    found = {split(info.key)[0] for info in listed}
    return {namespace for namespace in found if len(namespace) == DIGEST_BYTES}


async def _connect(address: str) -> AsyncStore:
    return await AsyncStore.connect(address, timeout_s=LOOKUP_TIMEOUT_S)
