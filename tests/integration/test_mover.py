"""The worker's side with its mover process, on a GPU that is not there and a real pool."""

from __future__ import annotations

import functools
import os
import signal
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from types import SimpleNamespace as Bag
from typing import Any

import numpy as np
import pytest

from moonpool.errors import MasterUnreachableError
from moonpool.vllm import mover_client, objects, runners, settings
from moonpool.vllm.jobs import LoadDone, LoadJob, SaveDone, SaveJob
from moonpool.vllm.parts import Part
from moonpool.vllm.worker import WorkerSide
from tests.integration.processes import eventually, pool
from tests.unit.gpu.fake import FakeDriver

ROOT = Path(__file__).resolve().parents[2]
COMMAND = (sys.executable, "-m", "tests.unit.vllm.fake_mover")
LAYERS, BLOCKS, TOKENS, HEADS, SIZE = 3, 64, 4, 2, 8
STRIDE = 4
PAGE = 2 * TOKENS * HEADS * SIZE * 4
NAMESPACE = b"n" * 16


class Tensor:
    """A layer's view of GPU memory, as far as the connector looks at it."""

    device = Bag(type="cuda", index=0)

    def __init__(self, base: int, storage: int, nbytes: int, block_stride: int) -> None:
        self._base, self._storage = base, Bag(data_ptr=lambda: storage, nbytes=lambda: nbytes)
        self.shape = (BLOCKS, 2, TOKENS, HEADS, SIZE)
        inner = (TOKENS * HEADS * SIZE, HEADS * SIZE, SIZE, 1)
        self._strides = (block_stride // 4, *inner)

    def data_ptr(self) -> int:
        return self._base

    def stride(self) -> tuple[int, ...]:
        return self._strides

    def element_size(self) -> int:
        return 4

    def untyped_storage(self) -> Bag:
        return self._storage


class Rig:
    """An engine's worker: KV memory on a fake GPU, jobs by hand."""

    def __init__(self, folder: Path, master: str, *, packed: bool = True, **extra: Any) -> None:
        (folder / "gpu").mkdir(exist_ok=True)
        self.driver = FakeDriver(folder / "gpu")
        chosen = settings.read(
            {"master": master, "object_tokens": STRIDE * TOKENS, **extra}, "kv_both", {}
        )
        self.packed = packed
        self.stream = 0
        names = [f"layers.{n}.attn" for n in range(LAYERS)]
        self.rows = self._allocate(names)
        starter = functools.partial(
            runners.start, opener=lambda: self.driver, stream=lambda: self.stream, command=COMMAND
        )
        self.worker = WorkerSide(
            chosen,
            "test",
            BLOCKS,
            TOKENS,
            (Part(layers=(tuple(names),)),),
            ordered=False,
            starter=starter,
        )
        self.worker.register(self.tensors)
        self.done: tuple[list[LoadDone], list[SaveDone]] = ([], [])
        self.reported: list[str] = []
        self.jobs = 0

    def _allocate(self, names: list[str]) -> list[np.ndarray[Any, np.dtype[np.uint8]]]:
        """Make the tensors; return each layer's memory as [block, page]."""
        self.tensors: dict[str, Tensor] = {}
        rows = []
        if self.packed:
            nbytes = BLOCKS * LAYERS * PAGE
            base = self.driver.memory_alloc(nbytes)
            whole = self.driver.bytes_at(base, nbytes).reshape(BLOCKS, LAYERS, PAGE)
            for at, name in enumerate(names):
                self.tensors[name] = Tensor(base + at * PAGE, base, nbytes, LAYERS * PAGE)
                rows.append(whole[:, at])
            return rows
        for name in names:
            base = self.driver.memory_alloc(BLOCKS * PAGE)
            self.tensors[name] = Tensor(base, base, BLOCKS * PAGE, PAGE)
            rows.append(self.driver.bytes_at(base, BLOCKS * PAGE).reshape(BLOCKS, PAGE))
        return rows

    @property
    def mover(self) -> mover_client.Mover:
        assert isinstance(self.worker.runner, mover_client.Mover)
        return self.worker.runner

    def fill(self, seed: int) -> None:
        rng = np.random.default_rng(seed)
        for row in self.rows:
            row[:] = rng.integers(0, 256, row.shape, np.uint8)

    def block(self, number: int) -> bytes:
        return b"".join(row[number].tobytes() for row in self.rows)

    def names(self, count: int, seed: int = 0) -> bytes:
        return b"".join(bytes([seed]) + n.to_bytes(15, "little") for n in range(count))

    def save(self, blocks: list[int], seed: int = 0) -> SaveJob:
        self.jobs += 1
        ends = objects.ends_between(0, len(blocks), STRIDE)
        counts = ends - objects.starts_of(ends, STRIDE)
        names = self.names(len(ends), seed)
        parents = objects.NO_PARENT + names[: -len(objects.NO_PARENT)]
        ids = np.array(blocks, np.int32)
        job = SaveJob(self.jobs, NAMESPACE, names, parents, counts, ids)
        self.worker.start_saves([job])
        return job

    def load(self, blocks: list[int], first: int = 0, seed: int = 0, name: str = "r") -> LoadJob:
        self.jobs += 1
        ends = objects.ends_between(0, len(blocks), STRIDE)
        starts = objects.starts_of(ends, STRIDE)
        job = LoadJob(
            name,
            self.jobs,
            NAMESPACE,
            self.names(len(ends), seed),
            starts,
            ends,
            np.array(blocks, np.int32),
            first,
        )
        self.worker.before_step(True)
        self.worker.start_loads([job])
        return job

    def step(self) -> None:
        self.reported += self.worker.finished_loads()
        loads, saves = self.worker.take_results()
        self.done[0].extend(loads)
        self.done[1].extend(saves)

    def until(self, check: Callable[[], object], within_s: float = 20.0) -> None:
        deadline = time.monotonic() + within_s
        while not check():
            assert time.monotonic() < deadline, "waited in vain"
            self.step()
            time.sleep(0.002)

    def saved(self, blocks: list[int], seed: int = 0) -> tuple[int, ...]:
        before = len(self.done[1])
        self.save(blocks, seed)
        self.until(lambda: len(self.done[1]) > before)
        return self.done[1][-1].codes

    def loaded(self, blocks: list[int], **more: Any) -> LoadDone:
        before = len(self.done[0])
        self.load(blocks, **more)
        self.until(lambda: len(self.done[0]) > before)
        return self.done[0][-1]

    def connected(self) -> None:
        """Save until the transfers' own connection to the pool is there."""
        self.until(lambda: self.saved([1, 2], seed=200) in ((0,), (-705,)))


@pytest.fixture(scope="module")
def master(tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    with pool(tmp_path_factory.mktemp("pool"), size="64MB") as (one, _):
        yield one.address


@pytest.fixture
def make(
    tmp_path: Path, master: str, monkeypatch: pytest.MonkeyPatch
) -> Iterator[Callable[..., Rig]]:
    monkeypatch.setenv("PYTHONPATH", str(ROOT))
    monkeypatch.setenv("FAKE_GPU", str(tmp_path / "gpu"))
    made: list[Rig] = []

    def build(**extra: Any) -> Rig:
        made.append(Rig(tmp_path, master, **extra))
        return made[-1]

    yield build
    for rig in made:
        rig.worker.shutdown()
        rig.worker.shutdown()
        assert rig.driver.wrong == []


@pytest.mark.parametrize("packed", [True, False])
@pytest.mark.parametrize("mover", ["process", "thread"])
def test_blocks_come_back_from_the_pool(make: Callable[..., Rig], mover: str, packed: bool) -> None:
    rig = make(mover=mover, packed=packed)
    assert rig.worker.take_order() == "LKNHD"
    assert rig.worker.take_order() is None
    assert isinstance(rig.worker.runner, mover_client.Mover) == (mover == "process")
    rig.connected()
    seed = 10 + 2 * packed + (mover == "process")
    rig.fill(1)
    blocks = list(range(1, 11))
    truth = [rig.block(b) for b in blocks]
    assert rig.saved(blocks, seed) == (0, 0, 0)
    rig.fill(2)
    targets = list(range(60, 50, -1))
    # The first three blocks are the engine's own: they must keep their bytes.
    own = [rig.block(b) for b in targets[:3]]
    done = rig.loaded(targets, first=3, seed=seed)
    assert (done.good_blocks, done.failed) == (10, ())
    assert [rig.block(b) for b in targets] == own + truth[3:]
    assert rig.reported == ["r"]
    assert rig.worker.take_bad_blocks() == set()
    counts = rig.worker.tally.take()
    assert counts["load_bytes"] >= 10 * LAYERS * PAGE
    assert counts["loads"] == 1


def test_transfers_wait_for_the_engines_stream(make: Callable[..., Rig]) -> None:
    """The engine's kernels end late; bytes must be read, and written, after them."""
    rig = make()
    rig.connected()
    # This stream does nothing before somebody in this process waits for it.
    rig.stream = rig.driver.stream_create()
    end = rig.driver.event_create()
    rig.fill(4)
    rig.save([1, 2, 3, 4], seed=40)
    before = len(rig.done[1])
    time.sleep(0.3)
    rig.step()
    assert len(rig.done[1]) == before
    rig.fill(5)
    truth = [rig.block(b) for b in (1, 2, 3, 4)]
    rig.driver.event_record(end, rig.stream)
    rig.driver.event_synchronize(end)
    rig.until(lambda: len(rig.done[1]) > before)
    rig.load([11, 12, 13, 14], seed=40)
    time.sleep(0.3)
    rig.fill(6)
    rig.driver.event_record(end, rig.stream)
    rig.driver.event_synchronize(end)
    rig.until(lambda: rig.reported)
    assert [rig.block(b) for b in (11, 12, 13, 14)] == truth


def test_what_is_not_there_is_recomputed(make: Callable[..., Rig]) -> None:
    rig = make()
    rig.connected()
    assert rig.saved([1, 2, 3, 4], seed=20) == (0,)
    done = rig.loaded([11, 12, 13, 14, 15, 16], seed=20)
    assert (done.good_blocks, [code for code, _ in done.failed]) == (4, [-704])
    assert rig.worker.take_bad_blocks() == {15, 16}


def test_a_mover_that_dies_costs_its_jobs_and_comes_back(
    make: Callable[..., Rig], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(mover_client, "RESTS_S", (0.05,))
    rig = make()
    rig.connected()
    rig.worker.take_order()
    os.kill(rig.mover.pid, signal.SIGSTOP)
    job, save = rig.load([5, 6, 7, 8], seed=200), rig.save([1, 2], seed=30)
    rig.step()
    assert not rig.reported
    os.kill(rig.mover.pid, signal.SIGKILL)
    rig.until(lambda: rig.reported)
    assert rig.done[0][-1] == LoadDone("r", job.generation, 0)
    assert rig.worker.take_bad_blocks() == {5, 6, 7, 8}
    (ended,) = [done for done in rig.done[1] if done.job_id == save.job_id]
    assert ended.codes == (MasterUnreachableError.code,)
    # Meanwhile the scheduler knows, and what is under way all the same fails at once.
    assert rig.worker.take_order() == ""
    assert rig.loaded([9, 10]).good_blocks == 0
    rig.until(lambda: rig.mover.ready)
    assert rig.worker.take_order() == "LKNHD"
    rig.connected()
    assert rig.worker.tally.take()["mover_failures"] == 1
    os.kill(rig.mover.pid, signal.SIGKILL)
    rig.until(lambda: not rig.mover.ready)
    time.sleep(0.1)
    rig.step()
    assert not rig.mover.pid, "it is not started for ever"


def test_a_mover_that_is_stuck_is_ended(
    make: Callable[..., Rig], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(mover_client, "OVERDUE_S", 0.1)
    rig = make(load_timeout_s=0.2)
    rig.connected()
    os.kill(rig.mover.pid, signal.SIGSTOP)
    rig.load([5, 6, 7, 8], seed=200)
    rig.until(lambda: rig.reported)
    assert rig.worker.take_bad_blocks() == {5, 6, 7, 8}


def test_a_mover_without_a_gpu_means_threads(
    make: Callable[..., Rig],
    monkeypatch: pytest.MonkeyPatch,
    caplog: pytest.LogCaptureFixture,
) -> None:
    monkeypatch.setenv("FAKE_GPU_REFUSES", "1")
    rig = make()
    assert not isinstance(rig.worker.runner, mover_client.Mover)
    (line,) = [r.getMessage() for r in caplog.records if "threads of the engine" in r.getMessage()]
    assert "no GPU today" in line
    rig.connected()


def test_signals_to_the_group_are_the_engines(make: Callable[..., Rig]) -> None:
    """An orderly end of the engine must not look like a mover that died."""
    rig = make()
    rig.connected()
    for number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP):
        os.kill(rig.mover.pid, number)
    rig.loaded([5, 6], seed=200)
    assert rig.mover.ready


def test_a_mover_ends_with_its_engine(make: Callable[..., Rig]) -> None:
    rig = make()
    pid = rig.mover.pid
    rig.worker.shutdown()
    assert not Path(f"/proc/{pid}").exists()


def test_a_mover_imports_neither_vllm_nor_torch(make: Callable[..., Rig]) -> None:
    rig = make()
    rig.connected()
    maps = Path(f"/proc/{rig.mover.pid}/maps").read_text()
    assert "torch" not in maps
    eventually("it sleeps", lambda: Path(f"/proc/{rig.mover.pid}/stat").exists())
