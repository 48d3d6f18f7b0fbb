"""A worker's jobs: of each shard that it holds, joined again to one end each."""

from __future__ import annotations

import itertools

import numpy as np
import pytest

from moonpool.errors import AlreadyExistsError, NoSpaceError
from moonpool.vllm.jobs import NOT_MINE, LoadDone, LoadJob, SaveDone, SaveJob, join_codes
from moonpool.vllm.parts import namespace_of
from moonpool.vllm.spread import Spread, Unit

SPACE = b"n" * 16
THERE, FULL = AlreadyExistsError.code, NoSpaceError.code


def load(part: int = 0, generation: int = 7) -> LoadJob:
    ends = np.array([2, 4], np.int32)
    names = bytes(32)
    ids = np.array([5, 6, 7, 8], np.int32)
    return LoadJob("r", generation, SPACE, names, ends - 2, ends, ids, 0, part=part)


def save(names: bytes, width: int = 1) -> SaveJob:
    count = len(names) // 16
    counts = np.arange(1, count + 1, dtype=np.int32)
    ids = np.arange(int(counts.sum()) * width, dtype=np.int32)
    return SaveJob(3, SPACE, names, names, counts, ids)


def test_a_load_ends_when_all_its_shards_have() -> None:
    spread = Spread([Unit(0, "a"), Unit(0, "b"), Unit(1, "a")])
    jobs = spread.load([load(0), load(1)])
    assert [(job.part, job.namespace) for job in jobs] == [
        (0, namespace_of(SPACE, 0, "a")),
        (1, namespace_of(SPACE, 0, "b")),
        (2, namespace_of(SPACE, 1, "a")),
    ]
    assert len({job.generation for job in jobs}) == 3
    assert spread.running([7, 9]) == [job.generation for job in jobs]
    assert spread.loaded(LoadDone("r", jobs[0].generation, 4)) is None
    failed = ((-704, b"x" * 16),)
    assert spread.loaded(LoadDone("r", jobs[2].generation, 2, failed)) is None
    ended = spread.loaded(LoadDone("r", jobs[1].generation, 4))
    assert ended is not None
    assert ended.done == LoadDone("r", 7, 2, ((-704, b"x" * 16 + b"\1"),))
    assert (ended.failed, ended.bad) == (True, [7, 8])
    assert spread.loads == []
    # What is reported twice reaches nobody.
    assert spread.loaded(LoadDone("r", jobs[1].generation, 4)) is None


def test_a_load_of_nothing_has_failed() -> None:
    spread, nothing = Spread(), np.empty(0, np.int32)
    ids = np.array([5, 6], np.int32)
    (job,) = spread.load([LoadJob("r", 1, SPACE, b"", nothing, nothing, ids, 3)])
    ended = spread.loaded(LoadDone("r", job.generation, 3))
    assert ended is not None
    assert (ended.failed, ended.bad) == (True, [5, 6])


@pytest.mark.parametrize("width", [1, 2])
def test_workers_that_hold_the_same_shard_share_the_work(width: int) -> None:
    names = b"".join(bytes(15) + bytes([last]) for last in (4, 7, 8, 9))
    kept: dict[bytes, list[int]] = {}
    codes: tuple[int, ...] = (NOT_MINE,) * 4
    for turn in range(2):
        spread = Spread([Unit(turn=(turn, 2))])
        (job,), ended = spread.save([save(names, width)])
        assert not ended
        assert len(job.names) == 32
        starts = np.concatenate(([0], np.cumsum(job.counts))) * width
        for at in range(2):
            name = job.names[16 * at : 16 * at + 16]
            kept[name] = job.block_ids[starts[at] : starts[at + 1]].tolist()
        done = spread.saved(SaveDone(job.job_id, (0, THERE)))
        assert done is not None
        codes = join_codes(codes, done.codes)
    assert codes == (0, 0, THERE, THERE)
    ids = list(range(10 * width))
    cuts = [0, 1, 3, 6, 10]
    assert [kept[names[16 * n : 16 * n + 16]] for n in range(4)] == [
        ids[width * a : width * b] for a, b in itertools.pairwise(cuts)
    ]


def test_what_others_save_has_ended_here() -> None:
    spread = Spread([Unit(turn=(1, 2))])
    assert spread.save([save(bytes(32))]) == ([], [SaveDone(3, (NOT_MINE, NOT_MINE))])


def test_an_object_is_there_if_all_its_shards_are() -> None:
    assert join_codes((0, 0, THERE, NOT_MINE, FULL), (0, THERE, THERE, 0, 0)) == (
        0,
        0,
        THERE,
        0,
        FULL,
    )
    assert join_codes((FULL, NOT_MINE), (THERE, NOT_MINE)) == (FULL, NOT_MINE)
