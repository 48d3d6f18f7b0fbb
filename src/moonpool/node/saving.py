"""At a clean end: what is in memory only goes to the disk, so that the next life has it."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator, Sequence
from typing import NamedTuple

import numpy as np

from moonpool.core.messages import Found
from moonpool.ssd.reading import STORED
from moonpool.ssd.shelf import Shelf
from moonpool.ssd.spans import Item
from moonpool.transport.base import Places
from moonpool.transport.segment import Segment

BATCH_BYTES = 32 * 1024 * 1024


class Saved(NamedTuple):
    """How many objects were written, their bytes, and how many there was no time or room for."""

    objects: int
    nbytes: int
    left: int


def save(
    shelf: Shelf,
    segments: Sequence[Segment],
    within_s: float,
    clock: Callable[[], float] = time.monotonic,
) -> Saved:
    """Write the objects of segments that a shelf does not have, the newest first, for ``within_s``
    at most. Nothing else writes to the shelf."""
    until = clock() + within_s
    found = [(each, segment) for segment in segments for each in segment.scan().found]
    missing = [pair for pair in found if _is_missing(shelf, pair[0])]
    missing.sort(key=lambda pair: pair[0].generation, reverse=True)
    # What is written last must not push out what was written first.
    room = shelf.catalog.capacity_bytes - 2 * shelf.catalog.extent_bytes
    objects = nbytes = 0
    for batch in _batches(missing):
        size = sum(each.size for each, _ in batch)
        if clock() >= until or nbytes + size > room:
            break
        # Parents first: they are announced in the order of their generations, read in that of age.
        batch.reverse()
        reasons = shelf.write(*_items(batch))
        stored = [pair for pair, why in zip(batch, reasons, strict=True) if why == STORED]
        objects += len(stored)
        nbytes += sum(each.size for each, _ in stored)
    return Saved(objects, nbytes, len(missing) - objects)


def _is_missing(shelf: Shelf, found: Found) -> bool:
    known = shelf.catalog.find(found.key)
    return known is None or (known.size, known.checksum) != (found.size, found.checksum)


def _batches(
    missing: Sequence[tuple[Found, Segment]],
) -> Iterator[list[tuple[Found, Segment]]]:
    batch: list[tuple[Found, Segment]] = []
    total = 0
    for pair in missing:
        if batch and total + pair[0].size > BATCH_BYTES:
            yield batch
            batch, total = [], 0
        batch.append(pair)
        total += pair[0].size
    if batch:
        yield batch


def _items(batch: list[tuple[Found, Segment]]) -> tuple[list[Item], Callable[[Item], bool]]:
    """Return what to write, and what tells whether it was its own all the time."""
    places = {each.generation: (each, segment) for each, segment in batch}

    def still(item: Item) -> bool:
        each, segment = places[item.generation]
        return bool(segment.intact(_place(each))[0])

    items = [
        Item(e.key, e.parent, e.size, e.checksum, e.generation, segment.address + e.offset)
        for e, segment in batch
    ]
    return items, still


def _place(found: Found) -> Places:
    none = np.zeros(1, np.uint64)
    return Places(
        none.view(np.int64),
        np.array([found.offset], np.uint64),
        np.array([found.size], np.uint64),
        none,
        np.array([found.generation], np.uint64),
        none,
    )
