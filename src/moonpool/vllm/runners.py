"""Chooses where transfers run, and prepares the engine's memory for it."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from moonpool.errors import ConfigError
from moonpool.gpu import CudaCopier, Driver, GpuError, ipc, open_driver
from moonpool.vllm import mover_client, pools
from moonpool.vllm import mover_wire as wire
from moonpool.vllm.executor import Executor, Memory, Runner, threads_of
from moonpool.vllm.fences import Fences
from moonpool.vllm.layout import RegionTable
from moonpool.vllm.link import Clock
from moonpool.vllm.log import logger
from moonpool.vllm.pools import TRANSFER_TIMEOUT_S
from moonpool.vllm.settings import Settings
from moonpool.vllm.stats import Tally

PAGE = 4096


@dataclass(frozen=True, slots=True)
class Place:
    """What transfers need to know. tables: by the jobs' part; device: torch's; object_bytes: of the
    largest object."""

    settings: Settings
    name: str
    tables: tuple[RegionTable, ...]
    object_bytes: int
    device: Any
    tally: Tally
    clock: Clock

    @property
    def storages(self) -> tuple[tuple[int, int], ...]:
        """The memory that all tables lie in."""
        return tuple(sorted({each for table in self.tables for each in table.storages}))


class Marks:
    """Marks of a step in the engine's stream; a mark that cannot be made is an error to raise."""

    def __init__(self, fences: Fences) -> None:
        """No loads have to wait yet."""
        self._fences = fences
        self._loads: int | None = None

    def before_loads(self) -> None:
        """Let this step's loads wait for what is launched so far."""
        self._loads = self._fences.mark()

    @property
    def loads(self) -> int | None:
        """The mark for the loads that begin now; taken once."""
        mark, self._loads = self._loads, None
        return mark

    def saves(self) -> int:
        """Mark the end of this step's kernels."""
        return self._fences.mark()


@dataclass(frozen=True, slots=True)
class Started:
    """Transfers that run. marks: None where the memory is written by the processor in order."""

    runner: Runner
    marks: Marks | None = None


def start(
    place: Place,
    *,
    opener: Callable[[], Driver] = open_driver,
    stream: Callable[[], int] | None = None,
    command: Sequence[str] = mover_client.COMMAND,
) -> Started:
    """Start what the settings and the device ask for.

    stream: returns the engine's current stream, None: PyTorch's. Raises ConfigError for GPU
    memory that cannot be reached at all.
    """
    if str(place.device.type) == "cpu":
        return Started(on_cpu(place))
    try:
        driver = opener()
        driver.use(place.device.index or 0)
        gpu = _Gpu(driver, stream or _stream_of(place.device), _room(place, driver))
        if place.settings.mover != "thread":
            try:
                return _in_process(place, gpu, command)
            except GpuError as error:
                logger.warning(
                    "moonpool: bytes move in threads of the engine's process, which costs it time: "
                    "%s",
                    error,
                )
        return _in_threads(place, gpu)
    except GpuError as error:
        raise ConfigError(f"MoonpoolConnector cannot reach KV memory on a GPU: {error}") from None


def on_cpu(place: Place) -> Executor:
    """Return threads that move bytes of host memory."""
    threads, _ = threads_of(place.settings)
    size = -(-place.object_bytes // PAGE) * PAGE
    room = np.empty(threads * size + PAGE, np.uint8)
    base = -(-room.ctypes.data // PAGE) * PAGE
    regions = (*place.storages, (base, threads * size))
    scratch = tuple(base + n * size for n in range(threads))
    executor = Executor(
        place.settings,
        Memory(place.tables, regions, scratch, room),
        lambda: pools.open_pool(place.settings, place.name, TRANSFER_TIMEOUT_S),
        device="cpu",
        tally=place.tally,
        clock=place.clock,
    )
    executor.start()
    return executor


@dataclass(frozen=True, slots=True)
class _Gpu:
    """scratch: GPU memory (address, bytes) for what the engine has already."""

    driver: Driver
    stream: Callable[[], int]
    scratch: tuple[int, int]


def _room(place: Place, driver: Driver) -> tuple[int, int]:
    # Of the driver and not of PyTorch: it can be shared however PyTorch allocates.
    return driver.memory_alloc(place.object_bytes), place.object_bytes


def _in_threads(place: Place, gpu: _Gpu) -> Started:
    fences = Fences(gpu.driver, gpu.stream, shared=False)
    copier = CudaCopier(gpu.driver)
    executor = Executor(
        place.settings,
        Memory(place.tables, (*place.storages, gpu.scratch), gpu.scratch[:1]),
        lambda: pools.open_pool(place.settings, place.name, TRANSFER_TIMEOUT_S, copier),
        device="cuda",
        copier=copier,
        events=fences.events,
        tally=place.tally,
        clock=place.clock,
    )
    executor.start()
    return Started(executor, Marks(fences))


def _in_process(place: Place, gpu: _Gpu, command: Sequence[str]) -> Started:
    """Raises GpuError when the memory cannot be shared, or the process cannot open it."""
    fences = Fences(gpu.driver, gpu.stream, shared=True)
    regions = [
        wire.Region(address, nbytes, ipc.share(gpu.driver, address, nbytes))
        for address, nbytes in (*place.storages, gpu.scratch)
    ]
    setup = wire.Setup(
        place.settings,
        place.name,
        [wire.table_as_sent(table) for table in place.tables],
        regions,
        gpu.scratch[0],
        fences.handles(),
    )
    mover = mover_client.Mover(setup, place.tally, command=command)
    mover.start()
    logger.info("moonpool: bytes move in process %d", mover.pid)
    return Started(mover, Marks(fences))


def _stream_of(device: Any) -> Callable[[], int]:
    import torch

    return lambda: int(torch.cuda.current_stream(device).cuda_stream)
