"""A small engine around the connector's two sides: calls in vLLM's order, checks its asserts.

Blocks of 4 tokens, objects of 2 blocks. KV memory is one NumPy array per layer; "computing" a
block writes a function of its hash, so that any wrong byte under any key is seen.
"""

from __future__ import annotations

import pickle
from typing import Any

import numpy as np

from moonpool.core.keys import pack
from moonpool.transport.base import I64
from moonpool.vllm import settings
from moonpool.vllm.executor import Executor
from moonpool.vllm.executor import Memory as ProcessMemory
from moonpool.vllm.jobs import LoadDone, SaveDone
from moonpool.vllm.layout import RegionTable
from moonpool.vllm.link import Link
from moonpool.vllm.namespace import Namespace
from moonpool.vllm.parts import Keyspace, Part, windowed
from moonpool.vllm.scheduler import SchedulerSide
from moonpool.vllm.worker import WorkerSide
from tests.unit.vllm.fakes import (
    BlockState,
    Clock,
    FakeBlockPool,
    FakeLink,
    FakePool,
    FakeRequest,
    InlineCourier,
)

BLOCK, STRIDE, LAYERS, ROW = 4, 2, 2, 64


def truth(block_hash: bytes) -> np.ndarray[Any, np.dtype[np.uint8]]:
    """The bytes of a block over all layers."""
    seed = np.frombuffer(block_hash[:8], np.uint64)
    return np.random.default_rng(seed).integers(0, 256, LAYERS * ROW, np.uint8)


def make_settings(**changes: Any) -> settings.Settings:
    extra = {"object_tokens": BLOCK * STRIDE, "lookup_wait_ms": 0, "pinned_blocks_ratio": 0.5}
    role = changes.pop("role", "kv_both")
    return settings.read({**extra, **changes}, role, {})


class Memory:
    """The engine's KV memory and its region table."""

    def __init__(self, blocks: int) -> None:
        self.layers = [np.zeros((blocks, ROW), np.uint8) for _ in range(LAYERS)]
        bases = np.array([layer.ctypes.data for layer in self.layers], np.uint64)
        row = np.full(LAYERS, ROW, np.uint64)
        storages = tuple((int(layer.ctypes.data), layer.nbytes) for layer in self.layers)
        self.table = RegionTable(bases, row, row, blocks, storages)

    def read(self, block: int) -> bytes:
        return b"".join(layer[block].tobytes() for layer in self.layers)

    def write(self, block: int, content: np.ndarray[Any, np.dtype[np.uint8]]) -> None:
        for n, layer in enumerate(self.layers):
            layer[block] = content[n * ROW : (n + 1) * ROW]


class SchedulerOnly:
    """The scheduler's side with stand-ins for everything around it."""

    def __init__(
        self,
        *,
        blocks: int = 64,
        pool: FakePool | None = None,
        window: int = 0,
        parts: tuple[Part, ...] = (),
        **changes: Any,
    ) -> None:
        self.pool = pool or FakePool()
        self.clock = Clock()
        self.link = FakeLink(self.pool)
        self.courier = InlineCourier()
        self.block_pool = FakeBlockPool(blocks)
        self.side = SchedulerSide(
            make_settings(**changes),
            Namespace("test", (("model", "m"),)),
            BLOCK,
            self.link,  # type: ignore[arg-type]
            self.courier,
            self.clock,
            keyspace=Keyspace(parts or (windowed(window, BLOCK),)),
        )
        self.side.pins.bind(self.block_pool, STRIDE)
        self.side.worker_is("LC")

    def key(self, block_hash: bytes) -> bytes:
        return pack(block_hash[:16], self.side.namespace)

    def fill(self, request: FakeRequest, blocks: int) -> None:
        """Put the first blocks of a request into the pool: objects, and a tail if one is left."""
        ends = [*range(STRIDE, blocks + 1, STRIDE)]
        if blocks % STRIDE:
            ends.append(blocks)
        for end in ends:
            start = (end - 1) // STRIDE * STRIDE
            content = [truth(request.block_hashes[at]).tobytes() for at in range(start, end)]
            self.pool.objects[self.key(request.block_hashes[end - 1])] = b"".join(content)

    def save_step(self, request: FakeRequest, tokens: int, table: list[int]) -> list[Any]:
        """Schedule some tokens of a request; return the save jobs; the tokens are computed then."""
        self.side.plan_saves({request.request_id: tokens}, BlockState({request.request_id: table}))
        request.num_computed_tokens += tokens
        return self.side.take_saves()

    def done(self, job: Any, code: int = 0) -> None:
        self.side.ended([], [SaveDone(job.job_id, (code,) * len(job.counts))])

    def loaded(self, job: Any, good: int | None = None, code: int = -704) -> None:
        """Report a load as ended, at ``good`` blocks if it failed."""
        if good is None:
            done = LoadDone(job.request_id, job.generation, int(job.ends[-1]))
        else:
            at = int(np.searchsorted(job.starts, good, "right")) - 1
            name = job.names[16 * at : 16 * at + 16]
            done = LoadDone(job.request_id, job.generation, good, ((code, name),))
        self.side.ended([done], [])


