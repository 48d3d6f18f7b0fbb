"""The connector's own way from the pool to the GPU and back, without an engine around it.

Objects of 256 tokens of an 8B model are saved from memory that stands for an engine's KV blocks,
until the pool holds several times what the GPU's caches of addresses do; then prompts' worth of
them are loaded into other blocks, by several settings of the ways there. Bytes are checked.
"""

from __future__ import annotations

import asyncio
import contextlib
import ctypes
import json
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from types import SimpleNamespace
from typing import Any, TypeVar

import numpy as np
from bench.gpu.rig import Bench, Pool, median

from moonpool.client import getting
from moonpool.gpu import Driver, copier, open_driver
from moonpool.transport import native
from moonpool.vllm import executor, runners, settings
from moonpool.vllm.executor import Runner, Sizes
from moonpool.vllm.jobs import LoadJob, SaveJob
from moonpool.vllm.layout import RegionTable
from moonpool.vllm.stats import Tally

T = TypeVar("T")
MIB = 1 << 20
STRIDE = 16
NAMESPACE = b"loading-bench---"
WAIT_S = 60.0


@dataclass(frozen=True, slots=True)
class Size:
    """objects: in the memory that stands for an engine's; loads: objects in each prompt."""

    objects: int
    block_bytes: int
    rounds: int
    loads: tuple[int, ...]
    repeats: int = 3


FULL = Size(400, 2 * MIB, 2, (31, 125, 312))
SMALL = Size(24, 64 << 10, 2, (5, 11))


@dataclass(frozen=True, slots=True)
class Way:
    """A setting of the loads. Sizes are bytes; None: as it is."""

    name: str
    mover: str = "thread"
    threads: int = 0
    chunk: int | None = None
    workers: int | None = None
    step: int | None = None
    extra: dict[str, Any] = field(default_factory=dict)


WAYS = (
    Way("process", "process"),
    Way("process, 1 thread", "process", threads=1),
    Way("process, 4 threads", "process", threads=4),
    Way("thread"),
    Way("thread, chunks of 128 MiB", chunk=128 * MIB),
    Way("process again", "process"),
)


