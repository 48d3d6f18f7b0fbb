"""Random lives of a shelf on a disk that loses power at any call, fills up, fails and rots."""

from __future__ import annotations

import contextlib
import random

import pytest

from moonpool.ssd.reading import STORED, Wanted
from moonpool.ssd.records import BLOCK_BYTES, Record
from moonpool.ssd.shelf import Shelf
from moonpool.ssd.spans import Item
from tests.unit.ssd.disk import Disk, DiskVolume, Memory, PowerLossError, item_of

SLOT_BYTES = 8 * BLOCK_BYTES
SLOTS = 8
EXTENT_BYTES = 24 * BLOCK_BYTES


class Life:
    """A shelf over several lives of its machine, beside what must and what may be there."""

    def __init__(self, seed: int, *, immutable: bool = False) -> None:
        self.random = random.Random(seed)
        self.disk = Disk(seed, 9 * EXTENT_BYTES)
        self.immutable = immutable
        self.memory = Memory(SLOTS * SLOT_BYTES)
        self.room = Memory(SLOTS * SLOT_BYTES)
        self.generation = 0
        # By (key, generation): everything ever offered; what was stored and never lost since.
        self.offered: dict[tuple[bytes, int], Item] = {}
        self.values: dict[tuple[bytes, int], bytes] = {}
        self.stored: set[tuple[bytes, int]] = set()
        self.dropped: set[tuple[bytes, int]] = set()
        self.start()

    def start(self) -> None:
        volume = DiskVolume(self.disk, immutable=self.immutable)
        # Extents whose deletion was undone may be too many; then some go again.
        fit = len(volume.numbers()) * EXTENT_BYTES <= 6 * EXTENT_BYTES
        self.shelf = Shelf(
            volume, "node", 6 * EXTENT_BYTES, EXTENT_BYTES, depth=1, on_lost=self.lost
        )
        found = {(each.key, each.generation) for each in self.shelf.recover()}
        assert not fit or self.stored <= found, "a stored object is gone"
        assert found <= set(self.offered), "an object that nobody stored"
        assert not found & self.dropped, "an object that was dropped is back"
        # What was written but not reported may be there; what was lost may be back, whole.
        self.stored = found
        self.shelf.catalog.validate()

    def lost(self, records: list[Record], _reason: str) -> None:
        self.stored -= {(each.key, each.generation) for each in records}

    def write(self) -> None:
        items: list[Item] = []
        for at in range(self.random.randrange(1, SLOTS)):
            self.generation += 1
            name, size = self.random.randrange(40), self.random.randrange(1, SLOT_BYTES)
            item = item_of(
                self.memory, at * SLOT_BYTES, name, self.generation, size, self.generation
            )
            items.append(item)
            self.offered[item.key, item.generation] = item
            start = at * SLOT_BYTES
            self.values[item.key, item.generation] = bytes(self.memory.bytes[start : start + size])
        # An object that was written may replace the one before, even if that is never said.
        keys = {each.key for each in items}
        before = {each for each in self.stored if each[0] in keys}
        self.stored -= before
        reasons = self.shelf.write(items, lambda item: item.generation % 11 != 0)
        for item, reason in zip(items, reasons, strict=True):
            if reason == STORED:
                self.stored = {each for each in self.stored if each[0] != item.key}
                self.stored.add((item.key, item.generation))
        # Where the new one failed, the old one is still there.
        for key, generation in before:
            record = self.shelf.catalog.find(key)
            if record is not None and record.generation == generation:
                self.stored.add((key, generation))

    def drop(self) -> None:
        known = sorted(self.stored)
        if known:
            key, generation = self.random.choice(known)
            self.stored.discard((key, generation))
            errors = dict(self.shelf.counts)
            self.shelf.drop([(key, generation)])
            if errors == dict(self.shelf.counts):
                self.dropped.add((key, generation))

    def read(self) -> None:
        records = self.shelf.records()
        chosen = self.random.sample(records, min(len(records), SLOTS))
        wanted = [
            Wanted(r.key, r.generation, r.size, r.checksum, self.room.address + i * SLOT_BYTES)
            for i, r in enumerate(chosen)
        ]
        for i, (each, reason) in enumerate(zip(wanted, self.shelf.read(wanted), strict=True)):
            if reason == STORED:
                start = i * SLOT_BYTES
                got = bytes(self.room.bytes[start : start + each.size])
                assert got == self.values[each.key, each.generation]

    def rot(self) -> None:
        if self.disk.data:
            data = self.disk.data[self.random.choice(sorted(self.disk.data))]
            data[self.random.randrange(len(data))] ^= 0xFF

    def crash(self) -> None:
        self.disk.lose_power()
        self.shelf.close()
        self.start()

    def live(self, steps: int) -> None:
        for _ in range(steps):
            what = self.random.choices(
                [self.write, self.read, self.drop, self.crash], [6, 3, 2, 1]
            )[0]
            if what in (self.write, self.drop) and self.random.random() < 0.3:
                self.disk.calls_left = self.random.randrange(1, 8)
            try:
                what()
                self.disk.calls_left = -1
            except PowerLossError:
                self.crash()
            self.shelf.catalog.validate()


@pytest.mark.parametrize("immutable", [False, True])
@pytest.mark.parametrize("seed", range(60))
def test_what_was_stored_survives_a_loss_of_power_and_nothing_else_does(
    seed: int, immutable: bool
) -> None:
    life = Life(seed, immutable=immutable)
    life.live(40)
    life.shelf.close()


@pytest.mark.parametrize("seed", range(60))
def test_a_disk_that_fails_and_rots_gives_misses_and_never_wrong_bytes(seed: int) -> None:
    life = Life(seed)
    life.disk.fail_rate = 0.1
    for _ in range(40):
        life.random.choice([life.write, life.write, life.read, life.rot])()
        life.shelf.catalog.validate()
    with contextlib.suppress(PowerLossError):
        life.shelf.close()
    assert sum(life.shelf.counts.values())
