"""The worker's saves: threads that put objects into the pool straight from the engine's blocks.

The scheduler holds the blocks until the job is reported; every job is reported exactly once, with
a code for each object, at the latest soon after its deadline. Several threads share an urgent job.
"""

from __future__ import annotations

import contextlib
import threading
from collections import deque
from collections.abc import Callable, Sequence
from dataclasses import dataclass

import numpy as np

from moonpool.errors import (
    AlreadyExistsError,
    DeadlineError,
    MasterUnreachableError,
    MoonpoolError,
    NoSpaceError,
)
from moonpool.transport.base import I64
from moonpool.vllm import objects
from moonpool.vllm.fences import Fence
from moonpool.vllm.jobs import SaveDone, SaveJob
from moonpool.vllm.layout import RegionTable
from moonpool.vllm.link import Clock, Link
from moonpool.vllm.log import logger
from moonpool.vllm.stats import Tally

CHUNK_BYTES = 16 << 20
LATE = DeadlineError.code
_HOPELESS = frozenset({NoSpaceError.code, MasterUnreachableError.code, LATE})
"""Codes after which the rest of a job is not worth trying."""


@dataclass(slots=True)
class _Save:
    """A job in progress: codes of its objects, and parts that have not ended."""

    job: SaveJob
    fence: Fence | None
    began: float
    deadline: float
    codes: list[int]
    parts: int = 1


@dataclass(frozen=True, slots=True)
class _Part:
    """Objects [first, last) of a job."""

    save: _Save
    first: int
    last: int


class Saver:
    """Saves jobs with some threads. ``submit`` and ``take_ended`` are called by the engine."""

    def __init__(
        self,
        tables: Sequence[RegionTable],
        link: Link,
        *,
        threads: int,
        timeout_s: float,
        tally: Tally,
        clock: Clock,
        chunk_bytes: int = CHUNK_BYTES,
        notify: Callable[[], None] = lambda: None,
    ) -> None:
        """tables: by the jobs' part; timeout_s: how long a job may take from its submission;
        notify: called when one ends."""
        self._tables, self._link, self._tally, self._clock = tables, link, tally, clock
        self._timeout_s, self._chunk_bytes, self._notify = timeout_s, chunk_bytes, notify
        self._work = threading.Condition()
        self._queue: deque[_Part] = deque()
        self._urgent: deque[_Part] = deque()
        self._ended: list[SaveDone] = []
        self._newest = 0
        self._stopped = False
        self._threads = [
            threading.Thread(target=self._run, name=f"moonpool-save-{n}", daemon=True)
            for n in range(threads)
        ]
        for thread in self._threads:
            thread.start()

    def submit(self, jobs: list[SaveJob], fence: Fence | None = None) -> None:
        """Begin saves, after the fence; a job that was seen before is ignored."""
        now = self._clock()
        with self._work:
            for job in jobs:
                if job.job_id <= self._newest:
                    continue
                self._newest = job.job_id
                count = len(job.counts)
                save = _Save(job, fence, now, now + self._timeout_s, [LATE] * count)
                if self._stopped:
                    self._end(save)
                    continue
                ends = self._parts(job) if job.urgent else [count]
                save.parts = len(ends)
                (self._urgent if job.urgent else self._queue).extend(
                    _Part(save, first, last) for first, last in zip([0, *ends], ends, strict=False)
                )
            self._work.notify_all()

    def _parts(self, job: SaveJob) -> list[int]:
        """Return where parts of about a chunk end."""
        size = self._tables[job.part].block_bytes * int(job.counts.max(initial=1))
        step, count = max(1, self._chunk_bytes // size), len(job.counts)
        return [*range(step, count, step), count]

    def take_ended(self) -> list[SaveDone]:
        """Return the jobs that ended since the last call."""
        with self._work:
            ended, self._ended = self._ended, []
        return ended

    def close(self, timeout_s: float = 5.0) -> None:
        """Drop what has not begun and wait for the threads. Idempotent."""
        with self._work:
            self._stopped = True
            while self._urgent or self._queue:
                part = self._next()
                self._end_part(part, [LATE] * (part.last - part.first))
            self._work.notify_all()
        for thread in self._threads:
            thread.join(timeout_s)

    def _run(self) -> None:
        while True:
            with self._work:
                while not (self._urgent or self._queue):
                    if self._stopped:
                        return
                    self._work.wait()
                part = self._next()
            fence, count, codes = part.save.fence, part.last - part.first, list[int]()
            try:
                with fence() if fence else contextlib.nullcontext():
                    self._put(part, codes)
            except MoonpoolError as error:
                codes += [error.code] * (count - len(codes))
                self._link.failed(error)
            except Exception:  # noqa: BLE001 - the blocks must be given back, whatever happens
                logger.exception("moonpool: a save failed")
            finally:
                with self._work:
                    missing = count - len(codes)
                    self._end_part(part, codes + [MoonpoolError.code] * missing)

    def _next(self) -> _Part:
        return (self._urgent or self._queue).popleft()

    def _put(self, part: _Part, codes: list[int]) -> None:
        """Put a part's objects chunk by chunk, appending a code for each."""
        job = part.save.job
        table = self._tables[job.part]
        keys = objects.keys_of(job.namespace, job.names)
        parents = objects.parents_of(job.namespace, job.parents)
        starts: I64 = np.concatenate(([0], np.cumsum(job.counts))).astype(np.int64)
        while (first := part.first + len(codes)) < part.last:
            size = table.block_bytes * int(job.counts[first])
            last = min(part.last, first + max(1, self._chunk_bytes // size))
            left_s, pool = part.save.deadline - self._clock(), self._link.get()
            if left_s <= 0 or pool is None or _HOPELESS.intersection(codes):
                codes += [LATE if left_s <= 0 else _hopeless(codes)] * (part.last - first)
                return
            rows = starts[first : last + 1]
            blocks = job.block_ids[rows[0] * table.width : rows[-1] * table.width]
            pieces = table.pieces(blocks, rows - rows[0])
            found = pool.put_pieces(
                keys[first:last], pieces, parents=parents[first:last], timeout_s=left_s
            )
            self._tally.count("save_bytes", int(pieces.sizes()[found == 0].sum()))
            codes += [int(code) for code in found]
            if not _HOPELESS.intersection(codes):
                self._link.worked()

    def _end_part(self, part: _Part, codes: list[int]) -> None:
        part.save.codes[part.first : part.last] = codes
        part.save.parts -= 1
        if not part.save.parts:
            self._end(part.save)

    def _end(self, save: _Save) -> None:
        codes = save.codes
        existing = codes.count(AlreadyExistsError.code)
        stored = codes.count(0)
        self._ended.append(SaveDone(save.job.job_id, tuple(codes)))
        self._tally.count("saves")
        self._tally.count("save_objects", stored)
        self._tally.count("save_objects_existing", existing)
        self._tally.count("save_objects_failed", len(codes) - stored - existing)
        self._tally.observe("save_seconds", self._clock() - save.began)
        self._notify()


def _hopeless(codes: list[int]) -> int:
    """Return the code for objects that were not tried: the one that spoiled the job."""
    return next((code for code in codes if code in _HOPELESS), MasterUnreachableError.code)
