"""What nodes are told about their disks, and to copy, gathered while one request is handled."""

from __future__ import annotations

from moonpool.core.disks import Disk, OnDisk
from moonpool.core.messages import (
    BATCH_ITEMS_MAX,
    Copy,
    CopyItem,
    DropShelved,
    Offload,
    Promote,
    Promotion,
    Push,
    Slot,
    TouchShelved,
)


class Errands:
    """Messages to nodes, by peer, that are sent together."""

    def __init__(self) -> None:
        self.waiting = False
        self._offloads: dict[tuple[str, int], tuple[list[int], list[int]]] = {}
        self._promotions: dict[str, list[Promotion]] = {}
        self._drops: dict[str, tuple[list[bytes], list[int]]] = {}
        self._touches: dict[str, list[bytes]] = {}
        self._copies: dict[str, list[CopyItem]] = {}

    def offload(self, disk: Disk, slot: Slot, generation: int) -> None:
        """Have a node write what a slot holds to its disk."""
        self.waiting = True
        indexes, generations = self._offloads.setdefault((disk.peer, slot.segment), ([], []))
        indexes.append(slot.index)
        generations.append(generation)

    def promote(self, disk: Disk, promotion: Promotion) -> None:
        """Have a node read an object from its disk."""
        self.waiting = True
        self._promotions.setdefault(disk.peer, []).append(promotion)

    def drop(self, disk: Disk, dropped: OnDisk) -> None:
        """Have a node take an object off its disk."""
        self.waiting = True
        keys, generations = self._drops.setdefault(disk.peer, ([], []))
        keys.append(dropped.key)
        generations.append(dropped.generation)

    def touch(self, disk: Disk, key: bytes) -> None:
        """Tell a node that an object on its disk was in use in memory."""
        self.waiting = True
        self._touches.setdefault(disk.peer, []).append(key)

    def copy(self, peer: str, item: CopyItem) -> None:
        """Have a node fetch an object from another."""
        self.waiting = True
        self._copies.setdefault(peer, []).append(item)

    def take(self) -> list[tuple[str, Push]]:
        """Return what is to be sent, once: what goes off a disk before what is written anew."""
        sent: list[tuple[str, Push]] = []
        for peer, (keys, generations) in self._drops.items():
            for at in range(0, len(keys), BATCH_ITEMS_MAX):
                some = slice(at, at + BATCH_ITEMS_MAX)
                sent.append((peer, DropShelved(keys[some], generations[some])))
        sent += [
            (peer, Offload(handle, *slots)) for (peer, handle), slots in self._offloads.items()
        ]
        sent += [(peer, Promote(items)) for peer, items in self._promotions.items()]
        sent += [(peer, Copy(copies)) for peer, copies in self._copies.items()]
        for peer, keys in self._touches.items():
            for at in range(0, len(keys), BATCH_ITEMS_MAX):
                sent.append((peer, TouchShelved(keys[at : at + BATCH_ITEMS_MAX])))
        for each in (self._offloads, self._promotions, self._drops, self._touches):
            each.clear()
        self._copies.clear()
        self.waiting = False
        return sent
