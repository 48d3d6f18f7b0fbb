"""The pool as a tier below vLLM's own offloading: for sites that use OffloadingConnector.

Loaded by configuration alone: ``"secondary_tiers": [{"type": "MoonpoolTier", "module_path":
"moonpool.vllm.tier", "master": "host:port"}]`` in the ``kv_connector_extra_config`` of vLLM's
``TieringOffloadingSpec``; the other keys are MoonpoolConnector's. vLLM decides what is stored and
loaded; this moves chunks between its memory of the host and the pool, and answers what is there.
All methods run in the scheduler's process and do not wait.
"""

from __future__ import annotations

import queue
import threading
import time
from collections.abc import Callable, Iterable, Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any, ClassVar

import numpy as np
import vllm
from vllm.v1.kv_offload.base import (
    LookupResult,
    Medium,
    RequestOffloadingContext,
    get_offload_block_hash,
    get_offload_group_idx,
)
from vllm.v1.kv_offload.tiering.async_lookup import AsyncLookupManager
from vllm.v1.kv_offload.tiering.base import JobResult, SecondaryTierManager

from moonpool.core.keys import Key, fingerprint, pack
from moonpool.errors import AlreadyExistsError, MoonpoolError
from moonpool.transport.base import Pieces
from moonpool.vllm import compat, namespace, objects, pools, settings
from moonpool.vllm.link import Link, Pool
from moonpool.vllm.log import logger
from moonpool.vllm.parts import namespace_of

THERE = (0, AlreadyExistsError.code)


class _Lookups(AsyncLookupManager):  # type: ignore[misc]
    """vLLM's own thread and table for lookups; a step's questions are one message."""

    def __init__(self, tier_type: str, exist: Callable[[Sequence[bytes]], Sequence[bool]]) -> None:
        self._exist = exist
        super().__init__(tier_type)

    def batch_lookup(self, keys: list[bytes], req_context: Any) -> Iterable[bool]:
        """Return which chunks are in the pool."""
        return self._exist(keys)


