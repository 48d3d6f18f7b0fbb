"""Keys of objects that were evicted: what a policy learns from when they come back."""

from __future__ import annotations

from collections import OrderedDict
from typing import Final

GHOSTS_MAX: Final = 1 << 20
"""Most keys in one list, whatever the sizes of their objects."""


class Ghosts:
    """Keys and the sizes that their objects had, the oldest first."""

    def __init__(self) -> None:
        self.sizes: OrderedDict[bytes, int] = OrderedDict()
        self.nbytes = 0

    def __len__(self) -> int:
        return len(self.sizes)

    def __contains__(self, key: bytes) -> bool:
        return key in self.sizes

    def add(self, key: bytes, nbytes: int) -> None:
        """Remember a key, as the newest."""
        self.take(key)
        self.sizes[key] = nbytes
        self.nbytes += nbytes
        if len(self.sizes) > GHOSTS_MAX:
            self.drop_oldest()

    def take(self, key: bytes) -> bool:
        """Forget a key; tell whether it was there."""
        nbytes = self.sizes.pop(key, None)
        self.nbytes -= nbytes or 0
        return nbytes is not None

    def drop_oldest(self) -> None:
        """Forget the oldest."""
        _, nbytes = self.sizes.popitem(last=False)
        self.nbytes -= nbytes

    def validate(self) -> None:
        """Raise AssertionError if the bytes are not those of the keys."""
        assert self.nbytes == sum(self.sizes.values())
        assert len(self.sizes) <= GHOSTS_MAX
