"""A disk that keeps what was synced, and may lose the rest with the power."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field

from moonpool.errors import ConfigError
from moonpool.ssd.volume import VolumeError
from tests.sim.world.hub import hub

BLOCK = 4096
_CALL_S = 0.0005


@dataclass
class ExtentOf:
    """An extent: its bytes, and what of them is in the system's cache only."""

    size: int
    data: bytearray
    index: bytearray = field(default_factory=bytearray)
    unsynced: list[tuple[int, bytes]] = field(default_factory=list)


@dataclass
class DiskOf:
    """What a host's disk holds; it outlives processes."""

    extents: dict[int, ExtentOf] = field(default_factory=dict)
    owner: object = None
    slow: float = 1.0

    def lose_power(self) -> int:
        """Undo a part of what was not synced; return how many writes."""
        rng, lost = hub().rng, 0
        for extent in self.extents.values():
            for offset, before in reversed(extent.unsynced):
                for at in range(0, len(before), BLOCK):
                    if rng.random() < 0.7:
                        extent.data[offset + at : offset + at + BLOCK] = before[at : at + BLOCK]
                        lost += 1
            extent.unsynced.clear()
        return lost


DISKS: dict[str, DiskOf] = {}


class SimVolume:
    """A Volume on the disk of the host on which it is opened."""

    immutable = False

    def __init__(self, _directory: str, node: str) -> None:
        process = hub().process
        assert process is not None
        self._disk = DISKS.setdefault(process.host, DiskOf())
        owner = self._disk.owner
        if owner is not None and owner is not process and getattr(owner, "alive", False):
            raise ConfigError(f"ssd: in use by a node {node!r} that lives")
        self._disk.owner = process

    def describe(self) -> str:
        return "a simulated disk"

    def check_space(self, _wanted: int) -> None:
        pass

    def numbers(self) -> list[int]:
        return sorted(self._disk.extents)

    def make(self, number: int, size: int) -> None:
        self._wait()
        self._disk.extents[number] = ExtentOf(size, bytearray(size))

    def write(self, number: int, offset: int, buffers: Sequence[memoryview]) -> None:
        extent = self._extent(number)
        for buffer in buffers:
            self._wait()
            data = bytes(buffer)
            extent.unsynced.append((offset, bytes(extent.data[offset : offset + len(data)])))
            extent.data[offset : offset + len(data)] = data
            offset += len(data)

    def sync(self, number: int) -> None:
        self._wait()
        self._extent(number).unsynced.clear()

    def read(self, number: int, offset: int, buffers: Sequence[memoryview]) -> None:
        for buffer in buffers:
            self._wait()
            data = self._extent(number).data[offset : offset + len(buffer)]
            if len(data) < len(buffer):
                raise VolumeError(f"extent {number} ends", "truncated")
            buffer[:] = data
            offset += len(buffer)

    def log(self, number: int) -> bytes:
        return bytes(self._extent(number).index)

    def cut_log(self, number: int, size: int) -> None:
        del self._extent(number).index[size:]

    def append(self, number: int, records: bytes) -> None:
        extent, half = self._extent(number), len(records) // 2
        extent.index += records[:half]  # who dies now leaves a torn record
        self._wait()
        extent.index += records[half:]

    def delete(self, number: int) -> None:
        self._disk.extents.pop(number, None)

    def close(self) -> None:
        self._disk.owner = None

    def _extent(self, number: int) -> ExtentOf:
        found = self._disk.extents.get(number)
        if found is None:
            raise VolumeError(f"extent {number} is gone", "gone")
        return found

    def _wait(self) -> None:
        hub().park(_CALL_S * hub().rng.random() * 2 * self._disk.slow)
