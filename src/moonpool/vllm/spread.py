"""A worker's jobs: what the scheduler asks for, of each shard that this worker holds.

The scheduler asks for the objects of a part; a worker moves its shards of them, each with a table
of its own. What becomes of the shards is joined again, so that each job of the scheduler ends once
at each worker.
"""

from __future__ import annotations

import itertools
from collections.abc import Sequence
from dataclasses import dataclass, field, replace

import numpy as np

from moonpool.core.keys import DIGEST_BYTES
from moonpool.transport.base import I64
from moonpool.vllm import objects
from moonpool.vllm.jobs import NOT_MINE, LoadDone, LoadJob, SaveDone, SaveJob, join_codes
from moonpool.vllm.parts import namespace_of


@dataclass(frozen=True, slots=True)
class Unit:
    """A shard of a part that this worker holds.

    turn: of how many workers that hold the same shard, and which of them this is: each saves the
    objects that fall to it.
    """

    part: int = 0
    shard: str = ""
    turn: tuple[int, int] = (0, 1)


@dataclass(slots=True)
class _Load:
    """Jobs of one generation that have not all ended."""

    jobs: list[LoadJob]
    left: set[int]
    good: int = 1 << 30
    failed: list[tuple[int, bytes]] = field(default_factory=list)
    bad: bool = False


@dataclass(slots=True)
class _Save:
    job_id: int
    codes: tuple[int, ...]
    left: set[int]


@dataclass(frozen=True, slots=True)
class Ended:
    """A load of the scheduler that has ended here. bad: blocks to compute again, of a model of one
    part; failed: whether anything is missing."""

    done: LoadDone
    bad: list[int]
    failed: bool


class Spread:
    """Numbers the runner's jobs. The number of a unit is that of its table."""

    def __init__(self, units: Sequence[Unit] = (Unit(),)) -> None:
        """No jobs yet."""
        self._units = tuple(units)
        self._numbers = itertools.count(1)
        self._loads: dict[int, _Load] = {}
        self._load_of: dict[int, tuple[_Load, LoadJob]] = {}
        self._saves: dict[int, tuple[_Save, I64]] = {}

    @property
    def loads(self) -> list[LoadJob]:
        """The scheduler's loads that have not ended."""
        return [job for load in self._loads.values() for job in load.jobs]

    def load(self, jobs: Sequence[LoadJob]) -> list[LoadJob]:
        """Return the runner's jobs for these of the scheduler."""
        made: list[LoadJob] = []
        for job in jobs:
            load = self._loads.setdefault(job.generation, _Load([], set()))
            load.jobs.append(job)
            for table, unit in self._of(job.part):
                number = next(self._numbers)
                load.left.add(number)
                self._load_of[number] = load, job
                space = namespace_of(job.namespace, unit.part, unit.shard)
                made.append(replace(job, generation=number, namespace=space, part=table))
        return made

    def running(self, generations: Sequence[int]) -> list[int]:
        """Return the runner's numbers of loads."""
        found = [self._loads[each].left for each in generations if each in self._loads]
        return sorted(number for numbers in found for number in numbers)

    def loaded(self, done: LoadDone) -> Ended | None:
        """One of the runner's loads has ended; return the scheduler's if it has ended with it."""
        load, job = self._load_of.pop(done.generation, (None, None))
        if load is None or job is None:
            return None
        load.left.discard(done.generation)
        load.good = min(load.good, done.good_blocks)
        load.failed += [(code, objects.mark(name, job.part)) for code, name in done.failed]
        load.bad |= not len(job.ends) or done.good_blocks < int(job.ends[-1])
        if load.left:
            return None
        del self._loads[job.generation]
        joined = LoadDone(job.request_id, job.generation, load.good, tuple(load.failed))
        return Ended(joined, load.jobs[0].ids_from(load.good) if load.bad else [], load.bad)

    def save(self, jobs: Sequence[SaveJob]) -> tuple[list[SaveJob], list[SaveDone]]:
        """Return the runner's jobs for these of the scheduler, and those that have ended already:
        other workers save all of it."""
        made: list[SaveJob] = []
        ended: list[SaveDone] = []
        for job in jobs:
            save = _Save(job.job_id, (NOT_MINE,) * len(job.counts), set())
            for table, unit in self._of(job.part):
                mine = _mine(job.names, unit.turn)
                if not len(mine):
                    continue
                number = next(self._numbers)
                save.left.add(number)
                self._saves[number] = save, mine
                made.append(replace(_only(job, mine, unit), job_id=number, part=table))
            if not save.left:
                ended.append(SaveDone(job.job_id, save.codes))
        return made, ended

    def saved(self, done: SaveDone) -> SaveDone | None:
        """One of the runner's saves has ended; return the scheduler's if it has ended with it."""
        save, mine = self._saves.pop(done.job_id, (None, None))
        if save is None or mine is None:
            return None
        codes = [NOT_MINE] * len(save.codes)
        for at, code in zip(mine.tolist(), done.codes, strict=False):
            codes[at] = code
        save.codes = join_codes(save.codes, codes)
        save.left.discard(done.job_id)
        return None if save.left else SaveDone(save.job_id, save.codes)

    def _of(self, part: int) -> list[tuple[int, Unit]]:
        return [(table, unit) for table, unit in enumerate(self._units) if unit.part == part]


def _mine(names: bytes, turn: tuple[int, int]) -> I64:
    """Return which objects fall to a worker: digests are as good as random."""
    at, count = turn
    last = np.frombuffer(names, np.uint8).reshape(-1, DIGEST_BYTES)[:, -1]
    return np.flatnonzero(last % count == at)


def _only(job: SaveJob, mine: I64, unit: Unit) -> SaveJob:
    """Return a job with some of its objects, in the namespace of a unit."""
    space = namespace_of(job.namespace, unit.part, unit.shard)
    if len(mine) == len(job.counts):
        return replace(job, namespace=space)
    width = len(job.block_ids) // max(1, int(job.counts.sum()))
    ends = np.cumsum(job.counts) * width
    rows = [job.block_ids[ends[at] - job.counts[at] * width : ends[at]] for at in mine]
    names, parents = objects.split_names(job.names), objects.split_names(job.parents)
    return replace(
        job,
        namespace=space,
        names=b"".join([names[at] for at in mine]),
        parents=b"".join([parents[at] for at in mine]),
        counts=job.counts[mine],
        block_ids=np.concatenate(rows),
    )
