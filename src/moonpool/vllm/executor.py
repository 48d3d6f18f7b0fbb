"""Runs loads and saves with threads: in the engine's process, or in the mover's.

Knows where the KV memory lies in its own process, and its own connection to the pool.
"""

from __future__ import annotations

import functools
import threading
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any, Protocol

from moonpool.gpu import CudaCopier
from moonpool.vllm.fences import Fence, passed
from moonpool.vllm.jobs import LoadDone, LoadJob, SaveDone, SaveJob
from moonpool.vllm.layout import RegionTable
from moonpool.vllm.link import Clock, Link, Pool
from moonpool.vllm.loads import Loader
from moonpool.vllm.saves import Saver
from moonpool.vllm.settings import Settings
from moonpool.vllm.stats import Tally


class Runner(Protocol):
    """Where transfers run. Calls come from the engine's thread and do not block."""

    @property
    def ready(self) -> bool:
        """Whether jobs have a chance now."""
        ...

    def load(self, jobs: Sequence[LoadJob], mark: int | None) -> None:
        """Begin loads once what the mark stands for is done."""
        ...

    def save(self, jobs: Sequence[SaveJob], mark: int | None) -> None:
        """Begin saves once what the mark stands for is done."""
        ...

    def cancel(self, generations: Sequence[int]) -> None:
        """End loads as soon as nothing writes for them any more."""
        ...

    def take(self) -> tuple[list[LoadDone], list[SaveDone]]:
        """Return what ended since the last call; each job ends exactly once."""
        ...

    def close(self) -> None:
        """Stop; nothing touches the engine's memory afterwards. Idempotent."""
        ...


@dataclass(frozen=True, slots=True)
class Sizes:
    """How many bytes one call to the pool moves."""

    load: int
    save: int

    @classmethod
    def of(cls, device: str) -> Sizes:
        """On a GPU a question to the master takes as long as several MiB, and a call that ends
        leaves the copy engine without work unless another has queued more than that."""
        return cls(8 << 20, 16 << 20) if device == "cpu" else cls(512 << 20, 512 << 20)


LOAD_THREADS = 2
"""On a GPU as well: one queues copies while those of the other are under way. More take turns at
the interpreter, and the copy engine waits for them."""


def threads_of(chosen: Settings) -> tuple[int, int]:
    """Return how many threads load and save."""
    return chosen.load_threads or LOAD_THREADS, chosen.save_threads


@dataclass(frozen=True, slots=True)
class Memory:
    """The KV memory as this process sees it.

    tables: by the jobs' part; regions: (address, bytes) of all that transfers touch. scratch:
    addresses of room for one object each, for the threads that load, where blocks go that the
    engine has already; owner: keeps it alive.
    """

    tables: Sequence[RegionTable]
    regions: tuple[tuple[int, int], ...]
    scratch: tuple[int, ...]
    owner: Any = None


class Executor:
    """Threads that move the bytes; see ``Runner``."""

    ready = True

    def __init__(
        self,
        chosen: Settings,
        memory: Memory,
        opener: Callable[[], Pool],
        *,
        device: str,
        copier: CudaCopier | None = None,
        events: Sequence[int] = (),
        foreign: bool = False,
        tally: Tally,
        notify: Callable[[], None] = lambda: None,
        clock: Clock = time.monotonic,
    ) -> None:
        """events: what marks stand for, with the copier that waits for them; foreign: they are
        another process's; notify: called by any thread when a job has ended. The link to the pool
        is not started."""
        self._foreign = foreign
        self._limit_s = max(chosen.load_timeout_s, chosen.save_timeout_s)
        self._memory, self._copier, self._events = memory, copier, events
        self.tally = tally
        self.link = Link(opener, chosen.master, self._register, clock)
        self._scratch = list(memory.scratch)
        self._lock = threading.Lock()
        load_threads, save_threads = threads_of(chosen)
        sizes = Sizes.of(device)
        self._loader = Loader(
            memory.tables,
            self.link,
            self._next_scratch,
            threads=load_threads,
            timeout_s=chosen.load_timeout_s,
            tally=tally,
            clock=clock,
            chunk_bytes=sizes.load,
            notify=notify,
        )
        self._saver = Saver(
            memory.tables,
            self.link,
            threads=save_threads,
            timeout_s=chosen.save_timeout_s,
            tally=tally,
            clock=clock,
            chunk_bytes=sizes.save,
            notify=notify,
        )

    def start(self) -> None:
        """Begin to connect to the pool."""
        self.link.start()

    def load(self, jobs: Sequence[LoadJob], mark: int | None) -> None:
        """Begin loads."""
        for job in jobs:
            self._loader.submit(job, self._fence(mark))

    def save(self, jobs: Sequence[SaveJob], mark: int | None) -> None:
        """Begin saves."""
        self._saver.submit(list(jobs), self._fence(mark))

    def cancel(self, generations: Sequence[int]) -> None:
        """End loads early."""
        for generation in generations:
            self._loader.cancel(generation)

    def take(self) -> tuple[list[LoadDone], list[SaveDone]]:
        """Return what ended since the last call."""
        return self._loader.take_ended(), self._saver.take_ended()

    def close(self) -> None:
        """Stop threads, then close the pool."""
        self._loader.close()
        self._saver.close()
        self.link.close()
        if self._copier is not None:
            self._copier.close()

    def _fence(self, mark: int | None) -> Fence | None:
        if mark is None or self._copier is None or not 0 <= mark < len(self._events):
            return None
        event = self._events[mark]
        if self._foreign:
            return functools.partial(passed, self._copier.driver, event, self._limit_s)
        return functools.partial(self._copier.after, event)

    def _register(self, pool: Pool) -> None:
        for address, nbytes in self._memory.regions:
            pool.register_memory(address, nbytes)
        if self._copier is not None:
            # Pinning a segment takes seconds; it should not begin with the first load.
            pool.open_ways()

    def _next_scratch(self) -> int:
        """Return room for one more thread; the last is shared: what is there is never read."""
        with self._lock:
            return self._scratch.pop() if len(self._scratch) > 1 else self._scratch[0]
