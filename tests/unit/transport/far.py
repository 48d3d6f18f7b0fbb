"""Memory that the processor cannot reach, and a Copier for it: what a GPU's looks like to a
transport, without one."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from contextlib import contextmanager

import numpy as np

from moonpool.errors import TransferError
from moonpool.transport import copy
from moonpool.transport.base import I64, U64, Pieces, Places, Transport, Written

FAR = 1 << 60
"""Added to addresses. No mapping is up there, so following one faults."""


def far(memory: Pieces) -> Pieces:
    """Return pieces of far memory that stand for pieces of host memory."""
    return Pieces(memory.addresses + np.uint64(FAR), memory.lengths, memory.starts)


class FarCopier:
    """Copies between host memory and far memory; ``fail`` makes every copy fail."""

    direct = False

    def __init__(self) -> None:
        self.attached: dict[int, int] = {}
        self.lent: list[int] = []
        self.lent_bytes_max = 0
        self.fail = False
        self.copies = 0
        self._lock = threading.Lock()

    def gather(self, memory: Pieces, targets: U64) -> U64:
        return copy.gather(self._near(memory, targets), targets)

    def scatter(self, sources: U64, memory: Pieces) -> None:
        copy.scatter(sources, self._near(memory, sources))

    def attach(self, address: int, nbytes: int) -> None:
        self.attached[address] = nbytes

    def detach(self, address: int) -> None:
        self.attached.pop(address, None)

    @contextmanager
    def staging(self, nbytes: int) -> Iterator[int]:
        with copy.HOST.staging(nbytes) as address:
            with self._lock:
                self.lent.append(nbytes)
                self.lent_bytes_max = max(self.lent_bytes_max, nbytes)
            try:
                yield address
            finally:
                with self._lock:
                    self.lent.remove(nbytes)

    def _near(self, memory: Pieces, host: U64) -> Pieces:
        assert (memory.addresses >= FAR).all(), "a piece that is no far memory"
        assert (host < FAR).all(), "a host address that is none"
        self.copies += 1
        if self.fail:
            raise TransferError("this copier fails")
        return Pieces(memory.addresses - np.uint64(FAR), memory.lengths, memory.starts)


class FarTransport:
    """Another transport with a FarCopier, for callers that have host memory."""

    def __init__(self, way: Transport) -> None:
        self._way = way

    def read(self, places: Places, memory: Pieces) -> I64:
        return self._way.read(places, far(memory))

    def write(
        self, places: Places, memory: Pieces, keys: list[bytes], parents: list[bytes]
    ) -> Written:
        return self._way.write(places, far(memory), keys, parents)

    def close(self) -> None:
        self._way.close()
