"""The worker's loads: threads that bring objects into the engine's blocks, front first.

Every job ends exactly once. A job whose deadline passed, or of which an object failed, ends with
the blocks from the first object that failed reported for recomputing. It ends only when no thread
works on it any more: nothing may write into a block that the engine thinks is its own again.

A job with patience is for objects that another engine is still computing: each is fetched when it
is there, and what has not come when nothing more is to be expected counts as failed.
"""

from __future__ import annotations

import bisect
import contextlib
import threading
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field

import numpy as np

from moonpool.core.keys import DIGEST_BYTES
from moonpool.errors import DeadlineError, MasterUnreachableError, MoonpoolError
from moonpool.transport.base import I64, Pieces
from moonpool.vllm import objects
from moonpool.vllm.arrivals import Arrival
from moonpool.vllm.fences import Fence
from moonpool.vllm.jobs import LoadDone, LoadJob
from moonpool.vllm.layout import RegionTable
from moonpool.vllm.link import Clock, Link
from moonpool.vllm.log import logger
from moonpool.vllm.stats import Tally
from moonpool.vllm.waits import Waits

CHUNK_BYTES = 8 << 20
BYTES_PER_S = 1 << 34
"""About what a load moves alone. Loads are served by when they could have ended at this speed, so
that small ones pass large ones, but none waits for ever."""
LATE = DeadlineError.code


@dataclass(slots=True)
class _Load:
    """A job in progress. Objects [0, claimed) are taken by threads; ``working`` of them now;
    [0, ready) are there, as far as is known. ``arrival`` and ``arrived`` (when the last came) are
    of jobs that wait."""

    job: LoadJob
    fence: Fence | None
    began: float
    deadline: float
    due: float
    chunk_bytes: int
    ready: int
    claimed: int = 0
    working: int = 0
    first_bad: int = 1 << 30
    codes: dict[int, int] = field(default_factory=dict)
    arrival: Arrival | None = None
    arrived: float = 0.0

    @property
    def count(self) -> int:
        return len(self.job.ends)

    @property
    def exhausted(self) -> bool:
        """Whether nothing is left that is worth fetching."""
        return self.claimed >= min(self.count, self.first_bad)

    @property
    def claimable(self) -> bool:
        """Whether there is an object to fetch now."""
        return self.claimed < min(self.ready, self.first_bad)


