"""Announced objects that are not in the index yet: packed, with their places taken and marks set.

A master that starts again is told of millions of objects within a second or two. What lookups need
of them is there at once; the rest is made when an object is asked for, or soon after by itself.
"""

from __future__ import annotations

import struct
from collections import deque
from collections.abc import Iterator, Sequence

import numpy as np
import numpy.typing as npt

from moonpool.core.allocator import Span
from moonpool.core.index import PLACE_BYTES, Object
from moonpool.core.keys import DIGEST_BYTES

U8 = npt.NDArray[np.uint8]
U64 = npt.NDArray[np.uint64]
I64 = npt.NDArray[np.int64]
Spans = dict[int, Span]


class Batch:
    """Objects of one segment and one namespace, the oldest first.

    head: what their keys begin with. digests, parents (zeros: none): words of shape (n, 2).
    starts, numbers: which slot of which span each has. places: as objects keep them.
    """

    def __init__(
        self,
        head: bytes,
        digests: U64,
        parents: U64,
        places: bytes,
        spans: tuple[Spans, I64, I64],
    ) -> None:
        self.head = head
        self._digests, self._parents, self._places = digests, parents, places
        self._spans, self._starts, self._numbers = spans
        self._left = np.ones(len(digests), bool)
        self.count = len(digests)
        self._order: I64 | None = None
        self._first: U64 = digests[:0, 0]

    def rows_of(self, words: U64) -> I64:
        """Return the rows of those of the digests, words of shape (n, 2), that are still here."""
        if self._order is None:
            self._order = np.argsort(self._digests[:, 0])
            self._first = self._digests[self._order, 0]
        at, end = np.searchsorted(self._first, words[:, 0]), len(self._first)
        found: list[I64] = []
        while len(words):  # several may share their first word
            same = at < end
            same[same] = self._first[at[same]] == words[same, 0]
            at, words = at[same], words[same]
            rows = self._order[at]
            found.append(rows[(self._digests[rows, 1] == words[:, 1]) & self._left[rows]])
            at = at + 1
        return np.unique(np.concatenate(found)) if found else np.zeros(0, np.int64)

    def oldest(self, count: int) -> I64:
        """Return the first rows that are still here."""
        return np.flatnonzero(self._left)[:count]

    def take(self, rows: I64, stamp: int) -> list[Object]:
        """Make the objects of rows, and own their slots; the first one's serial is ``stamp``."""
        self._left[rows] = False
        self.count -= len(rows)
        keys = self._keys(self._digests, rows)
        parents = self._keys(self._parents, rows)
        bare = ~self._parents[rows].any(axis=1)
        for i in np.flatnonzero(bare).tolist():
            parents[i] = b""
        places, spans, owners, last = self._places, self._spans, [], -1
        made: list[Object] = []
        add = made.append
        turns = zip(
            keys,
            parents,
            range(stamp, stamp + len(keys)),
            (rows * PLACE_BYTES).tolist(),
            self._starts[rows].tolist(),
            self._numbers[rows].tolist(),
            strict=True,
        )
        for key, parent, used, at, start, number in turns:
            if start != last:
                owners, last = spans[start].owners, start
            each = owners[number] = Object(
                -1, used, used, key, parent, places[at : at + PLACE_BYTES]
            )
            add(each)
        return made

    def _keys(self, digests: U64, rows: I64) -> list[bytes]:
        width = len(self.head) + DIGEST_BYTES
        raw = np.empty((len(rows), width), np.uint8)
        raw[:, : len(self.head)] = np.frombuffer(self.head, np.uint8)
        raw[:, len(self.head) :] = digests[rows].view(np.uint8)
        return [key for (key,) in struct.iter_unpack(f"{width}s", raw.tobytes())]


class Backlog:
    """All batches, the oldest first. ``since`` is when there was none last, ``told`` when one came
    last."""

    def __init__(self) -> None:
        self.count = 0
        self.since = self.told = 0.0
        self._batches: deque[Batch] = deque()

    def __bool__(self) -> bool:
        return self.count > 0

    def add(self, batch: Batch, now: float) -> None:
        """Take a batch in."""
        self.since = self.since if self.count else now
        self._batches.append(batch)
        self.count += batch.count
        self.told = now

    def find(self, keys: Sequence[bytes]) -> Iterator[tuple[Batch, I64]]:
        """Yield where keys are; whoever asks takes those rows before the next turn."""
        words: dict[bytes, U64] = {}
        for batch in list(self._batches):
            if batch.head not in words:
                words[batch.head] = _words(batch.head, keys)
            if len(words[batch.head]):
                rows = batch.rows_of(words[batch.head])
                if len(rows):
                    yield batch, rows

    def oldest(self, count: int) -> tuple[Batch, I64]:
        """Return up to so many rows of the oldest batch; there is one."""
        while not self._batches[0].count:
            self._batches.popleft()
        return self._batches[0], self._batches[0].oldest(count)

    def take(self, batch: Batch, rows: I64, stamp: int) -> list[Object]:
        """See Batch."""
        self.count -= len(rows)
        made = batch.take(rows, stamp)
        if not self.count:
            self._batches.clear()
        return made


def _words(head: bytes, keys: Sequence[bytes]) -> U64:
    """Return the digests of those of the keys that begin so and end with one, shape (n, 2)."""
    cut, width = len(head), len(head) + DIGEST_BYTES
    raw = b"".join([key[cut:] for key in keys if len(key) == width and key.startswith(head)])
    return np.frombuffer(raw, "<u8").reshape(-1, 2)
