"""The worker's loads, with real threads over a pool in memory."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from typing import Any

import numpy as np
import pytest

from moonpool.errors import DeadlineError, MasterUnreachableError
from moonpool.vllm import objects
from moonpool.vllm.jobs import LoadDone, LoadJob
from moonpool.vllm.loads import Loader
from moonpool.vllm.stats import Tally
from tests.unit.vllm.engine import BLOCK, LAYERS, ROW, STRIDE, Memory, truth
from tests.unit.vllm.fakes import Clock, FakeLink, FakePool, FakeRequest

NAMESPACE = b"n" * 16


class Bench:
    """A loader over 32 blocks of memory; objects of one chunk each."""

    def __init__(self, threads: int = 2, chunk_objects: int = 1) -> None:
        self.pool, self.clock, self.tally = FakePool(), Clock(), Tally()
        self.memory = Memory(32)
        self.link = FakeLink(self.pool)
        size = STRIDE * LAYERS * ROW
        self.scratch = [np.full(size, 7, np.uint8) for _ in range(threads)]
        for at, nbytes in self.memory.table.storages:
            self.pool.register_memory(at, nbytes)
        for part in self.scratch:
            self.pool.register_memory(int(part.ctypes.data), size)
        addresses = [int(part.ctypes.data) for part in self.scratch]
        self.loader = Loader(
            (self.memory.table,),
            self.link,  # type: ignore[arg-type]
            addresses.pop,
            threads=threads,
            timeout_s=10.0,
            tally=self.tally,
            clock=self.clock,
            chunk_bytes=size * chunk_objects,
        )
        self.request = FakeRequest("r", range(40), BLOCK)
        self.generation = 0
        self.jobs: dict[int, LoadJob] = {}

    def key(self, end: int) -> bytes:
        return objects.keys_of(NAMESPACE, self.request.block_hashes[end - 1][:16])[0]

    def fill(self, last: int) -> None:
        for end in objects.ends_between(0, last, STRIDE).tolist():
            start = (end - 1) // STRIDE * STRIDE
            content = [truth(self.request.block_hashes[at]).tobytes() for at in range(start, end)]
            self.pool.objects[self.key(end)] = b"".join(content)

    def job(self, last: int, first: int = 0, name: str = "r") -> LoadJob:
        self.generation += 1
        ends = objects.ends_between(first, last, STRIDE)
        starts = objects.starts_of(ends, STRIDE)
        names = objects.names_at(self.request.block_hashes, ends)
        ids = np.arange(1 + int(starts[0]), 1 + last, dtype=np.int32)
        job = LoadJob(name, self.generation, NAMESPACE, names, starts, ends, ids, first)
        self.jobs[job.generation] = job
        return job

    def wait(self, count: int = 1) -> tuple[list[LoadDone], set[int]]:
        done: list[LoadDone] = []
        bad: set[int] = set()
        for _ in range(5000):
            for one in self.loader.take_ended():
                done.append(one)
                bad.update(self.jobs[one.generation].ids_from(one.good_blocks))
            if len(done) >= count:
                return done, bad
            threading.Event().wait(0.002)
        raise AssertionError("a load never ended")

    def right(self, at: int) -> bool:
        return self.memory.read(1 + at) == truth(self.request.block_hashes[at]).tobytes()


@pytest.fixture
def bench() -> Iterator[Bench]:
    made = Bench()
    yield made
    made.loader.close()


def test_blocks_get_the_bytes_that_were_saved(bench: Bench) -> None:
    bench.fill(7)
    bench.loader.submit(bench.job(7))
    (done,), bad = bench.wait()
    assert (done.good_blocks, done.failed, bad) == (7, (), set())
    assert all(bench.right(at) for at in range(7))
    assert bench.tally.take()["load_bytes"] == 7 * LAYERS * ROW


def test_blocks_the_engine_has_are_not_written(bench: Bench) -> None:
    bench.fill(6)
    before = bench.memory.read(3)
    bench.loader.submit(bench.job(6, first=3))
    (done,), bad = bench.wait()
    assert (done.good_blocks, bad) == (6, set())
    assert bench.memory.read(3) == before
    assert [bench.right(at) for at in range(6)] == [False] * 3 + [True] * 3


@pytest.mark.parametrize(("broken", "good"), [(2, 0), (6, 4), (9, 8)])
@pytest.mark.parametrize("chunk_objects", [1, 2, 9])
def test_from_the_first_object_that_failed_all_is_recomputed(
    broken: int, good: int, chunk_objects: int
) -> None:
    """Weakness 10: also what was not tried any more."""
    bench = Bench(chunk_objects=chunk_objects)
    bench.fill(9)
    del bench.pool.objects[bench.key(broken)]
    bench.loader.submit(bench.job(9))
    (done,), bad = bench.wait()
    assert done.good_blocks == good
    assert bad == set(range(1 + good, 10))
    assert all(bench.right(at) for at in range(good))
    assert (-704, bench.request.block_hashes[broken - 1][:16]) in done.failed
    bench.loader.close()


def test_a_failure_inside_the_engines_own_hit_spares_its_blocks(bench: Bench) -> None:
    bench.fill(6)
    del bench.pool.objects[bench.key(4)]
    bench.loader.submit(bench.job(6, first=3))
    (done,), bad = bench.wait()
    assert done.good_blocks == 3
    assert bad == {4, 5, 6}


@pytest.mark.parametrize("error", [MasterUnreachableError("gone"), OSError("gone"), KeyError("x")])
def test_every_load_ends_whatever_is_raised(bench: Bench, error: Exception) -> None:
    """Weaknesses 9 and 11: an exception ends the load, not the thread."""
    bench.fill(4)
    bench.pool.raises = error
    bench.loader.submit(bench.job(4))
    (done,), bad = bench.wait()
    assert (done.good_blocks, bad) == (0, {1, 2, 3, 4})
    bench.pool.raises = None
    bench.loader.submit(bench.job(4))
    (done,), bad = bench.wait()
    assert (done.good_blocks, bad) == (4, set())


def test_without_a_pool_a_load_fails_at_once(bench: Bench) -> None:
    bench.link.pool = None
    bench.loader.submit(bench.job(4))
    (done,), bad = bench.wait()
    assert done.failed[0][0] == MasterUnreachableError.code
    assert bad == {1, 2, 3, 4}


def test_a_load_past_its_deadline_fails(bench: Bench) -> None:
    """Weakness 7: the deadline counts from the job's arrival, queue included."""
    bench.fill(4)
    bench.pool.gate = threading.Event()
    for _ in range(2):
        bench.loader.submit(bench.job(2, name="slow"))
    bench.loader.submit(bench.job(4, name="waits"))
    bench.clock.now += 60
    bench.pool.gate.set()
    done, _ = bench.wait(3)
    late = next(one for one in done if one.request_id == "waits")
    assert late.good_blocks == 0
    assert late.failed[0][0] == DeadlineError.code


