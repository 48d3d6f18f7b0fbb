"""Batches of objects for the tests of transports."""

from __future__ import annotations

import itertools
from collections import deque
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from moonpool.transport.base import I64, Pieces, Places
from moonpool.transport.layout import PAGE_BYTES

# Pieces are addresses and keep nothing alive, and a test may hold nothing else of a batch.
_alive: deque[npt.NDArray[np.uint8]] = deque(maxlen=64)

Bytes = npt.NDArray[np.uint8]


@dataclass
class Batch:
    """Objects in scattered memory; ``memory`` owns the bytes that ``pieces`` points to."""

    memory: Bytes
    pieces: Pieces

    def payloads(self) -> list[bytes]:
        """Return each object's bytes."""
        base, starts = int(self.memory.ctypes.data), self.pieces.starts.tolist()
        at = [int(a) - base for a in self.pieces.addresses.tolist()]
        lengths = self.pieces.lengths.tolist()
        return [
            b"".join(self.memory[at[p] : at[p] + lengths[p]].tobytes() for p in range(a, b))
            for a, b in itertools.pairwise(starts)
        ]

    def blank(self) -> Batch:
        """Return the same pieces in other memory that is zero."""
        memory = np.zeros_like(self.memory)
        _alive.append(memory)
        offsets = self.pieces.addresses - np.uint64(int(self.memory.ctypes.data))
        moved = offsets + np.uint64(int(memory.ctypes.data))
        return Batch(memory, Pieces(moved, self.pieces.lengths, self.pieces.starts))


def batch(seed: int, sizes: list[int], pieces_max: int = 7) -> Batch:
    """Return random objects of these sizes, each cut into a random number of pieces."""
    rng = np.random.default_rng(seed)
    lengths: list[int] = []
    starts = [0]
    for size in sizes:
        inner = rng.integers(0, size + 1, int(rng.integers(0, pieces_max)))
        cuts = sorted({0, size, *inner.tolist()})
        lengths += [b - a for a, b in itertools.pairwise(cuts)]
        starts.append(len(lengths))
    gaps = rng.integers(0, 2, len(lengths)) * 16
    order = rng.permutation(len(lengths))
    offsets = np.zeros(len(lengths), np.uint64)
    at = 0
    for p in order.tolist():
        offsets[p] = at
        at += lengths[p] + int(gaps[p])
    memory = np.frombuffer(rng.bytes(at + 1), np.uint8).copy()
    _alive.append(memory)
    addresses = offsets + np.uint64(int(memory.ctypes.data))
    return Batch(
        memory, Pieces(addresses, np.array(lengths, np.uint64), np.array(starts, np.int64))
    )


def places(sizes: list[int], generation: int = 1, *, base: int = 0, index: int = 0) -> Places:
    """Return places for objects of these sizes, one after the other from ``base``."""
    lengths = np.array(sizes, np.uint64)
    page = np.uint64(PAGE_BYTES)
    rooms = np.maximum((lengths + page - np.uint64(1)) // page, np.uint64(1)) * page
    offsets = np.zeros(len(sizes), np.uint64)
    np.cumsum(rooms[:-1], out=offsets[1:])
    count = len(sizes)
    return Places(
        indexes=np.arange(index, index + count, dtype=np.int64),
        offsets=offsets + np.uint64(base),
        sizes=lengths,
        capacities=rooms,
        generations=np.full(count, generation, np.uint64) + np.arange(count, dtype=np.uint64),
        checksums=np.zeros(count, np.uint64),
    )


def changed(
    original: Places,
    *,
    indexes: I64 | None = None,
    offsets: list[int] | None = None,
    sizes: list[int] | None = None,
    capacities: list[int] | None = None,
    generations: list[int] | None = None,
    checksums: npt.NDArray[np.uint64] | None = None,
) -> Places:
    """Return places with some of the arrays replaced."""

    def pick(new: list[int] | None, old: npt.NDArray[np.uint64]) -> npt.NDArray[np.uint64]:
        return old if new is None else np.array(new, np.uint64)

    return Places(
        original.indexes if indexes is None else indexes,
        pick(offsets, original.offsets),
        pick(sizes, original.sizes),
        pick(capacities, original.capacities),
        pick(generations, original.generations),
        original.checksums if checksums is None else checksums,
    )


def keys(count: int, length: int = 33) -> list[bytes]:
    """Return distinct packed keys of this length."""
    return [b"\x00" + i.to_bytes(4, "big").rjust(length - 1, b"k") for i in range(count)]
