"""Host memory, and objects scattered over GPU memory, for the tests of the GPU's copier."""

from __future__ import annotations

import itertools
import mmap

import numpy as np
import numpy.typing as npt

from moonpool.transport.base import U64, Pieces

from .fake import FakeDriver

CHUNK = 1 << 20
STAGING = 1 << 20

Bytes = npt.NDArray[np.uint8]


class Host:
    """Page-aligned host memory, as a segment's is."""

    def __init__(self, nbytes: int) -> None:
        self._mapping = mmap.mmap(-1, nbytes)
        self.view: Bytes = np.frombuffer(self._mapping, np.uint8)
        self.address = int(self.view.ctypes.data)
        self.nbytes = nbytes

    def places(self, sizes: list[int], first: int = 0, gap: int = 64) -> U64:
        """Return addresses for objects, one behind the other."""
        offsets = np.cumsum([0, *(size + gap for size in sizes)])[: len(sizes)]
        return offsets.astype(np.uint64) + np.uint64(self.address + first)

    def payload(self, address: int, nbytes: int) -> bytes:
        at = address - self.address
        return self.view[at : at + nbytes].tobytes()


class Scattered:
    """Random objects in GPU memory, cut into pieces that lie in random order."""

    def __init__(
        self, driver: FakeDriver, seed: int, sizes: list[int], piece: int, *, shuffle: bool = True
    ) -> None:
        rng = np.random.default_rng(seed)
        lengths: list[int] = []
        starts = [0]
        for size in sizes:
            lengths += [min(piece, size - at) for at in range(0, size, piece)]
            starts.append(len(lengths))
        order = rng.permutation(len(lengths)) if shuffle else np.arange(len(lengths))
        offsets = np.zeros(len(lengths), np.uint64)
        at = 0
        for p in order.tolist():
            offsets[p] = at
            at += lengths[p]
        self.nbytes = max(at, 1)
        self.sizes = sizes
        self.base = driver.memory_alloc(self.nbytes)
        self.view = driver.bytes_at(self.base, self.nbytes)
        self.view[:] = np.frombuffer(rng.bytes(self.nbytes), np.uint8)
        self.pieces = Pieces(
            offsets + np.uint64(self.base),
            np.array(lengths, np.uint64),
            np.array(starts, np.int64),
        )

    def payloads(self) -> list[bytes]:
        """Return each object's bytes."""
        at = (self.pieces.addresses - np.uint64(self.base)).tolist()
        lengths, starts = self.pieces.lengths.tolist(), self.pieces.starts.tolist()
        return [
            b"".join(self.view[at[p] : at[p] + lengths[p]].tobytes() for p in range(a, b))
            for a, b in itertools.pairwise(starts)
        ]
