"""The worker's saves, with real threads over a pool in memory."""

from __future__ import annotations

import contextlib
import dataclasses
import threading
from collections.abc import Iterator

import numpy as np
import pytest

from moonpool.errors import AlreadyExistsError, DeadlineError, MasterUnreachableError, NoSpaceError
from moonpool.vllm import objects
from moonpool.vllm.jobs import SaveDone, SaveJob
from moonpool.vllm.saves import Saver
from moonpool.vllm.stats import Tally
from tests.unit.vllm.engine import BLOCK, LAYERS, ROW, STRIDE, Memory, truth
from tests.unit.vllm.fakes import Clock, FakeLink, FakePool, FakeRequest

NAMESPACE = b"n" * 16


class Bench:
    """A saver over 32 blocks of memory that hold a request's KV."""

    def __init__(self, threads: int = 2) -> None:
        self.pool, self.clock, self.tally = FakePool(), Clock(), Tally()
        self.memory = Memory(32)
        for at, nbytes in self.memory.table.storages:
            self.pool.register_memory(at, nbytes)
        self.link = FakeLink(self.pool)
        self.saver = Saver(
            (self.memory.table,),
            self.link,  # type: ignore[arg-type]
            threads=threads,
            timeout_s=10.0,
            tally=self.tally,
            clock=self.clock,
            chunk_bytes=2 * STRIDE * LAYERS * ROW,
        )
        self.request = FakeRequest("r", range(40), BLOCK)
        for at in range(10):
            self.memory.write(1 + at, truth(self.request.block_hashes[at]))
        self.jobs = 0

    def job(self, last: int) -> SaveJob:
        self.jobs += 1
        hashes = self.request.block_hashes
        ends = objects.ends_between(0, last, STRIDE)
        return SaveJob(
            self.jobs,
            NAMESPACE,
            objects.names_at(hashes, ends),
            objects.parent_names_at(hashes, ends, STRIDE),
            ends - objects.starts_of(ends, STRIDE),
            np.arange(1, 1 + last, dtype=np.int32),
        )

    def wait(self, count: int = 1) -> list[SaveDone]:
        done: list[SaveDone] = []
        for _ in range(5000):
            done += self.saver.take_ended()
            if len(done) >= count:
                return done
            threading.Event().wait(0.002)
        raise AssertionError("a save never ended")


@pytest.fixture
def bench() -> Iterator[Bench]:
    made = Bench()
    yield made
    made.saver.close()


def test_objects_hold_the_blocks_bytes_and_name_their_parents(bench: Bench) -> None:
    bench.saver.submit([bench.job(7)], None)
    (done,) = bench.wait()
    assert done.codes == (0, 0, 0, 0)
    hashes = bench.request.block_hashes
    for end in (2, 4, 6, 7):
        key = objects.keys_of(NAMESPACE, hashes[end - 1][:16])[0]
        start = (end - 1) // STRIDE * STRIDE
        content = b"".join(truth(hashes[at]).tobytes() for at in range(start, end))
        assert bench.pool.objects[key] == content
        parent = objects.keys_of(NAMESPACE, hashes[start - 1][:16])[0] if start else None
        assert bench.pool.parents[key] == parent
    counts = bench.tally.take()
    assert (counts["save_objects"], counts["save_bytes"]) == (4, 7 * LAYERS * ROW)


def test_what_others_saved_meanwhile_is_no_failure(bench: Bench) -> None:
    """Weakness 25: the pool decides, no question before each put."""
    bench.saver.submit([bench.job(4)], None)
    bench.wait()
    bench.saver.submit([bench.job(4)], None)
    (done,) = bench.wait()
    assert done.codes == (AlreadyExistsError.code,) * 2
    assert bench.tally.take()["save_objects_existing"] == 2


def test_a_full_pool_is_not_asked_for_the_rest(bench: Bench) -> None:
    bench.pool.put_code = NoSpaceError.code
    bench.saver.submit([bench.job(10)], None)
    (done,) = bench.wait()
    assert done.codes == (NoSpaceError.code,) * 5
    assert bench.pool.puts == 1


