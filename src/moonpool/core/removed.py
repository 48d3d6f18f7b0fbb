"""What was removed and must not come back with a node that did not hear of it.

A node is told to forget the places of an object that is removed. It may be away at that moment, or
its connection may break before it reads that; and it may hold older bytes of the key in space that
was evicted and not yet used again. So may it hold a put that was refused at its end, since its key
had come back meanwhile. What it then announces is compared with what is noted here.
"""

from __future__ import annotations

from collections import OrderedDict

import numpy as np
import numpy.typing as npt

from moonpool.core.keys import DIGEST_BYTES

U64 = npt.NDArray[np.uint64]


class Removed:
    """The keys removed last, each with the newest generation that there was then."""

    def __init__(self, keys_max: int) -> None:
        self._keys_max = keys_max
        self._newest: OrderedDict[bytes, int] = OrderedDict()
        self._refused: OrderedDict[bytes, int] = OrderedDict()
        self._heads: U64 | None = None

    def note(self, key: bytes, newest: int) -> None:
        """Take note that a key was removed; every put up to this generation was before that."""
        self._keep(self._newest, key, newest)

    def refuse(self, key: bytes, generation: int) -> None:
        """Take note that a put was refused though it was written."""
        self._keep(self._refused, key, generation)

    def _keep(self, where: OrderedDict[bytes, int], key: bytes, generation: int) -> None:
        where[key] = generation
        where.move_to_end(key)
        self._heads = None
        if len(where) > self._keys_max:
            where.popitem(last=False)

    def covers(self, key: bytes, generation: int) -> bool:
        """Tell whether an object was put before its key was removed, or refused."""
        return generation <= self._newest.get(key, 0) or generation == self._refused.get(key, 0)

    def suspects(self, heads: U64) -> npt.NDArray[np.bool_]:
        """Tell which digests, by their first words, may be of a removed key, shape (n,)."""
        if self._heads is None:
            keys = (*self._newest, *self._refused)
            firsts = (key[-DIGEST_BYTES : 8 - DIGEST_BYTES] for key in keys)
            self._heads = np.frombuffer(b"".join(f for f in firsts if len(f) == 8), "<u8")
        return np.isin(heads, self._heads)
