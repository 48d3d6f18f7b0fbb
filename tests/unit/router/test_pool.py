"""The pool, as the router asks it."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest

from moonpool.client.async_store import AsyncStore
from moonpool.core.keys import pack
from moonpool.errors import MasterUnreachableError
from moonpool.router.knowledge import Knowledge
from moonpool.router.metrics import RouterMetrics
from moonpool.router.pool import StorePool
from moonpool.router.prompt import Prompt, RoutedRequest

SPACE = bytes(range(16))
HASHES = [bytes([number]) * 32 for number in range(1, 40)]


async def _pool(**options: Any) -> tuple[StorePool, AsyncStore]:
    store = AsyncStore.local("64MB")
    # An object of four blocks is named by the hash of its last one.
    for last in (4, 8, 12):
        assert await store.put(pack(HASHES[last - 1][:16], SPACE), b"kv" * 100)

    async def connect(address: str) -> AsyncStore:
        return store

    return StorePool("here:1", object_tokens=64, connect=connect, **options), store


@pytest.mark.parametrize("namespace", [None, SPACE])
async def test_leading_tokens_are_counted(namespace: bytes | None) -> None:
    pool, _ = await _pool(namespace=namespace)
    assert await pool.prefix(HASHES, 16) == 0
    running = asyncio.create_task(pool.run())
    async with asyncio.timeout(10):
        while not await pool.prefix(HASHES, 16):  # noqa: ASYNC110
            await asyncio.sleep(0.002)
    assert await pool.prefix(HASHES, 16) == 12 * 16
    assert await pool.prefix(HASHES[:9], 16) == 8 * 16
    assert await pool.prefix([bytes(32), *HASHES[20:]], 16) == 0
    assert pool.describe()["connected"] is True
    assert SPACE.hex() in str(pool.describe()["namespaces"])
    running.cancel()
    await asyncio.gather(running, return_exceptions=True)
    assert await pool.prefix(HASHES, 16) == 0


async def test_a_master_that_is_away_is_nothing_known() -> None:
    async def connect(address: str) -> AsyncStore:
        raise MasterUnreachableError("nobody there")

    pool = StorePool("away:1", SPACE, connect=connect)
    running = asyncio.create_task(pool.run())
    await asyncio.sleep(0)
    await asyncio.sleep(0)
    assert await pool.prefix(HASHES, 16) == 0
    assert "nobody there" in str(pool.describe()["error"])
    running.cancel()
    await asyncio.gather(running, return_exceptions=True)


class SlowPool:
    def __init__(self) -> None:
        self.go_on = asyncio.Event()
        self.asked = 0

    async def prefix(self, hashes: Any, block_tokens: int) -> int:
        self.asked += 1
        await self.go_on.wait()
        return 64

    def describe(self) -> dict[str, object]:
        return {}


async def test_a_slow_pool_holds_no_request() -> None:
    pool, metrics = SlowPool(), RouterMetrics()
    knowledge = Knowledge(metrics, pool=pool, pool_wait_s=0.001)

    def request() -> RoutedRequest:
        routed = RoutedRequest("/", b"", 0.0)
        routed.prompt = Prompt([1, 2], 40.0, 16.0, True, HASHES[:2])
        return routed

    for _ in range(40):
        routed = request()
        await knowledge.ask_pool(routed)
        assert routed.pool_tokens == 0
    # What is still asked is bounded too.
    assert pool.asked == 32
    assert 'outcome="busy"} 8.0' in metrics.text().decode()
    pool.go_on.set()
    await asyncio.gather(*knowledge._asking)
    routed = request()
    await knowledge.ask_pool(routed)
    assert routed.pool_tokens == 64
