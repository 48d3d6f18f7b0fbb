"""Reading a segment back after its owner died: which slots hold whole objects."""

from __future__ import annotations

import errno
import os
import time
from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

import numpy as np

from moonpool.core.messages import Found
from moonpool.core.sizes import Plans
from moonpool.transport import copy, layout
from moonpool.transport.base import Places
from moonpool.transport.digests import Digests, Packer
from moonpool.transport.owners import Owners

if TYPE_CHECKING:
    from moonpool.transport.segment import Segment

_STEP_ENTRIES = 16_384
_STEP_BYTES = 64 << 20


@dataclass(frozen=True, slots=True)
class Scan:
    """What a segment holds: whole objects, and slots that were begun and not committed
    (``writing`` is set in them). ``torn`` counts entries that are neither, and those whose place a
    newer object has taken. Objects in ``digests`` are not in ``found``."""

    found: list[Found]
    writing: list[Found]
    generation_max: int
    torn: int
    digests: list[Digests] = field(default_factory=list)

    @property
    def count(self) -> int:
        """How many whole objects there are."""
        return len(self.found) + sum(map(len, self.digests))


def read(
    segment: Segment, table: Any, owners: Owners, *, verify: bool, reset: bool, pack: bool = False
) -> Scan:
    """Return what the table tells, holes left alone.

    An object is whole if it is committed, in bounds, and all its pages are its own. verify: also
    compare each payload with its checksum. reset: free the entries that are torn, and the pages
    whose owner no master has made. pack: return those that are named by digests as such.
    """
    packer = Packer()
    limit = np.uint64(layout.generation_limit(time.time()))
    found: list[Found] = []
    writing: list[Found] = []
    newest, torn = _newest_owner(segment, owners, limit, reset=reset), 0
    for first, last in _table_steps(segment):
        entries = table[first:last].copy()
        used = np.flatnonzero(entries["state"] != layout.FREE)
        if len(used) < len(entries):
            entries = entries[used]
        alive = _alive(segment, entries) & (entries["generation"] < limit)
        begun = alive & (entries["state"] == layout.WRITING)
        alive &= entries["state"] == layout.COMMITTED
        alive &= _named(segment, entries, alive)
        if verify:
            _verify(segment, entries, alive)
        whole, indexes = entries[alive], used[alive] + first
        if pack:
            rest = packer.take(whole, indexes)
            whole, indexes = whole[rest], indexes[rest]
        found += _found(segment, whole, indexes.tolist())
        writing += _found(segment, entries[begun], (used[begun] + first).tolist(), writing=True)
        broken = ~(alive | begun)
        torn += int(broken.sum())
        if reset:
            table["state"][first + used[broken]] = layout.FREE
    whole_scan = Scan(found, writing, newest, torn, packer.packed())
    return _without_overtaken(segment, whole_scan)


def _without_overtaken(segment: Segment, scan: Scan) -> Scan:
    """Leave out what lies where a newer object's span is.

    It was evicted, its bytes only happen to be whole still. A master that took it in first would
    have no place for the newer one.
    """
    ones = scan.found + scan.writing
    columns = [
        np.concatenate(
            [
                np.array([getattr(each, name) for each in ones], np.uint64),
                *(each.numbers[name] for each in scan.digests),
            ]
        )
        for name in ("offset", "capacity", "generation")
    ]
    offsets, capacities, generations = columns
    plans = Plans(segment.geometry.data_bytes)
    lost = plans.overtaken(offsets.view(np.int64), capacities.view(np.int64), generations)
    if not lost.any():
        return scan
    ends = np.cumsum([len(scan.found), len(scan.writing), *map(len, scan.digests)])
    among_found, among_writing, *among_digests = np.split(lost, ends[:-1])
    return Scan(
        [each for each, gone in zip(scan.found, among_found, strict=True) if not gone],
        [each for each, gone in zip(scan.writing, among_writing, strict=True) if not gone],
        scan.generation_max,
        scan.torn + int(lost.sum()),
        [each.but(gone) for each, gone in zip(scan.digests, among_digests, strict=True)],
    )


def pick(
    segment: Segment, table: Any, indexes: list[int], generations: list[int]
) -> list[Found | None]:
    """Return the whole objects of these entries and generations, None for what is none."""
    where = np.array([i if 0 <= i < len(table) else 0 for i in indexes], np.int64)
    entries = table[where].copy()
    wanted = np.array(generations, np.uint64)
    good = (where == np.array(indexes, np.int64)) & (entries["generation"] == wanted)
    good &= (entries["state"] == layout.COMMITTED) & _alive(segment, entries)
    good &= _named(segment, entries, good)
    found = _found(segment, entries[good], where[good].tolist())
    return [next(found) if whole else None for whole in good.tolist()]


