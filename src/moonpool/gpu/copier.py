"""The Copier for a GPU's memory."""

from __future__ import annotations

import contextlib
import os
import threading
from collections import deque
from collections.abc import Iterator
from concurrent.futures import Future, ThreadPoolExecutor, wait
from contextlib import AbstractContextManager, contextmanager

import numpy as np

from moonpool.gpu import fence
from moonpool.gpu.base import Driver
from moonpool.gpu.lanes import Lane, Lanes
from moonpool.gpu.pinning import CHUNK_BYTES, Pinning
from moonpool.gpu.runs import Pinned, Runs, divided, joined, runs_of, steps
from moonpool.gpu.staging import Staging
from moonpool.transport import copy, streams
from moonpool.transport.base import U64, Pieces
from moonpool.transport.batch import span

STAGING_BYTES = 128 * 1024 * 1024
"""Four objects of 256 tokens of an 8B model."""
STAGED_STEP_BYTES = 8 * 1024 * 1024
"""Copied by the processor while the GPU copies as much from or to the other half."""
STEP_BYTES = 64 * 1024 * 1024
"""Prepared together, while the GPU copies what was prepared before."""
MARK_BYTES = 16 * 1024 * 1024
"""Saved between two marks; what arrived before one is hashed while the GPU goes on."""
MARKS = 4
HASH_BYTES = 16 * 1024 * 1024
"""Hashed by one thread at a time; less is not worth waking one."""
HASH_THREADS = max(1, min(8, (os.cpu_count() or 1) * 3 // 8))
_NICENESS = 5

_STAGED_MARKS = (MARKS, MARKS + 1)


class CudaCopier:
    """Copies between a GPU's memory and host memory: mapped segments are pinned in the
    background, and the GPU's copy engines then move the bytes without a step between. The pieces
    of a call are all in GPU memory, or all in the host's, as those of a store's plain verbs are.

    device: the GPU's number or UUID, None for the driver's. staging_bytes: pinned memory for what
    is not pinned (yet) and for what passes through sockets. pin_chunk_bytes, pin_bytes_max: see
    Pinning. hash_threads: that hash what was saved, for all calls together.
    """

    direct = False

    def __init__(
        self,
        driver: Driver,
        device: int | str | None = None,
        *,
        staging_bytes: int = STAGING_BYTES,
        pin_chunk_bytes: int = CHUNK_BYTES,
        pin_bytes_max: int | None = None,
        hash_threads: int = HASH_THREADS,
    ) -> None:
        """Raises GpuError."""
        driver.use(device)
        self.driver = driver
        self.pinning = Pinning(driver, chunk_bytes=pin_chunk_bytes, limit_bytes=pin_bytes_max)
        self._staging = Staging(driver, staging_bytes, self.pinning.include)
        self._lanes = Lanes(driver)
        self._hash_threads = hash_threads
        self._hashers = ThreadPoolExecutor(hash_threads, "moonpool-hash", _be_nice)

    def attach(self, address: int, nbytes: int) -> None:
        """Pin a mapping in the background."""
        self.pinning.attach(address, nbytes)

    def detach(self, address: int) -> None:
        """Unpin a mapping; waits for copies that use it."""
        self.pinning.detach(address)

    def staging(self, nbytes: int) -> AbstractContextManager[int]:
        """Lend host memory, pinned as far as there is such."""
        return self._staging.lend(nbytes)

    def after(
        self, event: int, timeout_s: float = fence.WAIT_S_MAX
    ) -> AbstractContextManager[None]:
        """Let the copies of this block (in this thread, and in threads that transports start for
        it) wait for an event's last recording, such as the end of the step that fills the memory.

        If it has not happened after ``timeout_s``, they fail with GpuError.
        """
        return fence.fence(event, timeout_s)

    def close(self) -> None:
        """Unpin and give back everything; no copy may be under way."""
        self._hashers.shutdown()
        self._lanes.close()
        self.pinning.close()
        self._staging.close()

    # --- copies -------------------------------------------------------------------------------

    def scatter(self, sources: U64, memory: Pieces) -> None:
        """Copy each object from its host address to its pieces."""
        if not self._is_gpu_memory(memory):
            copy.scatter(sources, memory)
            return
        fence.wait(self.driver)
        sizes = memory.sizes()
        with self._held(sources, sizes) as pinned, self._lanes.lane() as lane:
            for first, last in streams.steps(sizes, STEP_BYTES):
                runs = runs_of(span(memory, first, last), sources[first:last])
                direct, rest = divided(runs, pinned)
                self._load(lane, direct)
                if len(rest.sizes):
                    self._load_staged(lane, rest)
            lane.mark(0)
            lane.wait(0)

    def gather(self, memory: Pieces, targets: U64) -> U64:
        """Copy each object's pieces to its host address; return xxh3_64 of each, (n,)."""
        if not self._is_gpu_memory(memory):
            return copy.gather(memory, targets)
        fence.wait(self.driver)
        sizes = memory.sizes()
        hashing = _Hashing(self._hashers, self._hash_threads, targets, sizes)
        queued: deque[tuple[int, int]] = deque()
        try:
            with self._held(targets, sizes) as pinned, self._lanes.lane() as lane:
                number = 0
                for first, last in streams.steps(sizes, STEP_BYTES):
                    runs = runs_of(span(memory, first, last), targets[first:last])
                    for done in self._save_some(lane, runs, pinned, sizes[first:last]):
                        if len(queued) == MARKS:
                            _hash_next(lane, queued, hashing)
                        lane.mark(number % MARKS)
                        queued.append((first + done, number % MARKS))
                        number += 1
                while queued:
                    _hash_next(lane, queued, hashing)
        finally:
            hashing.finish()
        return hashing.sums

    def _save_some(self, lane: Lane, runs: Runs, pinned: Pinned, sizes: U64) -> Iterator[int]:
        """Queue copies of some objects in a few parts; yield after each how many objects are
        complete with it."""
        direct, rest = divided(runs, pinned)
        if len(rest.sizes):
            self._save(lane, direct)
            self._save_staged(lane, rest)
            yield len(sizes)
            return
        ends, arrived = np.cumsum(sizes), np.cumsum(direct.sizes)
        marks = np.arange(MARK_BYTES, direct.nbytes, MARK_BYTES)
        bounds = np.unique(np.append(np.searchsorted(arrived, marks) + 1, len(arrived)))
        at = 0
        for bound in bounds.tolist():
            self._save(lane, Runs(*(array[at:bound] for array in direct)))
            at = bound
            yield int(np.searchsorted(ends, arrived[at - 1], side="right")) if at else len(sizes)

    def _is_gpu_memory(self, memory: Pieces) -> bool:
        first, last = int(memory.starts[0]), int(memory.starts[-1])
        return first < last and self.driver.is_gpu_memory(int(memory.addresses[first]))

    def _held(self, host: U64, sizes: U64) -> AbstractContextManager[Pinned]:
        if not len(host):
            return self.pinning.hold(0, 0)
        return self.pinning.hold(int(host.min()), int((host + sizes).max()))

    def _load(self, lane: Lane, runs: Runs) -> None:
        self.driver.copy_batch(runs.device, runs.host, runs.sizes, lane.stream, stable=True)

    def _save(self, lane: Lane, runs: Runs) -> None:
        self.driver.copy_batch(runs.host, runs.device, runs.sizes, lane.stream, stable=False)

    # --- through staging memory ---------------------------------------------------------------

    def _load_staged(self, lane: Lane, runs: Runs) -> None:
        half = min(runs.nbytes, STAGED_STEP_BYTES)
        if not self._staging.pinned(2 * half):
            self._one_by_one(lane, runs.device, runs.host, runs.sizes)
            return
        with self._staging.lend(2 * half) as address, _drained(lane):
            for number, part in enumerate(steps(runs, half)):
                mark = _STAGED_MARKS[number % 2]
                lane.wait(mark)
                staged = _staged_at(address + number % 2 * half, part)
                copy.scatter(part.host, copy.whole(staged, part.sizes))
                self._load(lane, joined(Runs(staged, part.device, part.sizes)))
                lane.mark(mark)

    def _save_staged(self, lane: Lane, runs: Runs) -> None:
        half = min(runs.nbytes, STAGED_STEP_BYTES)
        if not self._staging.pinned(2 * half):
            self._one_by_one(lane, runs.host, runs.device, runs.sizes)
            return
        before: tuple[int, U64, Runs] | None = None
        with self._staging.lend(2 * half) as address, _drained(lane):
            for number, part in enumerate(steps(runs, half)):
                mark = _STAGED_MARKS[number % 2]
                staged = _staged_at(address + number % 2 * half, part)
                self._save(lane, joined(Runs(staged, part.device, part.sizes)))
                lane.mark(mark)
                if before is not None:
                    _unstage(lane, *before)
                before = mark, staged, part
            if before is not None:
                _unstage(lane, *before)

    def _one_by_one(self, lane: Lane, targets: U64, sources: U64, sizes: U64) -> None:
        """Let the driver copy memory that is not pinned, through its own staging."""
        for row in zip(targets.tolist(), sources.tolist(), sizes.tolist(), strict=True):
            self.driver.copy(*row, lane.stream)


class _Hashing:
    """Hashes objects that have arrived, in threads that all calls share."""

    def __init__(self, threads: ThreadPoolExecutor, parts: int, addresses: U64, sizes: U64) -> None:
        self.sums = np.zeros(len(sizes), np.uint64)
        self._memory = copy.whole(addresses, sizes)
        self._sizes = sizes
        self._threads = threads
        self._parts = parts
        self._first = 0
        self._futures: list[Future[None]] = []

    def upto(self, last: int, *, final: bool) -> None:
        """Hash the objects that follow, up to ``last``; the ``final`` ones as fast as may be, in
        this thread too."""
        first, self._first = self._first, last
        sizes = self._sizes[first:last]
        parts = self._parts if final else int(sizes.sum()) // HASH_BYTES
        ranges = [(first + a, first + b) for a, b in streams.chunks(sizes, max(parts, 1))]
        for a, b in ranges[final:]:
            try:
                self._futures.append(self._threads.submit(self._hash, a, b))
            except RuntimeError:  # no more threads
                self._hash(a, b)
        for a, b in ranges[:final]:
            self._hash(a, b)

    def finish(self) -> None:
        """Wait for all of it: afterwards nothing reads the memory."""
        wait(self._futures)
        for future in self._futures:
            future.result()

    def _hash(self, first: int, last: int) -> None:
        copy.digest_some(self._memory, first, last, self.sums)


def _hash_next(lane: Lane, queued: deque[tuple[int, int]], hashing: _Hashing) -> None:
    last, mark = queued.popleft()
    lane.wait(mark)
    hashing.upto(last, final=not queued)


def _be_nice() -> None:
    with contextlib.suppress(OSError):
        os.setpriority(os.PRIO_PROCESS, threading.get_native_id(), _NICENESS)


def _staged_at(address: int, part: Runs) -> U64:
    return np.cumsum(part.sizes) - part.sizes + np.uint64(address)


@contextmanager
def _drained(lane: Lane) -> Iterator[None]:
    """Let nothing be queued any more when the block ends: its memory goes back."""
    try:
        yield
    except BaseException:
        lane.drain()
        raise
    for mark in _STAGED_MARKS:
        lane.wait(mark)


def _unstage(lane: Lane, mark: int, staged: U64, part: Runs) -> None:
    lane.wait(mark)
    copy.scatter(staged, copy.whole(part.host, part.sizes))
