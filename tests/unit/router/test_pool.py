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
from moonpool.router.pool_feed import PoolFeed
from moonpool.router.pool_index import PoolIndex
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
    down = False

    def __init__(self) -> None:
        self.go_on = asyncio.Event()
        self.asked = 0

    async def prefix(self, hashes: Any, block_tokens: int) -> int:
        self.asked += 1
        await self.go_on.wait()
        return 64

    def known(self, hashes: Any, block_tokens: int) -> int | None:
        return None

    def hosts(self, hashes: Any, block_tokens: int) -> dict[str, int]:
        return {}

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


async def _current(pool: StorePool) -> None:
    async with asyncio.timeout(10):
        while not pool.feed.current:  # noqa: ASYNC110
            await asyncio.sleep(0.002)


async def test_changes_are_followed_so_that_no_prompt_costs_a_question() -> None:
    pool, store = await _pool(namespace=SPACE)
    assert pool.known(HASHES, 16) is None
    running = asyncio.create_task(pool.run())
    await _current(pool)
    assert pool.known(HASHES, 16) == 12 * 16
    assert pool.known(HASHES[:9], 16) == 8 * 16
    assert sum(pool.hosts(HASHES, 16).values()) == 12 * 16
    await store.remove(pack(HASHES[7][:16], SPACE))
    async with asyncio.timeout(10):
        while pool.known(HASHES, 16) != 4 * 16:  # noqa: ASYNC110
            await asyncio.sleep(0.01)
    request = RoutedRequest("/", b"", 0.0, prompt=Prompt((), 640.0, 16.0, True, HASHES))
    metrics = RouterMetrics()
    knowledge = Knowledge(metrics, None, pool)
    await knowledge.ask_pool(request)
    assert request.pool_tokens == sum(request.pool_hosts.values()) == 64
    knowledge.report()
    assert 'pool_feed{what="current"} 1.0' in metrics.text().decode()
    assert 'pool_feed{what="gaps"} 0.0' in metrics.text().decode()
    assert 'pool_lookups_total{outcome="known hit"} 1.0' in metrics.text().decode()
    feed = pool.describe()["feed"]
    assert isinstance(feed, dict)
    assert (feed["current"], feed["gaps"], feed["snapshots"]) == (True, 0, 1)
    running.cancel()
    await asyncio.gather(running, return_exceptions=True)


async def test_a_feed_that_fails_is_survived_by_asking() -> None:
    pool, store = await _pool(namespace=SPACE)
    store.changes = _no_feed  # type: ignore[method-assign]
    running = asyncio.create_task(pool.run())
    async with asyncio.timeout(10):
        while not pool.feed.error.startswith("too old"):  # noqa: ASYNC110
            await asyncio.sleep(0.002)
    assert pool.known(HASHES, 16) is None
    assert await pool.prefix(HASHES, 16) == 12 * 16
    assert pool.hosts(HASHES, 16) == {}
    running.cancel()
    await asyncio.gather(running, return_exceptions=True)


async def _no_feed(first: int, limit: int = 0) -> Any:
    raise MasterUnreachableError("too old")


async def test_what_was_not_heard_of_lately_is_not_believed() -> None:
    now = [0.0]
    store = AsyncStore.local("64MB")
    feed = PoolFeed(clock=lambda: now[0])
    await feed.step(store)
    seen = [feed.current]
    now[0] += 2.0
    seen.append(feed.current)
    await feed.step(store)
    seen.append(feed.current)
    assert seen == [True, False, True]
    # More blocks than fit: the master is asked again.
    small = PoolFeed(PoolIndex(blocks_max=1), clock=lambda: now[0])
    for name in (b"a" * 16, b"b" * 16):
        assert await store.put(pack(name, SPACE), b"x")
    await small.step(store)
    assert not small.current
    assert small.describe()["error"] == "more blocks than fit"
    await store.close()
