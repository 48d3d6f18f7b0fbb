"""The Copier for a GPU's memory."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import AbstractContextManager, contextmanager

from moonpool.gpu.base import Driver, GpuError
from moonpool.transport.base import U64, Pieces

STAGING_BYTES = 64 * 1024 * 1024


class CudaCopier:
    """Copies between a GPU's memory and host memory: mapped segments are pinned in the
    background, and the GPU's copy engines then move the bytes without a step between.

    device: the GPU's number or UUID, None for the driver's. staging_bytes: pinned memory for what
    is not pinned (yet) and for what passes through sockets.
    """

    direct = False

    def __init__(
        self,
        driver: Driver,
        device: int | str | None = None,
        *,
        staging_bytes: int = STAGING_BYTES,
    ) -> None:
        """Raises GpuError."""
        self.driver = driver

    def gather(self, memory: Pieces, targets: U64) -> U64:
        """Copy each object's pieces to its host address; return xxh3_64 of each, (n,)."""
        raise GpuError("not there yet")

    def scatter(self, sources: U64, memory: Pieces) -> None:
        """Copy each object from its host address to its pieces."""
        raise GpuError("not there yet")

    def attach(self, address: int, nbytes: int) -> None:
        """Pin a mapping in the background."""

    def detach(self, address: int) -> None:
        """Unpin a mapping; waits for copies that use it."""

    def staging(self, nbytes: int) -> AbstractContextManager[int]:
        """Lend host memory, pinned as far as there is such."""
        raise GpuError("not there yet")

    @contextmanager
    def after(self, event: int) -> Iterator[None]:
        """Let the copies of this block (in this thread, and in threads that transports start for
        it) wait on the GPU for an event, such as the end of the step that fills the memory."""
        yield

    def close(self) -> None:
        """Unpin and give back everything; no copy may be under way."""
