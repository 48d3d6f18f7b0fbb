"""Blocks that a peer was given to fill and did not give back in time.

They are held in vLLM's block pool, by reference count, so that nobody else is given a block that a
late transfer may still write into. Bounded: while much is held, no peer is asked.
"""

from __future__ import annotations

from typing import Any


class Quarantine:
    """Who is owed which blocks. All calls are made by the scheduler's thread."""

    def __init__(self, ratio: float) -> None:
        """ratio: the share of the block pool beyond which ``full`` is true."""
        self._ratio = ratio
        self._pool: Any = None
        self._held: dict[int, list[Any]] = {}
        self.blocks = 0

    def bind(self, pool: Any) -> None:
        """Take vLLM's block pool."""
        self._pool = pool

    @property
    def full(self) -> bool:
        """Whether so much is held, or nothing can be, that no peer should be given more."""
        return self._pool is None or self.blocks > self._ratio * self._pool.num_gpu_blocks

    def hold(self, serial: int, block_ids: list[int]) -> None:
        """Keep blocks that are about to be freed."""
        blocks = [self._pool.blocks[block_id] for block_id in block_ids]
        self._pool.touch(blocks)
        self._held[serial] = blocks
        self.blocks += len(blocks)

    def release(self, serial: int) -> None:
        """Let go of what the peer cannot write to any more; unknown serials are ignored."""
        blocks = self._held.pop(serial, [])
        self.blocks -= len(blocks)
        if blocks:
            self._pool.free_blocks(reversed(blocks))