@pytest.mark.parametrize("error", [MasterUnreachableError("x"), OSError("x"), ValueError("x")])
def test_every_save_ends_whatever_is_raised(bench: Bench, error: Exception) -> None:
    bench.pool.raises = error
    bench.saver.submit([bench.job(10)], None)
    (done,) = bench.wait()
    assert len(done.codes) == 5
    assert all(code < 0 for code in done.codes)
    bench.pool.raises = None
    bench.saver.submit([bench.job(4)], None)
    assert bench.wait()[0].codes == (0, 0)


def test_without_a_pool_a_save_is_dropped(bench: Bench) -> None:
    bench.link.pool = None
    bench.saver.submit([bench.job(4)], None)
    assert bench.wait()[0].codes == (MasterUnreachableError.code,) * 2


def test_a_save_past_its_deadline_is_dropped(bench: Bench) -> None:
    bench.pool.gate = threading.Event()
    bench.saver.submit([bench.job(2), bench.job(2), bench.job(4)], None)
    bench.clock.now += 60
    bench.pool.gate.set()
    last = max(bench.wait(3), key=lambda done: done.job_id)
    assert last.codes == (DeadlineError.code,) * 2


def test_a_save_waits_for_the_step_to_be_computed(bench: Bench) -> None:
    computed = threading.Event()

    @contextlib.contextmanager
    def fence() -> Iterator[None]:
        assert computed.wait(20)
        yield

    bench.saver.submit([bench.job(4)], fence)
    assert bench.pool.puts == 0
    computed.set()
    assert bench.wait()[0].codes == (0, 0)


def test_a_job_that_is_sent_twice_is_done_once(bench: Bench) -> None:
    job = bench.job(4)
    bench.saver.submit([job, job], None)
    bench.wait()
    bench.saver.submit([job], None)
    assert bench.saver.take_ended() == []


def test_closing_drops_what_has_not_begun(bench: Bench) -> None:
    bench.pool.gate = threading.Event()
    bench.saver.submit([bench.job(4) for _ in range(4)], None)
    timer = threading.Timer(0.05, bench.pool.gate.set)
    timer.start()
    bench.saver.close()
    bench.saver.close()
    timer.join()
    assert len(bench.wait(4)) == 4
    bench.saver.submit([bench.job(4)], None)
    assert bench.wait()[0].codes == (DeadlineError.code,) * 2


def test_what_another_engine_waits_for_is_saved_first() -> None:
    bench = Bench(threads=1)
    bench.pool.gate = threading.Event()
    jobs = [bench.job(2), bench.job(2), bench.job(2)]
    jobs.append(dataclasses.replace(bench.job(4), urgent=True))
    bench.saver.submit(jobs[:1])
    while bench.saver._queue:
        threading.Event().wait(0.001)
    bench.saver.submit(jobs[1:])
    bench.pool.gate.set()
    assert [done.job_id for done in bench.wait(4)] == [1, 4, 2, 3]
    bench.saver.close()


def test_several_threads_share_an_urgent_job() -> None:
    bench = Bench(threads=4)
    met = threading.Barrier(3)

    @contextlib.contextmanager
    def together() -> Iterator[None]:
        met.wait(20)
        yield

    # Five objects, two in a chunk: three parts.
    job = dataclasses.replace(bench.job(10), urgent=True)
    bench.saver.submit([job], together)
    assert bench.wait()[0].codes == (0,) * 5
    bench.pool.put_code = NoSpaceError.code
    bench.pool.objects.popitem()
    again = dataclasses.replace(bench.job(10), urgent=True)
    bench.saver.submit([again], together)
    codes = bench.wait()[0].codes
    assert sorted(codes) == [AlreadyExistsError.code] * 4 + [NoSpaceError.code]
    bench.saver.close()