class Memory:
    """Memory of blocks, on the GPU or, in a rehearsal, the host's; each with content of its own."""

    def __init__(self, size: Size, driver: Driver | None) -> None:
        self.size, self.driver = size, driver
        self.count = size.objects * STRIDE
        nbytes = self.count * size.block_bytes
        if driver is None:
            self._host = np.zeros(nbytes, np.uint8)
            self.address, self.stream = int(self._host.ctypes.data), 0
        else:
            driver.use(0)
            self.address, self.stream = driver.memory_alloc(nbytes), driver.stream_create()
            self._event = driver.event_create()
        self.nbytes = nbytes
        self._room = (
            np.zeros(size.block_bytes // 8, np.uint64)
            if driver is None
            else self._pinned(driver, size.block_bytes)
        )

    def table(self) -> RegionTable:
        """Return the connector's view of it."""
        one = np.array([self.size.block_bytes], np.uint64)
        base = np.array([self.address], np.uint64)
        return RegionTable(base, one, one, self.count, ((self.address, self.nbytes),), "bench")

    def fill(self, salt: int) -> None:
        """Give every block a content that says which it is."""
        for block in range(self.count):
            self._room[0] = (salt << 40) + (block << 20)
            self._room[-1] = (salt << 40) + (block << 20) + len(self._room) - 1
            self._move(self.address + block * self.size.block_bytes, int(self._room.ctypes.data))

    def block(self, block: int) -> tuple[int, int, int]:
        """Return the salt and the number that a block's content says, and a word of its end."""
        self._move(int(self._room.ctypes.data), self.address + block * self.size.block_bytes)
        first, last = int(self._room[0]), int(self._room[-1])
        return first >> 40, (first >> 20) & 0xFFFFF, last - first

    def close(self) -> None:
        """Give it back."""
        if self.driver is not None:
            self.driver.memory_free(self.address)

    def _move(self, target: int, source: int) -> None:
        if self.driver is None:
            ctypes.memmove(target, source, self.size.block_bytes)
            return
        self.driver.copy(target, source, self.size.block_bytes, self.stream)
        self.driver.event_record(self._event, self.stream)
        self.driver.event_synchronize(self._event)

    @staticmethod
    def _pinned(driver: Driver, nbytes: int) -> np.ndarray[Any, np.dtype[np.uint64]]:
        return np.frombuffer(native.view(driver.host_alloc(nbytes), nbytes), np.uint64)


def names(salt: int, first: int, last: int) -> bytes:
    """Return packed digests of objects."""
    return b"".join(
        salt.to_bytes(8, "little") + n.to_bytes(8, "little") for n in range(first, last)
    )


def save_job(number: int, salt: int, first: int, last: int) -> SaveJob:
    """Return the job that saves objects [first, last) of the memory as it is."""
    ids = np.arange(first * STRIDE, last * STRIDE, dtype=np.int32)
    counts = np.full(last - first, STRIDE, np.int32)
    return SaveJob(
        number, NAMESPACE, names(salt, first, last), bytes(16 * (last - first)), counts, ids
    )


def load_job(
    number: int, salt: int, first: int, last: int, blocks: np.ndarray[Any, Any]
) -> LoadJob:
    """Return the job that loads objects into blocks."""
    starts = np.arange(last - first, dtype=np.int32) * STRIDE
    return LoadJob(
        f"r{number}", number, NAMESPACE, names(salt, first, last), starts, starts + STRIDE,
        blocks.astype(np.int32), 0,
    )  # fmt: skip


async def measure(bench: Bench, pool: Pool, size: Size, ways: tuple[Way, ...]) -> dict[str, Any]:
    """Save, then load by each way; return seconds and GB/s by way and objects."""
    driver = None if bench.cpu else open_driver(0)
    memory = Memory(size, driver)
    result: dict[str, Any] = {}
    try:
        result["saves"] = await asyncio.to_thread(_saves, bench, pool, memory)
        for number, way in enumerate(ways):
            with _set(way):
                found = await asyncio.to_thread(_loads, pool, memory, way, number)
            result[way.name] = found
            bench.say(f"   {way.name}: {json.dumps(found)}")
    finally:
        memory.close()
    return result


@contextlib.contextmanager
def _set(way: Way) -> Iterator[None]:
    """Set what has no setting, for as long as the block lasts."""
    sizes, workers, step = Sizes.of, getting.WORKERS, copier.STEP_BYTES
    usual = Sizes.of("cuda")
    if way.chunk is not None:
        executor.Sizes = SimpleNamespace(  # type: ignore[assignment,misc]
            of=lambda _device: Sizes(way.chunk or 0, usual.save)
        )
    getting.WORKERS = way.workers or workers
    copier.STEP_BYTES = way.step or step
    try:
        yield
    finally:
        executor.Sizes, getting.WORKERS, copier.STEP_BYTES = Sizes, workers, step  # type: ignore[misc]
        assert executor.Sizes.of == sizes


@contextlib.contextmanager
def _runner(pool: Pool, memory: Memory, way: Way) -> Iterator[Runner]:
    chosen = settings.read(
        {"master": pool.master, "mover": way.mover, "load_threads": way.threads, **way.extra}
        if memory.driver is not None
        else {"master": pool.master, "load_threads": way.threads},
        "kv_both",
    )
    device = SimpleNamespace(type="cpu" if memory.driver is None else "cuda", index=0)
    place = runners.Place(
        chosen, "loading", (memory.table(),), STRIDE * memory.size.block_bytes, device, Tally(),
        time.monotonic,
    )  # fmt: skip
    opener: Callable[[], Driver] = lambda: memory.driver or open_driver(0)  # noqa: E731
    started = runners.start(place, opener=opener, stream=lambda: memory.stream)
    try:
        yield started.runner
    finally:
        started.runner.close()


def _saves(bench: Bench, pool: Pool, memory: Memory) -> dict[str, Any]:
    """Fill the pool; return what it took."""
    size, spent = memory.size, []
    with _runner(pool, memory, Way("saving", "process")) as runner:
        _settle(runner, memory)
        for salt in range(1, size.rounds + 1):
            memory.fill(salt)
            began = time.perf_counter()
            runner.save([save_job(salt * 1000, salt, 0, size.objects)], None)
            codes = _saved(runner)
            spent.append(time.perf_counter() - began)
            if any(codes):
                raise RuntimeError(f"not saved: {[code for code in codes if code][:5]}")
    nbytes = memory.nbytes
    found = {"seconds": spent, "GBps": [round(nbytes / s / 1e9, 1) for s in spent]}
    bench.say(f"   saves of {nbytes / 1e9:.1f} GB: {json.dumps(found)}")
    return found


def _loads(pool: Pool, memory: Memory, way: Way, turn: int) -> dict[str, Any]:
    size = memory.size
    rng = np.random.default_rng(turn)
    numbers = iter(range(turn * 1000 + 1, turn * 1000 + 999))
    found: dict[str, Any] = {}
    with _runner(pool, memory, way) as runner:
        _settle(runner, memory)
        for objects in size.loads:
            times = []
            for repeat in range(size.repeats):
                salt = repeat % size.rounds + 1
                first = int(rng.integers(0, size.objects - objects + 1))
                blocks = rng.permutation(memory.count)[: objects * STRIDE]
                job = load_job(next(numbers), salt, first, first + objects, blocks)
                began = time.perf_counter()
                runner.load([job], None)
                good = _loaded(runner)
                times.append(time.perf_counter() - began)
                _check(memory, job, good, salt, first)
            nbytes = objects * STRIDE * size.block_bytes
            found[str(objects)] = {
                "ms": [round(t * 1e3, 2) for t in times],
                "GBps": round(nbytes / median(times) / 1e9, 1),
            }
    return found


def _check(memory: Memory, job: LoadJob, good: int, salt: int, first: int) -> None:
    if good != len(job.block_ids):
        raise RuntimeError(f"{good} of {len(job.block_ids)} blocks were loaded")
    words = memory.size.block_bytes // 8
    for at in range(0, len(job.block_ids), 7):
        wanted = (salt, first * STRIDE + at, words - 1)
        if memory.block(int(job.block_ids[at])) != wanted:
            raise RuntimeError(f"block {at} holds {memory.block(int(job.block_ids[at]))}")


def _settle(runner: Runner, memory: Memory) -> None:
    """Wait until jobs have a chance and memory is pinned: a load of nothing ends well or not."""
    deadline = time.monotonic() + WAIT_S
    time.sleep(0.2 if memory.driver is None else 3.0)
    while not runner.ready:
        if time.monotonic() > deadline:
            raise RuntimeError("the runner does not become ready")
        time.sleep(0.05)


def _saved(runner: Runner) -> tuple[int, ...]:
    return _ended("save", lambda: runner.take()[1]).codes


def _loaded(runner: Runner) -> int:
    return _ended("load", lambda: runner.take()[0]).good_blocks


def _ended(what: str, take: Callable[[], Sequence[T]]) -> T:
    deadline = time.monotonic() + WAIT_S
    while time.monotonic() < deadline:
        done = take()
        if done:
            return done[0]
        time.sleep(0.0002)
    raise RuntimeError(f"a {what} does not end")
