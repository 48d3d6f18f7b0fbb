"""A batch of objects and where its pieces lie. Needs NumPy only: peers' interpreters import it."""

from __future__ import annotations

import re
from dataclasses import asdict, dataclass

import numpy as np
import numpy.typing as npt

Bytes = npt.NDArray[np.uint8]
U64 = npt.NDArray[np.uint64]

COMPARE_BYTES = 16 << 20
STAMP_WORDS = 512
_UNITS = {"": 1, "k": 1 << 10, "m": 1 << 20}
_BATCH = re.compile(r"(\d+)x(\d+)x(\d+)([km]?)", re.IGNORECASE)


@dataclass(frozen=True)
class Batch:
    """So many objects, each of so many scattered pieces of ``piece_bytes`` (a multiple of 8)."""

    objects: int
    pieces: int
    piece_bytes: int

    @classmethod
    def parse(cls, text: str) -> Batch:
        """Return the batch of a text such as ``512x61x36k``; raise ValueError."""
        found = _BATCH.fullmatch(text.replace(" ", ""))
        if found is None:
            raise ValueError(f"{text!r} is no batch such as 512x61x36k")
        objects, pieces, number = map(int, found.groups()[:3])
        batch = cls(objects, pieces, number * _UNITS[found[4].lower()])
        if min(objects, pieces, number) < 1 or batch.piece_bytes % 8:
            raise ValueError(f"{text!r}: no part may be 0, pieces are multiples of 8 bytes")
        return batch

    @property
    def object_bytes(self) -> int:
        """Bytes of an object."""
        return self.pieces * self.piece_bytes

    @property
    def nbytes(self) -> int:
        """Bytes of the whole batch."""
        return self.objects * self.object_bytes

    def __str__(self) -> str:
        size = size_text(self.piece_bytes)
        middle = f" x {self.pieces}" if self.pieces > 1 else ""
        return f"{self.objects:,}{middle} x {size}"

    def as_json(self) -> dict[str, int]:
        """Return the fields."""
        return asdict(self)

    def offsets(self, seed: int) -> U64:
        """Return where each piece lies in the batch's memory, shape (objects, pieces).

        Pieces of one object lie ``objects`` pieces apart, as the layers of a block do in an
        engine, and the objects are in random order.
        """
        order = np.random.default_rng(seed).permutation(self.objects).astype(np.uint64)
        layers = np.arange(self.pieces, dtype=np.uint64) * np.uint64(self.objects)
        return (layers[None, :] + order[:, None]) * np.uint64(self.piece_bytes)


def size_text(nbytes: int) -> str:
    """Return a size such as ``36 KiB``."""
    for unit, name in ((1 << 20, "MiB"), (1 << 10, "KiB")):
        if nbytes >= unit and nbytes % unit == 0:
            return f"{nbytes // unit} {name}"
    return f"{nbytes} B"


def random_bytes(nbytes: int, seed: int) -> Bytes:
    """Return so many random bytes (a multiple of 8)."""
    words = np.random.default_rng(seed).integers(0, 1 << 64, nbytes // 8, dtype=np.uint64)
    return words.view(np.uint8)


def stamp(memory: Bytes) -> None:
    """Change one word in each 4 KiB, so that a put that writes nothing is noticed."""
    words = memory.view(np.uint64)
    words[::STAMP_WORDS] += np.uint64(1)


def mismatches(one: Bytes, other: Bytes) -> int:
    """Return how many bytes differ."""
    wrong = 0
    for at in range(0, len(one), COMPARE_BYTES):
        a, b = one[at : at + COMPARE_BYTES], other[at : at + COMPARE_BYTES]
        if not np.array_equal(a.view(np.uint64), b.view(np.uint64)):
            wrong += int(np.count_nonzero(a != b))
    return wrong