class Engine(SchedulerOnly):
    """Both sides, a block allocator and requests, stepped by hand like vLLM's engine."""

    def __init__(self, *, blocks: int = 64, pool: FakePool | None = None, **changes: Any) -> None:
        super().__init__(blocks=blocks, pool=pool, **changes)
        self.memory = Memory(blocks)
        chosen = make_settings(**changes)
        self.worker = WorkerSide(chosen, "test", blocks, BLOCK, clock=self.clock)
        self._start_worker(chosen)
        self.tables: dict[str, list[int]] = {}
        self.waiting: set[str] = set()
        self.aborted: set[str] = set()
        self.requests: dict[str, FakeRequest] = {}
        self.completed: list[str] = []
        self.invalid: set[int] = set()

    def _start_worker(self, chosen: settings.Settings) -> None:
        worker, table = self.worker, self.memory.table
        size = table.block_bytes * STRIDE
        self.scratch = np.empty((chosen.load_threads or 2, size), np.uint8)
        addresses = [int(row.ctypes.data) for row in self.scratch]
        executor = Executor(
            chosen,
            ProcessMemory(
                (table,),
                (*table.storages, (addresses[0], self.scratch.nbytes)),
                tuple(addresses),
            ),
            lambda: self.pool,
            device="cpu",
            tally=worker.tally,
            clock=self.clock,
        )
        worker.runner = executor
        self.worker_link: Link = executor.link
        assert executor.link._open_once() is None

    def close(self) -> None:
        self.worker.shutdown()
        self.side.shutdown()

    def allocate(self, request: FakeRequest, blocks: int) -> list[int]:
        table = self.tables.setdefault(request.request_id, [])
        free = [b for b in self.block_pool.blocks[1:] if b.ref_cnt == 0]
        for block in free[: blocks - len(table)]:
            block.ref_cnt += 1
            table.append(block.block_id)
        assert len(table) >= blocks, "out of blocks"
        return table

    def add(self, request: FakeRequest, local: int = 0) -> int:
        """A request arrives with ``local`` blocks of its own hit; return the tokens to load."""
        self.requests[request.request_id] = request
        self.side.on_new_request(request)
        return self.admit(request, local)

    def admit(self, request: FakeRequest, local: int = 0) -> int:
        tokens = self.side.matched_tokens(request, local * BLOCK)
        total = -(-request.num_tokens // BLOCK)
        table = self.allocate(request, total)
        for at in range(local):
            self.memory.write(table[at], truth(request.block_hashes[at]))
        self.side.after_alloc(request, [table], tokens)
        request.num_computed_tokens = local * BLOCK + tokens
        if tokens:
            self.waiting.add(request.request_id)
        return tokens

    def step(self, scheduled: dict[str, int] | None = None) -> None:
        """One step of the engine; waits a little for threads that have work."""
        loads = self.side.take_loads()
        self.side.plan_saves(scheduled or {}, BlockState(self.tables))
        saves = self.side.take_saves()
        cancels = self.side.take_cancels()
        loads, saves = pickle.loads(pickle.dumps((loads, saves)))
        for request_id, tokens in (scheduled or {}).items():
            self._compute(self.requests[request_id], tokens)
        self.worker.start_loads(loads)
        self.worker.cancel_loads(cancels)
        self.worker.start_saves(saves)
        self.collect()

    def _compute(self, request: FakeRequest, tokens: int) -> None:
        table = self.tables[request.request_id]
        first = request.num_computed_tokens // BLOCK
        request.num_computed_tokens += tokens
        for at in range(first, request.num_computed_tokens // BLOCK):
            if at < len(request.block_hashes):
                self.memory.write(table[at], truth(request.block_hashes[at]))

    def collect(self) -> None:
        """The end of a step: results in vLLM's order, with its assertions."""
        ended = self.worker.finished_loads()
        bad = self.worker.take_bad_blocks()
        results = self.worker.take_results()
        self.invalid |= bad
        for request_id in ended:
            assert request_id in self.requests, "an unknown request kills the engine"
            table = self.tables[request_id]
            request = self.requests[request_id]
            hit = [at for at, block in enumerate(table) if block in bad]
            if hit:
                request.num_computed_tokens = min(hit) * BLOCK
            assert request_id in self.waiting, "a second completion kills the engine"
            self.waiting.discard(request_id)
            self.completed.append(request_id)
            if request_id in self.aborted:
                self._drop(request)
        self.side.ended(*results)

    def settle(self, steps: int = 2000) -> None:
        """Step without requests until nothing is in progress."""
        import time

        for _ in range(steps):
            self.step()
            if not self.waiting and not self.side.has_work:
                return
            time.sleep(0.001)
        raise AssertionError("the engine did not come to rest")

    def finish(self, request: FakeRequest) -> None:
        """The request ends: saves its tail, frees its blocks unless a load writes to them."""
        table = self.tables[request.request_id]
        self.side.finished(request, [table[: -(-request.num_computed_tokens // BLOCK)]])
        if request.request_id in self.waiting:
            self.aborted.add(request.request_id)
        else:
            self._drop(request)

    def _drop(self, request: FakeRequest) -> None:
        self.free(request)
        del self.requests[request.request_id]
        self.aborted.discard(request.request_id)

    def free(self, request: FakeRequest) -> None:
        table = self.tables.pop(request.request_id)
        self.block_pool.free_blocks([self.block_pool.blocks[b] for b in reversed(table)])

    def preempt(self, request: FakeRequest) -> None:
        self.free(request)
        request.num_computed_tokens = 0
        request.num_preemptions += 1

    def check_pool(self, *requests: FakeRequest) -> int:
        """Every object in the pool that belongs to these requests holds the right bytes."""
        right: dict[bytes, bytes] = {}
        for request in requests:
            for end in range(1, len(request.block_hashes) + 1):
                start = (end - 1) // STRIDE * STRIDE
                content = b"".join(
                    truth(request.block_hashes[at]).tobytes() for at in range(start, end)
                )
                right[self.key(request.block_hashes[end - 1])] = content
        assert all(right[key] == value for key, value in self.pool.objects.items())
        return len(self.pool.objects)


def codes(*values: int) -> I64:
    return np.array(values, np.int64)
