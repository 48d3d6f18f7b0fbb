"""Save jobs: what to save of a request now, within the bound on pinned blocks."""

from __future__ import annotations

import itertools
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass

import numpy as np

from moonpool.errors import AlreadyExistsError, MasterUnreachableError, NoSpaceError
from moonpool.transport.base import I64
from moonpool.vllm import objects
from moonpool.vllm.jobs import SaveDone, SaveJob
from moonpool.vllm.link import Clock, Link
from moonpool.vllm.memory import Failed, Known
from moonpool.vllm.objects import I32
from moonpool.vllm.parts import WHOLE, Part, Tables, with_states
from moonpool.vllm.pins import PinBook
from moonpool.vllm.pool_events import PoolEvents
from moonpool.vllm.stats import Tally
from moonpool.vllm.tracker import NEVER, RETRIES_MAX, Tracker, next_save_at, unsaved

REST_AFTER_FULL_S = 1.0
OVERDUE_S = 30.0
_REST_CODES = frozenset({NoSpaceError.code, MasterUnreachableError.code, -901})


@dataclass(slots=True)
class _Running:
    request_id: str
    part: Part
    ends: I32
    names: bytes
    until: float


class SavePlanner:
    """Makes save jobs, holds their blocks, and learns from how they end."""

    def __init__(
        self,
        *,
        block_size: int,
        stride: int,
        decode: bool,
        timeout_s: float,
        pins: PinBook,
        ready: Callable[[], bool],
        known: Known,
        failed: Failed,
        link: Link,
        tally: Tally,
        clock: Clock,
        parts: Sequence[Part] = WHOLE,
    ) -> None:
        """stride: blocks in an object; timeout_s: how long a worker tries to save a job; ready:
        whether the worker can save at all."""
        self._ready, self._parts = ready, tuple(parts)
        self._always = [part for part in parts if not part.state]
        self._block_size, self._stride, self._decode = block_size, stride, decode
        self._timeout_s, self._pins, self._known, self._failed = timeout_s, pins, known, failed
        self._link, self._tally, self._clock = link, tally, clock
        self._ids = itertools.count(1)
        self._running: dict[int, _Running] = {}
        self._rest_until = 0.0
        self.events: PoolEvents | None = None
        """Told of jobs and how they end, where somebody listens."""

    def plan(
        self, tracker: Tracker, computed: int, tables: Tables, namespace: bytes, end: bool
    ) -> list[SaveJob]:
        """Return the jobs for what is computed and not saved, one a part; holds their blocks.

        computed: tokens whose KV is in the blocks of ``tables`` when the jobs begin.
        """
        if tracker.stale:
            tracker.next_at = NEVER
            return []
        if not self._able:
            self._put_off(tracker, computed, end)
            return []
        ends = unsaved(
            tracker, computed, self._block_size, self._stride, decode=self._decode, end=end
        )
        if not len(ends):
            self._set_next(tracker, computed)
            return []
        room = self._pins.room(end=end)
        chosen, considered = self._choose(tracker, ends, tables, room)
        self._advance(tracker, considered)
        if considered < ends[-1]:
            self._left_out(tracker, computed, int(ends[-1]) - considered, end)
        else:
            self._set_next(tracker, computed)
        return [
            self._make(tracker, part, np.array(which, np.int32), tables, namespace, end)
            for part, which in zip(self._always, chosen, strict=True)
            if which
        ]

    def plan_state(
        self,
        tracker: Tracker,
        tokens: int,
        states: Mapping[int, int],
        tables: Tables,
        namespace: bytes,
    ) -> list[SaveJob]:
        """Return the jobs for a prefix of ``tokens`` whose states are in these blocks, by group:
        one for the states, and where no full object ends one for what else a hit needs."""
        end, hashes = tokens // self._block_size, tracker.request.block_hashes
        whole = not tokens % self._block_size and 0 < end <= len(hashes)
        if not whole or tracker.stale or not self._able:
            return []
        digest, ends = objects.digest_of(hashes[end - 1]), np.array([end], np.int32)
        there = with_states(tables, states, end)
        needed = [part for part in self._parts if part.state or end % self._stride]
        starts = {part.number: int(part.starts(ends, self._stride)[0]) for part in needed}
        if not all(part.has(there, starts[part.number], end) for part in needed):
            return []
        wanted = [p for p in needed if objects.mark(digest, p.number) not in self._known]
        blocks = sum((end - starts[part.number]) * part.width for part in wanted)
        if blocks > self._pins.room():
            self._tally.count("save_blocks_dropped", blocks)
            return []
        return [self._make(tracker, part, ends, there, namespace, end=False) for part in wanted]

    @property
    def _able(self) -> bool:
        able = self._ready() and self._pins.bound and self._link.get() is not None
        return able and self._clock() >= self._rest_until

    def ended(self, done: SaveDone, trackers: dict[str, Tracker]) -> None:
        """Give a job's blocks back and note what is in the pool now."""
        self._pins.give_back(done.job_id)
        if self.events is not None:
            self.events.saved(done)
        job = self._running.pop(done.job_id, None)
        if job is None:
            return
        codes = np.array(done.codes[: len(job.ends)], np.int64)
        there = (codes == 0) | (codes == AlreadyExistsError.code)
        names = objects.split_names(job.names)
        good = [name for name, ok in zip(names, there, strict=False) if ok]
        self._known.add((objects.mark(name, job.part.number) for name in good), self._clock())
        self._failed.forget(
            name for name, code in zip(names, codes.tolist(), strict=False) if code == 0
        )
        bad = np.flatnonzero(~there)
        if len(bad):
            self._tried_in_vain(job, int(bad[0]), codes, trackers.get(job.request_id))

    def reset(self) -> None:
        """Learn nothing from jobs that are under way: they save for another namespace."""
        for job in self._running.values():
            job.ends = job.ends[:0]
        if self.events is not None:
            self.events.reset()

    def running_of(self, request_id: str) -> set[int]:
        """Return the numbers of a request's jobs that are under way."""
        return {number for number, job in self._running.items() if job.request_id == request_id}

    @property
    def pending(self) -> bool:
        """Whether jobs are in progress that end by themselves if the engine goes on stepping."""
        now = self._clock()
        return any(now < job.until for job in self._running.values())

    def _choose(
        self, tracker: Tracker, ends: I32, tables: Tables, room: int
    ) -> tuple[list[list[int]], int]:
        """Return the ends of each part's objects to save now, and the block up to which all were
        looked at."""
        chosen: list[list[int]] = [[] for _ in self._always]
        considered, hashes = tracker.saved, tracker.request.block_hashes
        starts = [part.starts(ends, self._stride).tolist() for part in self._always]
        for at, end in enumerate(ends.tolist()):
            digest = objects.digest_of(hashes[end - 1])
            # What has left a window is gone.
            wanted = [
                part
                for part, begins in zip(self._always, starts, strict=True)
                if objects.mark(digest, part.number) not in self._known
                and part.has(tables, begins[at], end)
            ]
            blocks = sum((end - starts[part.number][at]) * part.width for part in wanted)
            if blocks > room:
                break
            room -= blocks
            for part in wanted:
                chosen[part.number].append(end)
            considered = end
        return chosen, considered

    def _advance(self, tracker: Tracker, considered: int) -> None:
        tracker.saved = max(tracker.saved, objects.floor(considered, self._stride))
        if considered % self._stride:
            tracker.tail_end = max(tracker.tail_end, considered)

    def _make(
        self,
        tracker: Tracker,
        part: Part,
        ends: I32,
        tables: Tables,
        namespace: bytes,
        end: bool,
    ) -> SaveJob:
        hashes, stride = tracker.request.block_hashes, self._stride
        starts = part.starts(ends, stride)
        ids = [
            block
            for start, last in zip(starts.tolist(), ends.tolist(), strict=True)
            for block in part.rows(tables, start, last)
        ]
        job = SaveJob(
            next(self._ids),
            namespace,
            objects.names_at(hashes, ends),
            objects.parent_names_at(hashes, ends, stride),
            ends - starts,
            np.array(ids, np.int32),
            tracker.wish.sends,
            part.number,
        )
        self._pins.hold(job.job_id, ids, end=end)
        if self.events is not None and not part.number:
            self.events.saving(job, ends.tolist(), tracker.request)
        until = self._clock() + self._timeout_s + OVERDUE_S
        self._running[job.job_id] = _Running(
            tracker.request.request_id, part, ends, job.names, until
        )
        return job

    def _tried_in_vain(
        self, job: _Running, first_bad: int, codes: I64, tracker: Tracker | None
    ) -> None:
        if _REST_CODES.intersection(codes.tolist()):
            self._rest_until = self._clock() + REST_AFTER_FULL_S
        if tracker is None or tracker.retries >= RETRIES_MAX:
            return
        # The request's blocks are still there: save again from the first gap on.
        tracker.retries += 1
        start = int(objects.starts_of(job.ends, self._stride)[first_bad])
        tracker.lost(start, self._stride)

    def _left_out(self, tracker: Tracker, computed: int, blocks: int, end: bool) -> None:
        self._tally.count("save_blocks_dropped" if end else "save_blocks_deferred", blocks)
        tracker.next_at = computed + self._block_size

    def _put_off(self, tracker: Tracker, computed: int, end: bool) -> None:
        tracker.next_at = computed + self._block_size
        if end:
            blocks = min(computed // self._block_size, len(tracker.request.block_hashes))
            left = blocks - max(tracker.saved, tracker.tail_end)
            self._tally.count("save_blocks_dropped", max(0, left))

    def _set_next(self, tracker: Tracker, computed: int) -> None:
        tracker.next_at = next_save_at(tracker, self._block_size, self._stride, decode=self._decode)
