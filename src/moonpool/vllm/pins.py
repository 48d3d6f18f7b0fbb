"""Blocks that saves in progress hold: vLLM must not reuse them before their bytes are read.

Held by reference count in vLLM's block pool, so neither the end of a request nor a preemption
frees them. Bounded in blocks and in jobs; given back only when the worker says that it is done
with them, since bytes read from a reused block would be stored under the wrong key.
"""

from __future__ import annotations

from typing import Any

JOBS_MAX = 512


class PinBook:
    """Who holds what. All calls are made by the scheduler's thread."""

    def __init__(self, ratio: float, jobs_max: int = JOBS_MAX) -> None:
        """ratio: the share of the block pool that may be held at once."""
        self._ratio, self._jobs_max = ratio, jobs_max
        self._pool: Any = None
        self._blocks_max = 0
        self._jobs: dict[int, list[Any]] = {}
        self.blocks = 0
        self._beyond = 0
        """The job that went beyond the bound; 0 while there is none."""

    def bind(self, pool: Any, at_least: int) -> None:
        """Take vLLM's block pool; an object of ``at_least`` blocks must always fit."""
        self._pool = pool
        self._blocks_max = max(int(self._ratio * pool.num_gpu_blocks), at_least)

    @property
    def bound(self) -> bool:
        """Whether there is a block pool to hold blocks in."""
        return self._pool is not None

    @property
    def jobs(self) -> int:
        """Save jobs in progress."""
        return len(self._jobs)

    def room(self, *, end: bool = False) -> int:
        """Blocks that may still be held now.

        end: of a request, after which nothing of it can be saved any more. One such job at a time
        may go beyond the bound.
        """
        if self._pool is None or len(self._jobs) >= self._jobs_max:
            return 0
        beyond = end and not self._beyond
        most = self._pool.num_gpu_blocks if beyond else self._blocks_max
        return max(0, most - self.blocks)

    def hold(self, job_id: int, block_ids: list[int], *, end: bool = False) -> None:
        """Hold a job's blocks; ``end``: it is the last of a request."""
        blocks = [self._pool.blocks[block_id] for block_id in block_ids]
        self._pool.touch(blocks)
        self._jobs[job_id] = blocks
        self.blocks += len(blocks)
        if end and self.blocks > self._blocks_max:
            self._beyond = job_id

    def give_back(self, job_id: int) -> bool:
        """Let go of a job's blocks; False for a job that holds none."""
        blocks = self._jobs.pop(job_id, None)
        if blocks is None:
            return False
        self.blocks -= len(blocks)
        if job_id == self._beyond:
            self._beyond = 0
        # vLLM evicts in the order freed; the end of a prefix should go before its start.
        self._pool.free_blocks(reversed(blocks))
        return True
