"""The worker's side: knows the engine's KV memory, runs loads and saves in the background."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import numpy as np

from moonpool.vllm import layout, support
from moonpool.vllm.jobs import LoadDone, LoadJob, SaveDone, SaveJob
from moonpool.vllm.link import Clock, Link, Pool
from moonpool.vllm.loads import Loader
from moonpool.vllm.log import logger
from moonpool.vllm.saves import Fence, Saver
from moonpool.vllm.scheduler import stride_of
from moonpool.vllm.settings import Settings
from moonpool.vllm.stats import Tally

PAGE = 4096


class WorkerSide:
    """Everything the connector does in the worker's process."""

    def __init__(
        self,
        settings: Settings,
        opener: Callable[[], Pool],
        num_blocks: int,
        block_size: int,
        layers: Sequence[str],
        clock: Clock = time.monotonic,
    ) -> None:
        """opener: connects to the pool; called in the background once the memory is known."""
        self._settings, self._clock = settings, clock
        self._num_blocks, self._block_size, self._layers = num_blocks, block_size, list(layers)
        self._stride = stride_of(settings.object_tokens, block_size)
        self.tally = Tally()
        self._link = Link(opener, settings.master, self._register, clock)
        self._regions: list[tuple[int, int]] = []
        self._scratch: list[int] = []
        self._scratch_lock = threading.Lock()
        self._scratch_memory: Any = None
        self._loader: Loader | None = None
        self._saver: Saver | None = None
        self._new_fence: Callable[[], Fence | None] = lambda: None
        self._ended_loads: list[LoadDone] = []
        self._bad_blocks: set[int] = set()

    def register(self, caches: Mapping[str, Any]) -> None:
        """Take the engine's KV tensors, by layer; raises ConfigError for what cannot be used."""
        device = str(caches[self._layers[0]].device.type)
        support.check_device(device)
        table = layout.probe(caches, self._layers, self._num_blocks, self._block_size)
        logger.info(
            "moonpool: %d layers, %d B a block in %d pieces, %d B an object",
            len(self._layers),
            table.block_bytes,
            len(table.bases),
            table.block_bytes * self._stride,
        )
        self._make_scratch(self._settings.load_threads, table.block_bytes * self._stride)
        self._regions += table.storages
        self._make_executors(table)
        self._link.start()

    def set_fence(self, new_fence: Callable[[], Fence | None]) -> None:
        """Set what makes a fence after a step: none on the CPU, an event elsewhere."""
        self._new_fence = new_fence

    def start_loads(self, jobs: Sequence[LoadJob]) -> None:
        """Begin loads."""
        if self._loader is not None:
            for job in jobs:
                self._loader.submit(job)

    def start_saves(self, jobs: Sequence[SaveJob]) -> None:
        """Begin saves of blocks that this step computed; the step's kernels are launched."""
        if self._saver is not None and jobs:
            self._saver.submit(list(jobs), self._new_fence())

    def finished_loads(self) -> set[str]:
        """Return the requests whose loads ended; their failed blocks are in ``take_bad_blocks``."""
        if self._loader is None:
            return set()
        ended, requests, bad = self._loader.take_ended()
        self._ended_loads += ended
        self._bad_blocks |= bad
        return requests

    def take_bad_blocks(self) -> set[int]:
        """Return the blocks to recompute, of loads that ``finished_loads`` has returned."""
        bad, self._bad_blocks = self._bad_blocks, set()
        return bad

    def take_results(self) -> tuple[list[LoadDone], list[SaveDone]]:
        """Return the results for the scheduler's side."""
        loads, self._ended_loads = self._ended_loads, []
        return loads, self._saver.take_ended() if self._saver is not None else []

    def shutdown(self) -> None:
        """Stop threads, then close the pool: nothing touches the memory afterwards. Idempotent."""
        if self._loader is not None:
            self._loader.close()
        if self._saver is not None:
            self._saver.close()
        self._link.close()

    def _make_executors(self, table: layout.RegionTable) -> None:
        settings = self._settings
        self._loader = Loader(
            table,
            self._link,
            self._next_scratch,
            threads=settings.load_threads,
            timeout_s=settings.load_timeout_s,
            tally=self.tally,
            clock=self._clock,
        )
        self._saver = Saver(
            table,
            self._link,
            threads=settings.save_threads,
            timeout_s=settings.save_timeout_s,
            tally=self.tally,
            clock=self._clock,
        )

    def _register(self, pool: Pool) -> None:
        for address, nbytes in self._regions:
            pool.register_memory(address, nbytes)

    def _make_scratch(self, threads: int, object_bytes: int) -> None:
        size = -(-object_bytes // PAGE) * PAGE
        self._scratch_memory = np.empty(threads * size + PAGE, np.uint8)
        base = -(-self._scratch_memory.ctypes.data // PAGE) * PAGE
        self._scratch = [base + n * size for n in range(threads)]
        self._regions.append((base, threads * size))

    def _next_scratch(self) -> int:
        with self._scratch_lock:
            return self._scratch.pop()
