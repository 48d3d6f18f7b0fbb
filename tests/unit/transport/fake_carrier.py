"""A carrier whose engine copies between processes of this host, and fails as it is told.

``python -m tests.unit.transport.fake_carrier FD``. The option ``control`` names a file; what it
says counts for each pull that begins: ``stuck`` (no end until the file says something else, then
the bytes are written after all), ``fail``, ``crash``, ``flip`` (one bit of each row).
"""

from __future__ import annotations

import ctypes
import mmap
import os
from pathlib import Path

import numpy as np

from moonpool.errors import TransferError
from moonpool.transport import onesided_engine, onesided_process
from moonpool.transport.base import U64
from moonpool.transport.onesided_engine import Engine, Kind, Setup

_opened: list[np.ndarray[tuple[int], np.dtype[np.uint8]]] = []


class FakeEngine:
    """Reads ``/proc/PID/mem`` of its peers."""

    def __init__(self, setup: Setup) -> None:
        self.backends: tuple[str, ...] = tuple(setup.options.get("backends", ["fake"]))
        self.control = Path(setup.options["control"][0])
        self.registered: list[tuple[int, int, str, int]] = []
        self._told = 0

    def register(self, address: int, nbytes: int, memory: str, device: int) -> None:
        self.registered.append((address, nbytes, memory, device))

    def describe(self) -> bytes:
        return str(os.getpid()).encode()

    def connect(self, description: bytes) -> str:
        if not description.isdigit():
            raise TransferError("not a description")
        return description.decode()

    def disconnect(self, peer: str) -> None:
        pass

    def pull(
        self,
        peer: str,
        targets: U64,
        sources: U64,
        lengths: U64,
        ours: Kind,
        theirs: Kind,
        note: bool,
    ) -> FakePull:
        for target, length in zip(targets.tolist(), lengths.tolist(), strict=True):
            if not any(
                (kind, device) == ours and address <= target <= target + length <= address + size
                for address, size, kind, device in self.registered
            ):
                raise TransferError("memory that is not registered")
        self._told += note
        return FakePull(self, peer, list(zip(targets, sources, lengths, strict=True)))

    def notes(self) -> int:
        told, self._told = self._told, 0
        return told

    def close(self) -> None:
        pass


class FakePull:
    def __init__(self, engine: FakeEngine, peer: str, rows: list[tuple[int, int, int]]) -> None:
        self._engine, self._peer, self._rows = engine, peer, rows
        self._order = engine.control.read_text()
        if self._order == "crash":
            os._exit(3)

    def done(self) -> bool:
        if self._order == "fail":
            raise TransferError("it fails")
        if self._order == "stuck" and self._engine.control.read_text() == "stuck":
            return False
        try:
            with Path(f"/proc/{self._peer}/mem").open("rb", buffering=0) as memory:
                for target, source, length in self._rows:
                    memory.seek(int(source))
                    found = bytearray(memory.read(int(length)))
                    if len(found) != length:
                        raise TransferError("too few bytes")
                    if self._order == "flip":
                        found[0] ^= 1
                    ctypes.memmove(int(target), bytes(found), int(length))
        except OSError as error:
            raise TransferError(str(error)) from None
        return True

    def end(self) -> None:
        pass


def _load(setup: Setup) -> Engine:
    return FakeEngine(setup)


def _open_gpu(handle: bytes, _device: int) -> int:
    """The handle names a file that stands for the GPU's memory."""
    with Path(handle.decode()).open("r+b") as file:
        mapped = np.frombuffer(mmap.mmap(file.fileno(), 0), np.uint8)
    _opened.append(mapped)
    return int(mapped.ctypes.data)


if __name__ == "__main__":
    onesided_engine.load = _load
    onesided_process.main(_open_gpu)
