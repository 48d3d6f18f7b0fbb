"""AsyncStore: cancellation, closing while calls run, use after close."""

import asyncio
import contextlib
import time
from collections.abc import AsyncIterator

import numpy as np
import pytest

from moonpool import AsyncStore
from moonpool.errors import MoonpoolError
from moonpool.transport.base import Pieces
from tests.adversarial.harness import Cluster
from tests.adversarial.values import MIB, value_of

SIZE = 6 * MIB
VALUE = value_of("big", 0, SIZE)


@pytest.fixture(params=["local", "shm", "tcp"])
async def pool(request: pytest.FixtureRequest) -> AsyncIterator[AsyncStore]:
    """Return an empty pool of 32 MiB."""
    if request.param == "local":
        made = AsyncStore.local("32MB")
    else:
        cluster: Cluster = request.getfixturevalue("shared")
        made = await AsyncStore.connect(cluster.address, transports=(request.param,))
        await made.remove_all(force=True)
    yield made
    with contextlib.suppress(MoonpoolError):
        await made.remove_all(force=True)
    await made.close()


async def cancelled_after(
    delay_s: float, call: "asyncio.Future[object] | asyncio.Task[object]"
) -> bool:
    """Cancel a call after a while; tell whether it was cancelled before it ended."""
    await asyncio.sleep(delay_s)
    call.cancel()
    try:
        await asyncio.wait_for(call, 20)
    except asyncio.CancelledError:
        return True
    return False


def task(awaitable: object) -> "asyncio.Task[object]":
    """Run an awaitable as a task."""

    async def run() -> object:
        return await awaitable  # type: ignore[misc]

    return asyncio.ensure_future(run())


async def test_cancelled_put_is_absent_or_complete_and_space_comes_back(pool: AsyncStore) -> None:
    for i in range(10):
        key = f"cancel-{i % 3}"
        with contextlib.suppress(MoonpoolError):
            await pool.remove(key, force=True)
        await cancelled_after(0.0007 * i, task(pool.put(key, VALUE)))
        for _ in range(3):
            got = (await pool.get_batch([key]))[0]
            assert got in (None, VALUE)
    until = time.monotonic() + 10
    while (await pool.status()).puts_in_progress and time.monotonic() < until:  # noqa: ASYNC110
        await asyncio.sleep(0.02)
    assert (await pool.status()).puts_in_progress == 0
    await pool.remove_all(force=True)
    keys = [f"whole-{i}" for i in range(26)]
    assert await pool.put_batch(keys, [VALUE[: MIB - 4096]] * 26) == [0] * 26
    assert await pool.exists_batch(keys) == [True] * 26


def one(memory: "np.ndarray[tuple[int], np.dtype[np.uint8]]") -> Pieces:
    """Return one object that is all of the memory, in many pieces."""
    step = 1 << 16
    starts = np.arange(0, len(memory), step, dtype=np.uint64)
    return Pieces(
        starts + np.uint64(memory.ctypes.data),
        np.minimum(np.uint64(step), np.uint64(len(memory)) - starts),
        np.array([0, len(starts)], np.int64),
    )


async def test_memory_of_a_cancelled_put_is_not_read_any_more(pool: AsyncStore) -> None:
    for i in range(10):
        memory = np.frombuffer(bytearray(VALUE), np.uint8)
        pool.register_buffer(memory)
        await cancelled_after(0.0006 * i, task(pool.put_pieces([f"src-{i % 2}"], one(memory))))
        memory[:] = 0xEE
        await asyncio.sleep(0.03)
        got = (await pool.get_batch([f"src-{i % 2}"]))[0]
        assert got in (None, VALUE), "bytes written after the cancelled call returned were put"
        pool.unregister_buffer(memory)
        await pool.remove_all(force=True)


async def test_memory_of_a_cancelled_get_is_not_written_any_more(pool: AsyncStore) -> None:
    await pool.put("dst", VALUE)
    for i in range(10):
        memory = np.zeros(SIZE, np.uint8)
        if i % 2:
            pool.register_buffer(memory)
            call = task(pool.get_pieces(["dst"], one(memory)))
        else:
            call = task(pool.get_into("dst", memory))
        await cancelled_after(0.0005 * i, call)
        memory[:] = 0xEE
        await asyncio.sleep(0.03)
        assert (memory == 0xEE).all(), "memory changed after the cancelled call returned"
        if i % 2:
            pool.unregister_buffer(memory)
    assert await pool.get("dst") == VALUE


async def test_many_cancelled_calls_do_not_wear_the_store_out(pool: AsyncStore) -> None:
    await pool.put("k", b"x" * 10_000)
    calls = [task(pool.get("k")) for _ in range(300)]
    await asyncio.sleep(0.001)
    for call in calls[::2]:
        call.cancel()
    done = await asyncio.wait_for(asyncio.gather(*calls, return_exceptions=True), 20)
    assert all(isinstance(d, asyncio.CancelledError) or d == b"x" * 10_000 for d in done)
    assert all(d == b"x" * 10_000 for d in done[1::2])
    assert await asyncio.wait_for(pool.get("k"), 5) == b"x" * 10_000


async def test_close_while_calls_run(pool: AsyncStore) -> None:
    await pool.put("big", VALUE)
    calls = [task(pool.get("big")) for _ in range(6)]
    calls += [task(pool.put(f"p{i}", VALUE)) for i in range(6)]
    await asyncio.sleep(0.004)
    await asyncio.wait_for(pool.close(), 20)
    done = await asyncio.wait_for(asyncio.gather(*calls, return_exceptions=True), 20)
    for result in done:
        if isinstance(result, BaseException):
            assert isinstance(result, MoonpoolError), repr(result)
        else:
            assert result in (True, False, VALUE)


async def test_use_after_close_is_a_typed_error(pool: AsyncStore) -> None:
    await pool.close()
    await pool.close()
    for call in (
        lambda: pool.get("k"),
        lambda: pool.put("k", b"v"),
        lambda: pool.exists("k"),
        lambda: pool.match_prefix(["k"]),
        lambda: pool.hold(["k"], 1.0),
        lambda: pool.status(),
        lambda: pool.list(),
        lambda: pool.get_into("k", bytearray(4)),
        lambda: pool.remove_batch(["k"]),
    ):
        with pytest.raises(MoonpoolError):
            await call()


async def test_event_loop_is_free_while_bytes_move(pool: AsyncStore) -> None:
    calls = [task(pool.put(f"free-{i}", VALUE)) for i in range(3)]
    worst, last = 0.0, time.monotonic()
    while not all(call.done() for call in calls):
        await asyncio.sleep(0.001)
        now = time.monotonic()
        worst, last = max(worst, now - last), now
    await asyncio.gather(*calls)
    assert worst < 3.0


async def test_context_manager_and_errors_as_in_store(pool: AsyncStore) -> None:
    async with AsyncStore.local("16MB") as inner:
        assert await inner.put("k", b"v") is True
        assert await inner.put("k", b"w") is False
        assert await inner.get("k") == b"v"
        with pytest.raises(MoonpoolError):
            await inner.put("", b"v")
        with pytest.raises(MoonpoolError):
            await inner.get("absent")
        with pytest.raises(MoonpoolError):
            await inner.put("huge", bytes(17 * MIB))
    with pytest.raises(MoonpoolError):
        await inner.get("k")
