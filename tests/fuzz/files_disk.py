"""A node's disk as it was left behind: index files, and data files, damaged."""

from __future__ import annotations

import random
from typing import Any

from moonpool.ssd import records as r
from moonpool.ssd.reading import STORED, Wanted
from moonpool.ssd.records import Record
from moonpool.ssd.shelf import Shelf
from tests.fuzz import mutate
from tests.fuzz.target import REFUSED, TAKEN, Target, require
from tests.unit.ssd.disk import Disk, DiskVolume, Memory, item_of, value_of

NODE = "n1"
EXTENT_BYTES = 1 << 18
SIZES = [1, 4096, 5000, 100, 30_000, 12_287]


def good_log() -> list[bytes]:
    """Return the records of an index, each by itself."""
    some = [
        Record(b"\0key-%d" % i, b"\0up" * (i % 2), 100 * i + 1, i, i + 1, 3, 4096 * i)
        for i in range(6)
    ]
    drops = [r.pack_drop(each) for each in some[::3]]
    return [r.pack_head(NODE, 3, EXTENT_BYTES), *map(r.pack_object, some), *drops]


class IndexLog(Target):
    """Index files to their reader."""

    name = "disk's index files"
    share = 10.0
    episode = 1000

    def take(self, chance: random.Random) -> str:
        parts = good_log()
        way = chance.random()
        if way < 0.4:
            raw = mutate.bytes_of(chance, b"".join(parts))
        else:
            for _ in range(chance.randrange(1, 4)):
                at = chance.randrange(len(parts))
                if way < 0.6:
                    parts[at] = parts[chance.randrange(len(parts))]
                else:
                    parts[at] = _forged(chance, parts[at])
            raw = b"".join(parts)
        found = r.read_log(raw, NODE, 3)
        if found is None:
            return REFUSED
        require(0 < found.whole_bytes <= len(raw), "what is whole is in the file")
        for each in found.objects.values():
            end = each.offset + r.padded(each.size)
            require(each.size > 0 and end <= found.extent_bytes, "objects are in their extent")
        return TAKEN


def _forged(chance: random.Random, record: bytes) -> bytes:
    """Return a changed record whose check is right."""
    body = mutate.bytes_of(chance, record[:-8])
    return body + r.hash_bytes(body).to_bytes(8, "little")


class ShelfFiles(Target):
    """Extents with damaged data and indexes: found again, and read."""

    name = "disk's extents"
    share = 2.5
    episode = 50

    def __init__(self) -> None:
        self._memory, self._room = Memory(1 << 20), Memory(1 << 20)
        self._items: list[Any] = []
        at = 0
        for i, size in enumerate(SIZES * 3):
            self._items.append(item_of(self._memory, at, i, 1, size, i + 1))
            at += r.padded(size)
        self._disk = Disk(1)
        shelf = Shelf(DiskVolume(self._disk), NODE, 4 * EXTENT_BYTES, EXTENT_BYTES)
        require(shelf.write(self._items) == [STORED] * len(self._items), "objects are written")
        shelf.close()

    def take(self, chance: random.Random) -> str:
        disk = Disk(1)
        disk.data = {n: bytearray(raw) for n, raw in self._disk.data.items()}
        disk.index = {n: bytearray(raw) for n, raw in self._disk.index.items()}
        forged = self._damage(chance, disk)
        shelf = Shelf(DiskVolume(disk), NODE, 4 * EXTENT_BYTES, EXTENT_BYTES, depth=1)
        try:
            shelf.recover()
            shelf.catalog.validate()
            reasons = shelf.read(self._wanted())
            for i, reason in enumerate(reasons):
                if reason == STORED:
                    require(forged or self._is_right(i), f"wrong bytes of object {i}")
            shelf.catalog.validate()
        finally:
            shelf.close()
        return TAKEN if STORED in reasons else REFUSED

    def _damage(self, chance: random.Random, disk: Disk) -> bool:
        for _ in range(chance.randrange(1, 4)):
            files = chance.choice((disk.data, disk.index))
            number = chance.choice([*files])
            if chance.random() < 0.2:
                other = chance.choice([*files])
                files[number] = bytearray(files[other])
            elif files is disk.index:
                files[number] = bytearray(mutate.bytes_of(chance, bytes(files[number])))
            else:
                for _ in range(chance.randrange(1, 50)):
                    at = chance.randrange(len(files[number]))
                    files[number][at] ^= chance.randrange(1, 256)
                if chance.random() < 0.1:
                    del files[number][chance.randrange(len(files[number])) :]
        return False

    def _wanted(self) -> list[Wanted]:
        base = self._memory.address
        return [
            Wanted(e.key, e.generation, e.size, e.checksum, self._room.address + e.address - base)
            for e in self._items
        ]

    def _is_right(self, i: int) -> bool:
        item = self._items[i]
        at = item.address - self._memory.address
        return bool(self._room.bytes[at : at + item.size].tobytes() == value_of(i, 1, item.size))
