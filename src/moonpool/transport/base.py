"""The seam: what every transport does, and how a batch is described.

A batch moves objects between this process's memory and one segment. Memory is described by NumPy
arrays of addresses and lengths, never by a Python object per piece.
"""

from __future__ import annotations

from contextlib import AbstractContextManager
from dataclasses import dataclass
from typing import Protocol

import numpy as np
import numpy.typing as npt

U64 = npt.NDArray[np.uint64]
I64 = npt.NDArray[np.int64]


@dataclass(frozen=True, slots=True)
class Pieces:
    """The memory of n objects as p pieces: object i is pieces ``starts[i]:starts[i + 1]``.

    addresses: (p,) uint64; lengths: (p,) uint64, bytes; starts: (n + 1,) int64.
    """

    addresses: U64
    lengths: U64
    starts: I64

    def __len__(self) -> int:
        return len(self.starts) - 1

    def sizes(self) -> U64:
        """Return the bytes of each object, shape (n,)."""
        total = np.zeros(len(self.lengths) + 1, np.uint64)
        np.cumsum(self.lengths, out=total[1:])
        return total[self.starts[1:]] - total[self.starts[:-1]]

    def take(self, chosen: I64) -> Pieces:
        """Return the pieces of the chosen objects, in that order."""
        counts = (self.starts[1:] - self.starts[:-1])[chosen]
        starts = np.zeros(len(chosen) + 1, np.int64)
        np.cumsum(counts, out=starts[1:])
        first = np.repeat(self.starts[:-1][chosen] - starts[:-1], counts)
        where = np.arange(starts[-1], dtype=np.int64) + first
        return Pieces(self.addresses[where], self.lengths[where], starts)


@dataclass(frozen=True, slots=True)
class Places:
    """The n places of a batch in one segment. All arrays have shape (n,).

    indexes: table entries; offsets and sizes: bytes in the data area; capacities: bytes reserved;
    generations: of the objects; checksums: xxh3_64 of the payload (read: expected; write: unused).
    """

    indexes: I64
    offsets: U64
    sizes: U64
    capacities: U64
    generations: U64
    checksums: U64

    def __len__(self) -> int:
        return len(self.offsets)


@dataclass(frozen=True, slots=True)
class Written:
    """Result of a write: per object a code (0 or a negative error code) and its checksum."""

    codes: I64
    checksums: U64


class Copier(Protocol):
    """Moves bytes between a caller's memory, which Pieces describe, and host memory.

    Used from several threads at once. gather and scatter return when the bytes are there, release
    the GIL while they move, and raise TransferError if they cannot be moved.
    """

    @property
    def direct(self) -> bool:
        """Whether Pieces are host memory, which sockets and memmove may use as it is."""
        ...

    def gather(self, memory: Pieces, targets: U64) -> U64:
        """Copy each object's pieces to its host address; return xxh3_64 of each, shape (n,)."""
        ...

    def scatter(self, sources: U64, memory: Pieces) -> None:
        """Copy each object from its host address to its pieces."""
        ...

    def attach(self, address: int, nbytes: int) -> None:
        """Learn that a segment's data is mapped there; it may be pinned in the background."""
        ...

    def detach(self, address: int) -> None:
        """Forget a mapping that is about to go; no call uses it as pinned memory after that."""
        ...

    def staging(self, nbytes: int) -> AbstractContextManager[int]:
        """Lend host memory, pinned where that is possible, to who needs bytes that pass through
        the host. Bounded: raises TransferError if none becomes free in time."""
        ...


class Transport(Protocol):
    """One way to one segment. Calls block, release the GIL while bytes move, never raise for a
    single object (its code says what happened), and may be used from several threads at once."""

    def read(self, places: Places, memory: Pieces) -> I64:
        """Copy objects into memory; return a code for each, 0 only if its bytes are right."""
        ...

    def write(
        self, places: Places, memory: Pieces, keys: list[bytes], parents: list[bytes]
    ) -> Written:
        """Write objects from memory and seal their slots."""
        ...

    def close(self) -> None:
        """Give up mappings and connections."""
        ...
