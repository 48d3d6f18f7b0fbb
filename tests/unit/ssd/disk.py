"""A disk in memory that loses power, fills up and fails, and memory for objects."""

from __future__ import annotations

import mmap
import random
from collections.abc import Sequence

import numpy as np
import xxhash

from moonpool.core.keys import pack
from moonpool.ssd.records import BLOCK_BYTES
from moonpool.ssd.spans import Item
from moonpool.ssd.volume import Buffer, VolumeError


class PowerLossError(Exception):
    """The machine is off: whatever was under way never returns."""


class Disk:
    """What survives: data, and indexes. ``unsynced`` holds writes that a loss of power may undo."""

    def __init__(self, seed: int, total_bytes: int = 1 << 40) -> None:
        self.random = random.Random(seed)
        self.total_bytes = total_bytes
        self.data: dict[int, bytearray] = {}
        self.index: dict[int, bytearray] = {}
        self.unsynced: list[tuple[int, int, bytes]] = []
        self.deleted: dict[int, tuple[bytearray, bytearray]] = {}
        self.calls_left = -1
        self.fail_rate = 0.0

    def lose_power(self) -> None:
        """Undo some of what was not synced: whole writes, or the end of one; bring deleted
        extents back that the directory still names."""
        for number, offset, before in reversed(self.unsynced):
            fate = self.random.random()
            keep = len(before) if fate < 0.4 else 0 if fate < 0.7 else len(before) // 2
            if number in self.data:
                self.data[number][offset + keep : offset + len(before)] = before[keep:]
        self.unsynced.clear()
        for number, (data, index) in self.deleted.items():
            if self.random.random() < 0.5:
                self.data[number] = data
                if self.random.random() < 0.7:
                    self.index[number] = index
        self.deleted.clear()
        self.calls_left = -1

    def step(self) -> bool:
        """Count a call; True if the power goes in the middle of it."""
        if self.calls_left > 0:
            self.calls_left -= 1
        return self.calls_left == 0

    def maybe_fail(self, what: str) -> None:
        """Fail now and then."""
        if self.random.random() < self.fail_rate:
            raise VolumeError(what, self.random.choice(["io", "full"]))


class DiskVolume:
    """The Volume of a Disk."""

    def __init__(self, disk: Disk, *, immutable: bool = False) -> None:
        self.disk = disk
        self.immutable = immutable

    def describe(self) -> str:
        return "memory"

    def numbers(self) -> list[int]:
        disk = self.disk
        for number in set(disk.data) ^ set(disk.index):
            disk.data.pop(number, None)
            disk.index.pop(number, None)
        return sorted(disk.data)

    def make(self, number: int, size: int) -> None:
        disk = self.disk
        assert number not in disk.data
        if disk.step():
            raise PowerLossError
        disk.maybe_fail("make")
        if sum(map(len, disk.data.values())) + size > disk.total_bytes:
            raise VolumeError("no space", "full")
        disk.data[number] = bytearray(size)
        disk.index[number] = bytearray()
        disk.deleted.clear()  # the directory is synced

    def write(self, number: int, offset: int, buffers: Sequence[Buffer]) -> None:
        disk = self.disk
        raw = b"".join(buffers)
        assert offset % BLOCK_BYTES == len(raw) % BLOCK_BYTES == 0
        assert offset + len(raw) <= len(disk.data[number])
        torn = disk.step()
        disk.maybe_fail("write")
        disk.unsynced.append((number, offset, bytes(disk.data[number][offset : offset + len(raw)])))
        raw = raw[: len(raw) // 2] if torn else raw
        disk.data[number][offset : offset + len(raw)] = raw
        if torn:
            raise PowerLossError

    def sync(self, number: int) -> None:
        disk = self.disk
        if disk.step():
            raise PowerLossError
        disk.maybe_fail("sync")
        disk.unsynced = [each for each in disk.unsynced if each[0] != number]

    def read(self, number: int, offset: int, buffers: Sequence[Buffer]) -> None:
        disk = self.disk
        data = disk.data.get(number)
        if data is None:
            raise VolumeError("gone", "gone")
        disk.maybe_fail("read")
        for buffer in buffers:
            part = data[offset : offset + len(buffer)]
            if len(part) < len(buffer):
                raise VolumeError("short", "truncated")
            buffer[:] = part
            offset += len(buffer)

    def log(self, number: int) -> bytes:
        return bytes(self.disk.index[number])

    def cut_log(self, number: int, size: int) -> None:
        del self.disk.index[number][size:]

    def append(self, number: int, records: bytes) -> None:
        disk = self.disk
        if disk.step():
            disk.index[number] += records[: disk.random.randrange(len(records) + 1)]
            raise PowerLossError
        disk.maybe_fail("append")
        disk.index[number] += records

    def delete(self, number: int) -> None:
        disk = self.disk
        data, index = disk.data.pop(number, None), disk.index.pop(number, None)
        if data is not None and index is not None:
            disk.deleted[number] = data, index
        if disk.step():
            raise PowerLossError

    def close(self) -> None:
        pass


class Memory:
    """Whole blocks for objects."""

    def __init__(self, nbytes: int) -> None:
        self.mapping = mmap.mmap(-1, nbytes)
        self.bytes = np.frombuffer(self.mapping, np.uint8)
        self.address = int(self.bytes.ctypes.data)


def value_of(name: int, version: int, size: int) -> bytes:
    """Return the bytes of an object."""
    return np.random.default_rng((name, version)).bytes(size)


def item_of(memory: Memory, at: int, name: int, version: int, size: int, generation: int) -> Item:
    """Write an object into memory and describe it."""
    value = value_of(name, version, size)
    memory.bytes[at : at + size] = np.frombuffer(value, np.uint8)
    key = pack(f"object-{name}".encode())
    checksum = xxhash.xxh3_64_intdigest(value)
    return Item(key, b"", size, checksum, generation, memory.address + at)