class MoonpoolTier(SecondaryTierManager):  # type: ignore[misc]
    """Keeps vLLM's offloaded chunks in a moonpool pool that all engines share.

    Raises ConfigError for settings that are not allowed.
    """

    medium: ClassVar[Medium] = Medium.CPU

    def __init__(
        self,
        offloading_spec: Any,
        primary_kv_view: memoryview,
        tier_type: str,
        backpressure_detector: Any = None,
        **extra: Any,
    ) -> None:
        """Called by vLLM's factory; ``extra`` are the tier's keys."""
        super().__init__(offloading_spec, primary_kv_view, tier_type, backpressure_detector)
        self._settings = settings.read(extra, "kv_both")
        self._space = fingerprint(*facts(offloading_spec.config, self._settings.namespace))
        view = np.asarray(primary_kv_view)
        self._base, self._nbytes, self._row = int(view.ctypes.data), view.nbytes, view.strides[0]
        name = f"vllm-tier-{offloading_spec.config.engine_id}"
        self._link = Link(
            lambda: pools.open_pool(self._settings, name, pools.TRANSFER_TIMEOUT_S),
            self._settings.master,
            lambda pool: pool.register_memory(self._base, self._nbytes),
        )
        self._threads = ThreadPoolExecutor(
            (self._settings.load_threads or 2) + self._settings.save_threads, "moonpool-tier"
        )
        self._ended: queue.SimpleQueue[JobResult] = queue.SimpleQueue()
        self._idle = threading.Condition()
        self._running = 0
        self._lookups = _Lookups(tier_type, self._exist)
        self._failed: queue.SimpleQueue[list[bytes]] = queue.SimpleQueue()
        self._link.start()

    def lookup(self, key: bytes, req_context: Any) -> LookupResult:
        """Return whether a chunk is in the pool; RETRY until the master has answered."""
        there = self._lookups.lookup(key, req_context)
        if there is None:
            return LookupResult.RETRY
        return LookupResult.HIT if there else LookupResult.MISS

    def submit_store(self, job_metadata: Any) -> None:
        """Store chunks in the background."""
        self._submit(job_metadata, self._settings.save_timeout_s, self._store)

    def submit_load(self, job_metadata: Any) -> None:
        """Load chunks in the background."""
        self._submit(job_metadata, self._settings.load_timeout_s, self._load)

    def get_finished_jobs(self) -> Iterable[JobResult]:
        """Return how jobs ended since the last call."""
        while not self._failed.empty():
            self._lookups.mark_miss(self._failed.get())
        ended = []
        while not self._ended.empty():
            ended.append(self._ended.get())
        return ended

    def has_pending_work(self) -> bool:
        """Whether jobs are under way, or ended and not returned yet."""
        return self._running > 0 or not self._ended.empty()

    def on_new_request(self, req_context: Any) -> RequestOffloadingContext:
        """vLLM's default: what is new of a request is offloaded."""
        return RequestOffloadingContext()

    def on_request_finished(self, req_context: Any) -> None:
        """Forget what the request asked."""
        self._lookups.cleanup(req_context.req_id)

    def on_schedule_end(self, context: Any) -> None:
        """Send the step's questions."""
        self._lookups.flush()

    def drain_jobs(self) -> None:
        """Wait until no job is under way; each has a deadline."""
        with self._idle:
            self._idle.wait_for(lambda: not self._running)

    def shutdown(self) -> None:
        """Leave the pool when no thread touches vLLM's memory any more. Idempotent."""
        self._threads.shutdown(wait=True, cancel_futures=False)
        self._lookups.shutdown()
        self._link.close()

    def _submit(
        self, job: Any, timeout_s: float, move: Callable[[Pool, Any, float], Sequence[int]]
    ) -> None:
        deadline = time.monotonic() + timeout_s
        with self._idle:
            self._running += 1
        self._threads.submit(self._run, job, deadline, move)

    def _run(
        self, job: Any, deadline: float, move: Callable[[Pool, Any, float], Sequence[int]]
    ) -> None:
        began, codes = time.monotonic(), list[int]()
        try:
            pool, left_s = self._link.get(), deadline - began
            if pool is not None and left_s > 0:
                codes = [int(code) for code in move(pool, job, left_s)]
                self._link.worked()
        except (MoonpoolError, OSError) as error:
            self._link.failed(error)
        except Exception:  # noqa: BLE001 - a job must end, whatever happens
            logger.exception("moonpool: a job of the tier failed")
        finally:
            self._end(job, codes, time.monotonic() - began)

    def _end(self, job: Any, codes: list[int], seconds: float) -> None:
        keys = list(job.keys)
        codes += [MoonpoolError.code] * (len(keys) - len(codes))
        good = [key for key, code in zip(keys, codes, strict=True) if code in THERE]
        if job.is_promotion and len(good) < len(keys):
            kept = set(good)
            self._failed.put([key for key in keys if key not in kept])
        self._ended.put(
            JobResult(
                job.job_id,
                len(good) == len(keys),
                tuple(good) or None if job.is_promotion else None,
                seconds,
                len(good) * self._row,
            )
        )
        with self._idle:
            self._running -= 1
            self._idle.notify_all()

    def _store(self, pool: Pool, job: Any, left_s: float) -> Sequence[int]:
        found: Sequence[int] = pool.put_pieces(
            self._keys(job.keys), self._pieces(job.chunk_ids), timeout_s=left_s
        ).tolist()
        return found

    def _load(self, pool: Pool, job: Any, left_s: float) -> Sequence[int]:
        found: Sequence[int] = pool.get_pieces(
            self._keys(job.keys), self._pieces(job.chunk_ids), timeout_s=left_s, exact=True
        ).tolist()
        return found

    def _exist(self, keys: Sequence[bytes]) -> Sequence[bool]:
        pool = self._link.get()
        if pool is None:
            return [False] * len(keys)
        try:
            return pool.exists_batch(self._keys(keys))
        except (MoonpoolError, OSError) as error:
            self._link.failed(error)
            return [False] * len(keys)

    def _keys(self, keys: Iterable[bytes]) -> list[Key]:
        return [
            pack(
                objects.digest_of(get_offload_block_hash(key)),
                namespace_of(self._space, get_offload_group_idx(key)),
            )
            for key in keys
        ]

    def _pieces(self, chunk_ids: Any) -> Pieces:
        rows = np.asarray(chunk_ids, np.uint64)
        addresses = np.uint64(self._base) + rows * np.uint64(self._row)
        lengths = np.full(len(rows), self._row, np.uint64)
        return Pieces(addresses, lengths, np.arange(len(rows) + 1, dtype=np.int64))


def facts(config: Any, user: str) -> list[str]:
    """Return all that decides what is in a chunk: engines share only if all of it is equal."""
    groups = [(group.tokens_per_block, group.layer_names) for group in config.groups]
    parallel = config.parallel
    split = ("any",) if parallel.is_parallelism_agnostic else (
        parallel.tp_size, parallel.pp_size, parallel.pcp_size, parallel.dcp_size
    )  # fmt: skip
    known = {
        "tier": "1",
        "user": user,
        "model": config.model.name,
        "weights": namespace.weights_digest(Path(config.model.name)),
        "dtype": config.model.dtype,
        "tokens": f"{config.cache.tokens_per_hash}x{config.cache.blocks_per_chunk}",
        "bytes": str(config.worker_kv_bytes_per_block),
        "groups": repr(groups),
        "split": repr(split),
        "layout": f"{config.kv_cache_layout}/{config.replicated_layout}/{config.canonical_layout}",
        "hash": namespace.hash_scheme(
            "sha256", vllm.__version__, fixed_seed=compat.has_fixed_hash_seed()
        ),
        "device": namespace.device_format(),
    }
    return [part for fact in known.items() for part in fact]