def damaged(segment: Segment, table: Any) -> Iterator[tuple[list[int], list[int], list[int]]]:
    """Compare committed payloads with their checksums, some at a time; yield each time the table
    entries, offsets and generations of those that differ. What is being overwritten is left out."""
    for first, last in _table_steps(segment):
        entries = table[first:last].copy()
        used = np.flatnonzero(entries["state"] == layout.COMMITTED)
        entries = entries[used]
        alive = _alive(segment, entries)
        entries, used = entries[alive], used[alive] + first
        ends = np.cumsum(entries["size"])
        for part in np.split(np.arange(len(used)), _cuts(ends)):
            some = entries[part]
            wrong = np.ones(len(part), bool)
            _verify(segment, some, wrong)
            wrong = ~wrong & segment.intact(_places(some, some["capacity"]))
            wrong &= table["generation"][used[part]] == some["generation"]
            bad = some[wrong]
            yield used[part][wrong].tolist(), bad["offset"].tolist(), bad["generation"].tolist()


def _cuts(ends: Any) -> Any:
    """Return where to cut a run of objects whose bytes end there, so that each part is a step."""
    return np.flatnonzero(np.diff(ends // np.uint64(_STEP_BYTES))) + 1


def filled(fd: int, first: int, last: int) -> list[tuple[int, int]]:
    """Return the parts of a byte range of a file that are not holes."""
    result = []
    at = first
    while at < last:
        try:
            begin = os.lseek(fd, at, os.SEEK_DATA)
        except OSError as error:
            if error.errno == errno.ENXIO:
                break
            raise
        if begin >= last:
            break
        at = min(os.lseek(fd, begin, os.SEEK_HOLE), last)
        result.append((begin, at))
    return result


def _alive(segment: Segment, entries: Any) -> Any:
    """Tell which entries are not torn, in bounds, and own all their pages, shape (n,)."""
    alive = entries["check"] == layout.entry_checks(entries)
    key, size, room = entries["key_bytes"].astype(np.uint64), entries["size"], entries["capacity"]
    tail = np.where(key > layout.KEY_INLINE_BYTES, key, 0).astype(np.uint64)
    alive &= (key > 0) & (size <= room) & (tail <= room - np.minimum(size, room))
    alive &= entries["parent_bytes"] <= layout.PARENT_BYTES_MAX
    alive &= segment.intact(_places(entries, room))
    return alive


def _named(segment: Segment, entries: Any, alive: Any) -> Any:
    """Tell which entries have the key that they had, of those that are alive, shape (n,).

    A long key lies in the data area, where the entry's own checksum does not cover it.
    """
    named = np.ones(len(entries), bool)
    # Those of earlier versions have no checksum of their key.
    far = alive & (entries["key_bytes"] > layout.KEY_INLINE_BYTES) & (entries["key_check"] != 0)
    data = segment.data()
    for i in np.flatnonzero(far).tolist():
        entry = entries[i]
        at = int(entry["offset"]) + int(entry["size"])
        key = data[at : at + int(entry["key_bytes"])].tobytes()
        named[i] = layout.key_check(key) == int(entry["key_check"])
    return named


def _verify(segment: Segment, entries: Any, alive: Any) -> None:
    """Take out those whose payload is not what was put."""
    chosen = entries[alive]
    at = chosen["offset"] + np.uint64(segment.address)
    alive[alive] = copy.digest(copy.whole(at, chosen["size"])) == chosen["checksum"]


def _places(entries: Any, lengths: Any) -> Places:
    """Return the entries' places, as long as told."""
    none = np.zeros(len(entries), np.int64)
    return Places(
        none,
        entries["offset"],
        lengths,
        entries["capacity"],
        entries["generation"],
        entries["checksum"],
    )


def _found(
    segment: Segment, entries: Any, indexes: list[int], *, writing: bool = False
) -> Iterator[Found]:
    data = segment.data()
    for index, entry in zip(indexes, entries, strict=True):
        offset, size, length = (int(entry[f]) for f in ("offset", "size", "key_bytes"))
        key = bytes(entry["key"]).ljust(length, b"\0")
        if length > layout.KEY_INLINE_BYTES:
            key = data[offset + size : offset + size + length].tobytes()
        yield Found(
            key=key,
            parent=bytes(entry["parent"]).ljust(int(entry["parent_bytes"]), b"\0"),
            size=size,
            capacity=int(entry["capacity"]),
            checksum=int(entry["checksum"]),
            generation=int(entry["generation"]),
            index=index,
            offset=offset,
            writing=writing,
        )


def _newest_owner(segment: Segment, owners: Owners, limit: np.uint64, *, reset: bool) -> int:
    start, newest = segment.geometry.owners_offset, 0
    for a, b in segment.ranges(start, start + 8 * segment.geometry.pages):
        part = owners.pages[(a - start) // 8 : -(-(b - start) // 8)]
        real = part < limit
        newest = max(newest, int(part.max(initial=0, where=real)))
        if reset and not real.all():
            part[~real] = 0
    return newest


def _table_steps(segment: Segment) -> Iterator[tuple[int, int]]:
    """Yield ranges of table entries that are not holes, in steps."""
    start, size, done = segment.geometry.table_offset, layout.ENTRY_BYTES, 0
    for a, b in segment.ranges(start, start + size * segment.geometry.slots):
        first, last = max(done, (a - start) // size), -(-(b - start) // size)
        for at in range(first, last, _STEP_ENTRIES):
            yield at, min(at + _STEP_ENTRIES, last)
        done = max(done, last)
