"""The part of a request's blocks that a peer is to fill."""

from __future__ import annotations

from typing import Any


class Suffix:
    """vLLM's blocks of a request as if those before ``first`` were the engine's own hit."""

    def __init__(self, blocks: Any, first: int, last: int) -> None:
        """The peer is to fill blocks [first, last)."""
        self._blocks, self._first, self._last = blocks, first, last
        self.blocks = blocks.blocks

    def get_unhashed_block_ids_all_groups(self) -> tuple[list[int], ...]:
        """Return the blocks to fill."""
        (ids,) = self._blocks.get_block_ids()
        return (list(ids[self._first : self._last]),)

    def get_block_ids(self, *args: Any, **options: Any) -> Any:
        """Return all blocks of the request."""
        return self._blocks.get_block_ids(*args, **options)