def test_a_load_is_shared_by_threads_front_first(bench: Bench) -> None:
    """Weakness 6: one long load does not go through one thread."""
    bench.fill(10)
    bench.pool.gate = threading.Event()
    seen: set[str] = set()
    begun: list[bytes] = []
    original = bench.pool.get_pieces

    def get(*args: Any, **kwargs: Any) -> Any:
        seen.add(threading.current_thread().name)
        begun.append(args[0][0])
        return original(*args, **kwargs)

    bench.pool.get_pieces = get  # type: ignore[method-assign]
    bench.loader.submit(bench.job(10))
    while len(seen) < 2:
        threading.Event().wait(0.001)
    bench.pool.gate.set()
    (done,), _ = bench.wait()
    assert done.good_blocks == 10
    assert set(begun[:2]) == {bench.key(2), bench.key(4)}


def test_a_job_that_is_sent_twice_is_done_once(bench: Bench) -> None:
    bench.fill(4)
    job = bench.job(4)
    bench.loader.submit(job)
    bench.loader.submit(job)
    bench.wait()
    bench.loader.submit(job)
    assert bench.loader.take_ended() == []


def test_a_job_without_objects_fails_all_its_blocks(bench: Bench) -> None:
    empty = np.empty(0, np.int32)
    ids = np.array([4, 5], np.int32)
    job = bench.jobs[1] = LoadJob("r", 1, NAMESPACE, b"", empty, empty, ids, 3)
    bench.loader.submit(job)
    (done,), bad = bench.wait()
    assert (done.good_blocks, bad) == (3, {4, 5})


def test_closing_ends_every_load_and_is_idempotent(bench: Bench) -> None:
    bench.fill(10)
    bench.pool.gate = threading.Event()
    bench.loader.submit(bench.job(10))
    bench.loader.submit(bench.job(10, name="waits"))
    timer = threading.Timer(0.05, bench.pool.gate.set)
    timer.start()
    bench.loader.close()
    bench.loader.close()
    timer.join()
    done, bad = bench.wait(2)
    assert {one.request_id for one in done} == {"r", "waits"}
    assert len(done) == 2
    assert bad
    bench.loader.submit(bench.job(4, name="after"))
    (late,), _ = bench.wait()
    assert late.good_blocks == 0


def test_a_small_load_passes_a_large_one() -> None:
    """Loads are served by when they could have ended alone; nobody waits for ever."""
    bench = Bench(threads=1)
    bench.fill(9)
    bench.pool.gate = threading.Event()
    bench.loader.submit(bench.job(9, name="first"))
    while not bench.loader._queue or bench.loader._queue[0].claimed == 0:
        threading.Event().wait(0.001)
    bench.loader.submit(bench.job(9, name="large"))
    bench.loader.submit(bench.job(2, name="small"))
    bench.clock.now += 1.0
    bench.loader.submit(bench.job(2, name="late"))
    bench.pool.gate.set()
    done, _ = bench.wait(4)
    assert [one.request_id for one in done] == ["small", "first", "large", "late"]
    bench.loader.close()
