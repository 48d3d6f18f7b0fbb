"""What the pool has of a prompt."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Protocol


class PoolView(Protocol):
    """One source of knowledge of the pool."""

    async def prefix(self, hashes: Sequence[bytes]) -> int:
        """Return how many leading blocks of a prompt the pool has.

        hashes: the engines' block hashes, in order. Must not raise; 0 where nothing is known.
        """

    def describe(self) -> dict[str, object]:
        """Return its state for people."""
