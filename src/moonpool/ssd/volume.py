"""Where the bytes of extents go. One seam: a local disk, fsspec, or a test's disk that fails."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Protocol

from moonpool.errors import MoonpoolError

Buffer = memoryview


class VolumeError(MoonpoolError):
    """A volume could not do what it was asked. ``reason`` is a word for the counters."""

    code = -800

    def __init__(self, text: str, reason: str) -> None:
        super().__init__(text)
        self.reason = reason


class Volume(Protocol):
    """Extents by number: data of a fixed size and an index that grows. Every method raises
    VolumeError; ``read`` may be called from many threads, ``write`` from several for different
    places, the others from one thread at a time.
    """

    immutable: bool
    """Whether an extent must be written in one go: it is sealed after each batch."""

    def describe(self) -> str:
        """Say in a few words what it is and how it is opened."""
        ...

    def numbers(self) -> list[int]:
        """Return the extents that have an index; what is left of others is deleted."""
        ...

    def make(self, number: int, size: int) -> None:
        """Make an empty extent with all its space. The reason is ``full`` if there is none."""
        ...

    def write(self, number: int, offset: int, buffers: Sequence[Buffer]) -> None:
        """Write buffers, whole blocks together, one after the other."""
        ...

    def sync(self, number: int) -> None:
        """Return once all that was written to an extent would survive a loss of power."""
        ...

    def read(self, number: int, offset: int, buffers: Sequence[Buffer]) -> None:
        """Fill buffers, whole blocks together. The reason is ``gone``, ``truncated`` or ``io``."""
        ...

    def log(self, number: int) -> bytes:
        """Return the index."""
        ...

    def cut_log(self, number: int, size: int) -> None:
        """Cut the index to its whole records."""
        ...

    def append(self, number: int, records: bytes) -> None:
        """Add to the index; it is durable when this returns."""
        ...

    def delete(self, number: int) -> None:
        """Delete an extent, the index first."""
        ...

    def close(self) -> None:
        """Give the volume up to others."""
        ...
