"""Memory of a GPU that the carrier registers, so that a fabric reaches it without the host.

Nobody hashes what goes this way: of what the client stores the node takes the checksum as it has
arrived, and what it reads is only checked by the owners of the pages. So it is asked for.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from moonpool.transport.base import U64, Pieces
from moonpool.transport.onesided_engine import Region

CARRIER = "moonpool.gpu.carrier"
"""The carrier's module where there is such memory."""


@dataclass(frozen=True)
class GpuMemory:
    """``nbytes`` at ``address`` in this process, ``offset`` bytes into the allocation that the
    CUDA IPC ``handle`` names. ``device``: the GPU's number in the carrier."""

    address: int
    nbytes: int
    handle: bytes
    offset: int = 0
    device: int = 0

    def region(self) -> Region:
        """Return it as the carrier opens it."""
        return Region(
            self.nbytes, gpu_handle=self.handle, gpu_offset=self.offset, device=self.device
        )


def located(memory: Pieces, known: Sequence[GpuMemory]) -> tuple[int, U64] | None:
    """Return which of the known memories holds all pieces, and their offsets there, shape (p,)."""
    if not known or not len(memory.addresses):
        return None
    low = int(memory.addresses.min())
    for number, each in enumerate(known):
        if each.address <= low < each.address + each.nbytes:
            at = memory.addresses - np.uint64(each.address)
            room = np.uint64(each.nbytes)
            if (memory.lengths <= room - np.minimum(at, room)).all():
                return number, at
    return None