class Loader:
    """Loads jobs with some threads. ``submit`` and ``take_ended`` are called by the engine."""

    def __init__(
        self,
        tables: Sequence[RegionTable],
        link: Link,
        scratch: Callable[[], int],
        *,
        threads: int,
        timeout_s: float,
        tally: Tally,
        clock: Clock,
        chunk_bytes: int = CHUNK_BYTES,
        notify: Callable[[], None] = lambda: None,
    ) -> None:
        """tables: by the jobs' part; scratch: called once by each thread; the address of registered
        memory, large enough for an object, where blocks go that the engine has already. notify:
        called when a job ends."""
        self._tables, self._link, self._scratch = tables, link, scratch
        self._timeout_s, self._tally, self._clock = timeout_s, tally, clock
        self._chunk_bytes, self._thread_count = chunk_bytes, threads
        self._notify = notify
        self._work = threading.Condition()
        self._queue: list[_Load] = []
        self._open: dict[int, _Load] = {}
        self._waits = Waits(link, self._came, clock)
        self._ended: list[LoadDone] = []
        self._newest = 0
        self._stopped = False
        self._threads = [
            threading.Thread(target=self._run, name=f"moonpool-load-{n}", daemon=True)
            for n in range(threads)
        ]
        for thread in self._threads:
            thread.start()

    def submit(self, job: LoadJob, fence: Fence | None = None) -> None:
        """Begin a load, after the fence; a job that was seen before is ignored."""
        now = self._clock()
        nbytes = self._tables[job.part].bytes_of(job.block_ids)
        with self._work:
            if job.generation <= self._newest:
                return
            self._newest = job.generation
            load = _Load(
                job,
                fence,
                now,
                now + self._timeout_s,
                now + nbytes / BYTES_PER_S,
                # A load that is not much larger than a chunk should still use all threads.
                min(self._chunk_bytes, nbytes // (2 * self._thread_count)),
                0 if job.patience_s else len(job.ends),
            )
            self._open[job.generation] = load
            if not load.count or self._stopped:
                load.first_bad = 0
                self._end(load)
                return
            self._offer(load)
        if job.patience_s:
            keys = objects.keys_of(job.namespace, job.names)
            self._waits.add(job.generation, keys, job.transfer, job.patience_s)

    def cancel(self, generation: int) -> None:
        """Let a load end as soon as no thread works on it; one that has ended is no error."""
        with self._work:
            load = self._open.get(generation)
            if load is not None and not load.exhausted:
                self._spoil(load, load.claimed, LATE)
                self._end_if_done(load)

    def take_ended(self) -> list[LoadDone]:
        """Return how loads ended since the last call."""
        with self._work:
            ended, self._ended = self._ended, []
        return ended

    def close(self, timeout_s: float = 5.0) -> None:
        """Take no more work and wait for the threads. Idempotent."""
        with self._work:
            self._stopped = True
            for load in list(self._open.values()):
                if not load.exhausted:
                    self._spoil(load, load.claimed, LATE)
                    self._end_if_done(load)
            self._work.notify_all()
        self._waits.close()
        for thread in self._threads:
            thread.join(timeout_s)

    def _run(self) -> None:
        scratch = 0
        while True:
            claim = self._claim()
            if claim is None:
                return
            load, first, last = claim
            codes: list[int] = [LATE] * (last - first)
            try:
                scratch = scratch or self._scratch()
                codes = self._fetch(load, first, last, scratch)
            except MoonpoolError as error:
                codes = [error.code] * (last - first)
                self._link.failed(error)
            except Exception:  # noqa: BLE001 - a load must end, whatever happens
                codes = [MoonpoolError.code] * (last - first)
                logger.exception("moonpool: a load failed")
            finally:
                self._settle(load, first, codes)

    def _claim(self) -> tuple[_Load, int, int] | None:
        """Wait for objects to fetch and take a few that together are about a chunk."""
        with self._work:
            while not self._queue:
                if self._stopped:
                    return None
                self._work.wait()
            load = self._queue[0]
            first = load.claimed
            job = load.job
            blocks = int(job.ends[first] - job.starts[first])
            size = self._tables[job.part].block_bytes * blocks
            last = min(load.ready, first + max(1, load.chunk_bytes // size))
            load.claimed, load.working = last, load.working + 1
            if not load.claimable:
                self._queue.pop(0)
            return load, first, last

    def _offer(self, load: _Load) -> None:
        """Let threads take what can be fetched of a load."""
        if load.claimable and load not in self._queue:
            bisect.insort(self._queue, load, key=lambda waiting: waiting.due)
            self._work.notify_all()

    def _came(self, generation: int, arrival: Arrival) -> None:
        """More of a load that waits is there, or nothing more is to be expected."""
        with self._work:
            load = self._open.get(generation)
            if load is None:
                return
            now = self._clock()
            if arrival.ready > load.ready:
                load.ready, load.arrived = arrival.ready, now
                load.deadline = now + self._timeout_s
            load.arrival = arrival
            if arrival.over and not arrival.complete:
                self._spoil(load, arrival.ready, LATE)
            self._offer(load)
            self._end_if_done(load)

    def _fetch(self, load: _Load, first: int, last: int, scratch: int) -> list[int]:
        job, left_s = load.job, load.deadline - self._clock()
        pool = self._link.get()
        if pool is None or left_s <= 0:
            return [MasterUnreachableError.code if pool is None else LATE] * (last - first)
        names = job.names[first * DIGEST_BYTES : last * DIGEST_BYTES]
        pieces = self._pieces(job, first, last, scratch)
        keys = objects.keys_of(job.namespace, names)
        with load.fence() if load.fence else contextlib.nullcontext():
            # An object of another size is not what was asked for, whoever put it under this key.
            codes = pool.get_pieces(keys, pieces, timeout_s=left_s, exact=True)
        sizes = pieces.sizes()[codes == 0]
        self._tally.count("load_bytes", int(sizes.sum()))
        if len(sizes):
            self._link.worked()
        return [int(code) for code in codes]

    def _pieces(self, job: LoadJob, first: int, last: int, scratch: int) -> Pieces:
        begin, end = int(job.starts[first]), int(job.ends[last - 1])
        table, at = self._tables[job.part], job.first_position
        starts: I64 = np.append(job.starts[first:last], job.ends[last - 1]).astype(np.int64) - begin
        own = max(0, min(job.first_block, end) - begin)
        rows = job.block_ids[(begin - at) * table.width : (end - at) * table.width]
        return table.pieces(rows, starts, own, scratch)

    def _settle(self, load: _Load, first: int, codes: list[int]) -> None:
        with self._work:
            load.working -= 1
            for at, code in enumerate(codes, first):
                if code:
                    self._spoil(load, at, code)
            self._end_if_done(load)

    def _end_if_done(self, load: _Load) -> None:
        if load.exhausted:
            if load in self._queue:
                self._queue.remove(load)
            if load.working == 0:
                self._end(load)

    def _spoil(self, load: _Load, at: int, code: int) -> None:
        load.codes[at] = code
        load.first_bad = min(load.first_bad, at)

    def _end(self, load: _Load) -> None:
        del self._open[load.job.generation]
        if load.job.patience_s:
            self._waits.cancel(load.job.generation)
            self._count_arrival(load)
        job, bad = load.job, load.first_bad < 1 << 30
        good = int(job.ends[-1]) if load.count else job.first_block
        if bad and load.count:
            good = max(job.first_block, int(job.starts[load.first_bad]))
        names = objects.split_names(job.names)
        failed = tuple((code, names[at]) for at, code in sorted(load.codes.items()) if names)
        self._ended.append(LoadDone(job.request_id, job.generation, good, failed))
        self._tally.count("loads")
        self._tally.count("loads_failed", int(bad))
        self._tally.count("load_objects_failed", len(failed))
        seconds = self._clock() - load.began
        self._tally.observe("load_seconds", seconds)
        nbytes = self._tables[job.part].bytes_of(job.block_ids)
        logger.debug(
            "moonpool: load of %s: %d objects, %.3f GB in %.4f s, %d failed",
            job.request_id,
            load.count,
            nbytes / 1e9,
            seconds,
            len(failed),
        )
        self._notify()

    def _count_arrival(self, load: _Load) -> None:
        """Count a load that waited for another engine."""
        tally, arrival, now = self._tally, load.arrival, self._clock()
        tally.count("remote_prefills")
        tally.count("remote_prefills_failed", int(load.first_bad < load.count))
        if arrival is None or not load.ready:
            return
        tally.count("remote_objects", load.ready)
        tally.count("remote_objects_early", arrival.early)
        tally.observe("await_seconds", load.arrived - load.began)
        tally.observe("handover_seconds", now - load.arrived)
