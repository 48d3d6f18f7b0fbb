from __future__ import annotations

import asyncio
import inspect
import threading
from collections.abc import Iterator
from typing import Any

import numpy as np
import pytest

from moonpool import AsyncStore, NotFoundError, Pieces, Store
from moonpool.client.async_store import AsyncStore as Concrete


@pytest.fixture
def gate() -> Iterator[threading.Event]:
    event = threading.Event()
    yield event
    event.set()


async def test_the_same_verbs_as_store() -> None:
    async with AsyncStore.local("16MB") as store:
        assert await store.put("a", b"hello")
        assert not await store.put("a", b"other")
        assert await store.get("a") == b"hello"
        assert await store.put_batch(["b", "c"], [b"x", b"y"]) == [0, 0]
        assert await store.get_batch(["b", "d"]) == [b"x", None]
        assert await store.exists_batch(["a", "d"]) == [True, False]
        assert await store.match_prefix(["a", "b", "d"]) == 2
        lease = await store.hold(["a"], 10.0)
        await store.release(lease)
        assert [info.size for info in await store.list()] == [5, 1, 1]
        assert (await store.status()).objects == 3
        await store.remove("a")
        with pytest.raises(NotFoundError):
            await store.get("a")


async def test_zero_copy() -> None:
    async with AsyncStore.local("16MB") as store:
        memory = np.arange(64, dtype=np.uint8)
        store.register_buffer(memory)
        pieces = Pieces(np.array([memory.ctypes.data]), np.array([64]), np.array([0, 1]))
        assert (await store.put_pieces(["a"], pieces)).tolist() == [0]
        memory[:] = 0
        assert (await store.get_pieces(["a"], pieces)).tolist() == [0]
        assert memory.tolist() == list(range(64))


async def test_many_calls_at_once() -> None:
    async with AsyncStore.local("16MB", threads=3) as store:
        keys = [f"k{i}" for i in range(200)]
        assert all(await asyncio.gather(*(store.put(key, key.encode()) for key in keys)))
        assert await asyncio.gather(*map(store.get, keys)) == [key.encode() for key in keys]


async def test_a_cancelled_call_is_over_before_the_cancellation_is_told(
    monkeypatch: pytest.MonkeyPatch, gate: threading.Event
) -> None:
    begun, ended = asyncio.Event(), threading.Event()
    loop = asyncio.get_running_loop()

    def slow(self: Store, key: str, buffer: bytearray, **_: object) -> int:
        loop.call_soon_threadsafe(begun.set)
        gate.wait(10)
        buffer[:] = b"late"
        ended.set()
        return 4

    monkeypatch.setattr(Store, "get_into", slow)
    async with AsyncStore.local("16MB") as store:
        buffer = bytearray(4)
        task = asyncio.ensure_future(store.get_into("a", buffer))
        await begun.wait()
        task.cancel()
        loop.call_later(0.01, gate.set)
        with pytest.raises(asyncio.CancelledError):
            await task
        assert ended.is_set()
        assert buffer == b"late"


async def test_a_call_that_waits_for_its_turn_can_be_cancelled(
    monkeypatch: pytest.MonkeyPatch, gate: threading.Event
) -> None:
    calls: list[str] = []
    begun = asyncio.Event()
    loop = asyncio.get_running_loop()

    def slow(self: Store, key: str, **_: object) -> bytes:
        calls.append(key)
        loop.call_soon_threadsafe(begun.set)
        gate.wait(10)
        return b""

    monkeypatch.setattr(Store, "get", slow)
    async with AsyncStore.local("16MB", threads=1) as store:
        first = asyncio.ensure_future(store.get("first"))
        await begun.wait()
        second = asyncio.ensure_future(store.get("second"))
        await asyncio.sleep(0)
        second.cancel()
        with pytest.raises(asyncio.CancelledError):
            await second
        gate.set()
        assert await first == b""
    assert calls == ["first"]


def public(cls: type[Any]) -> dict[str, Any]:
    return {
        name: member
        for name, member in inspect.getmembers(cls, callable)
        if not name.startswith("_") and name not in ("connect", "local", "close")
    }


def test_no_verb_is_missing() -> None:
    verbs, waited = public(Store), public(Concrete)
    assert set(verbs) == set(waited)
    for name, member in verbs.items():
        theirs = inspect.signature(waited[name]).parameters
        assert [
            (p.name, p.kind, p.default) for p in inspect.signature(member).parameters.values()
        ] == [(p.name, p.kind, p.default) for p in theirs.values()], name
