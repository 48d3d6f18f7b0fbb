"""The engine of the second tier: objects in, objects out, room made, everything found again.

An object counts once its bytes and then its record are durable. Whatever is read is compared with
its checksum. Whatever fails is a miss with a reason: counted, logged once a kind, and the object
is dropped, so that nobody tries it again.
"""

from __future__ import annotations

import contextlib
import logging
import threading
from collections import Counter
from collections.abc import Callable, Iterable, Sequence
from concurrent.futures import ThreadPoolExecutor, wait
from functools import partial
from typing import TypeVar

from moonpool.ssd import records as r
from moonpool.ssd.catalog import Catalog, Extent
from moonpool.ssd.many import ManyReads
from moonpool.ssd.reading import CORRUPT, GONE, STORED, Call, Reading, Wanted
from moonpool.ssd.records import Record
from moonpool.ssd.spans import Item, Part, Span, spans_of
from moonpool.ssd.volume import Volume, VolumeError

_log = logging.getLogger(__name__)

STALE, TOO_LARGE = "stale", "too_large"
"""Reasons, beside those of reading and of VolumeError. ``stale``: its memory was used again."""
T = TypeVar("T")
R = TypeVar("R")

DEPTH = 8
"""Calls to the disk under way at once, for reads and for writes each."""
MAKE_TRIES = 3


class Shelf:
    """Objects on a volume. ``write``, ``drop`` and ``recover`` come from one thread at a time,
    ``read`` from any. ``on_lost(records, reason)`` is told, in any thread, what was there and is
    not any more.
    """

    def __init__(
        self,
        volume: Volume,
        node: str,
        capacity_bytes: int,
        extent_bytes: int,
        *,
        depth: int = DEPTH,
        on_lost: Callable[[list[Record], str], None] = lambda _records, _reason: None,
    ) -> None:
        self.volume = volume
        self.catalog = Catalog(capacity_bytes, extent_bytes)
        self.counts: Counter[str] = Counter()
        self.on_lost = on_lost
        self._node = node
        self._depth = depth
        self._lock = threading.RLock()
        self._writing = threading.Lock()
        self._told: set[str] = set()
        self._readers = ThreadPoolExecutor(depth, "moonpool-ssd-read")
        self._writers = ThreadPoolExecutor(depth, "moonpool-ssd-write")

    def close(self) -> None:
        """Wait for what is under way and give the volume up."""
        for pool in (self._readers, self._writers):
            pool.shutdown()
        with self._writing:
            self.volume.close()

    # --- what is there --------------------------------------------------------------------------

    def recover(self) -> list[Record]:
        """Take in what an earlier life left, without reading payloads; return the objects."""
        with self._writing, self._lock:
            for number in self.volume.numbers():
                try:
                    self._recover(number)
                except VolumeError as error:
                    self._count(error.reason, f"an extent is left out: {error}")
            while self.catalog.total_bytes > self.catalog.capacity_bytes:
                victim = self.catalog.victim()
                if victim is None:
                    break
                self.catalog.forget(victim)
                self.volume.delete(victim.number)
            return self.catalog.records()

    def _recover(self, number: int) -> None:
        raw = self.volume.log(number)
        found = r.read_log(raw, self._node, number)
        if found is None:
            self._count(CORRUPT, f"index {number} is none of this node's; the extent is deleted")
            self.volume.delete(number)
            return
        if found.whole_bytes < len(raw):
            self.counts["torn"] += 1
            self.volume.cut_log(number, found.whole_bytes)
        self.catalog.adopt(number, found.extent_bytes, found.objects.values())

    def of_generations(self, generations: Iterable[int]) -> list[Record | None]:
        """Return the objects that were written from slots of these generations."""
        with self._lock:
            return [self.catalog.of_generation(each) for each in generations]

    def records(self) -> list[Record]:
        """Return all objects."""
        with self._lock:
            return self.catalog.records()

    def used(self) -> tuple[int, int]:
        """Return (objects, their bytes)."""
        with self._lock:
            return len(self.catalog), self.catalog.live_bytes

    def touch(self, keys: Iterable[bytes]) -> None:
        """Take note that objects were used."""
        with self._lock:
            for key in keys:
                self.catalog.touch(key)

    # --- writing --------------------------------------------------------------------------------

    def write(
        self, items: Sequence[Item], still: Callable[[Item], bool] = lambda _item: True
    ) -> list[str]:
        """Store objects; return for each the empty string, or why not. ``still`` is asked after
        the bytes are written whether the object's memory was its own all the time."""
        reasons = [TOO_LARGE] * len(items)
        at = 0
        with self._writing:
            while at < len(items):
                if not self.catalog.fits(items[at].size):
                    self.counts[TOO_LARGE] += 1
                    at += 1
                    continue
                try:
                    extent = self._with_room(items[at].size)
                    run = self._take_run(items, at)
                    reasons[at : at + len(run)] = self._write_run(extent, run, still)
                    at += len(run)
                except VolumeError as error:
                    self._count(error.reason, f"objects are not stored: {error}")
                    self._seal()
                    reasons[at:] = [error.reason] * (len(items) - at)
                    break
        return self._without_lost(items, reasons)

    def _without_lost(self, items: Sequence[Item], reasons: list[str]) -> list[str]:
        """Correct what was said of objects whose extent went again for those after them."""
        with self._lock:
            for i, item in enumerate(items):
                record = self.catalog.find(item.key) if reasons[i] == STORED else None
                if reasons[i] == STORED and (
                    record is None or record.generation != item.generation
                ):
                    reasons[i] = GONE
        return reasons

    def _with_room(self, size: int) -> Extent:
        """Return the open extent, a new one if it is too full."""
        with self._lock:
            extent = self.catalog.open
            if extent is not None and self.catalog.room >= r.padded(size):
                return extent
            self.catalog.seal()
            number, nbytes = self.catalog.take_number(), self.catalog.extent_bytes
        while self.catalog.is_full():
            if not self._reclaim():
                raise VolumeError("no extent can be reclaimed", "full")
        self._make(number, nbytes)
        try:
            self.volume.append(number, r.pack_head(self._node, number, nbytes))
        except VolumeError:
            with contextlib.suppress(VolumeError):
                self.volume.delete(number)
            raise
        with self._lock:
            return self.catalog.open_extent(number)

    def _make(self, number: int, nbytes: int) -> None:
        """Make an extent; where others have filled the disk, give some of ours up for it."""
        for _ in range(MAKE_TRIES):
            try:
                self.volume.make(number, nbytes)
            except VolumeError as error:
                if error.reason != "full" or not self._reclaim():
                    raise
                self.counts["full"] += 1
            else:
                return
        self.volume.make(number, nbytes)

    def _reclaim(self) -> bool:
        """Delete the extent that was used least recently; tell whether there was one."""
        with self._lock:
            victim = self.catalog.victim()
            lost = [] if victim is None else self.catalog.forget(victim)
        if victim is None:
            return False
        self.counts["reclaimed"] += len(lost)
        # Told before the file goes: who asks for such an object from now on is not sent here.
        self.on_lost(lost, "reclaimed")
        self.volume.delete(victim.number)
        return True

    def _take_run(self, items: Sequence[Item], first: int) -> list[tuple[Item, int]]:
        """Give places in the open extent to as many items as fit; return them with offsets."""
        run: list[tuple[Item, int]] = []
        with self._lock:
            for item in items[first:]:
                place = self.catalog.place(item.size)
                if place is None:
                    break
                run.append((item, place[1]))
        return run

    def _write_run(
        self, extent: Extent, run: list[tuple[Item, int]], still: Callable[[Item], bool]
    ) -> list[str]:
        parts = [Part(i, at, item.address, item.size) for i, (item, at) in enumerate(run)]

        def put(span: Span) -> None:
            self.volume.write(extent.number, span.offset, span.buffers)

        _each(self._writers, self._depth, put, spans_of(parts))
        good = [still(item) for item, _ in run]
        made = [
            _record(each, extent.number, at)
            for (each, at), whole in zip(run, good, strict=True)
            if whole
        ]
        if made:
            self.volume.sync(extent.number)
            self.volume.append(extent.number, b"".join(map(r.pack_object, made)))
            self._commit(made)
        if self.volume.immutable:
            self._seal()
        self.counts["written"] += len(made)
        self.counts["written_bytes"] += sum(each.size for each in made)
        self.counts[STALE] += len(run) - len(made)
        return [STORED if whole else STALE for whole in good]

    def _commit(self, made: list[Record]) -> None:
        with self._lock:
            before = [self.catalog.commit(each) for each in made]
        self._bury([each for each in before if each is not None])

    def _seal(self) -> None:
        with self._lock:
            self.catalog.seal(shrink=self.volume.immutable)

    # --- taking out -----------------------------------------------------------------------------

    def drop(self, objects: Iterable[tuple[bytes, int]]) -> None:
        """Take objects (key, generation) out, also for after a restart."""
        with self._writing:
            with self._lock:
                found = [self.catalog.drop(key, generation) for key, generation in objects]
            self._bury([each for each in found if each is not None])

    def _bury(self, dropped: list[Record]) -> None:
        """Write down that objects do not count any more."""
        by_extent: dict[int, list[bytes]] = {}
        for each in dropped:
            by_extent.setdefault(each.extent, []).append(r.pack_drop(each))
        for number, drops in by_extent.items():
            try:
                if number in self.catalog.extents:
                    self.volume.append(number, b"".join(drops))
            except VolumeError as error:
                self._count(error.reason, f"removals are not written down: {error}")

    # --- reading --------------------------------------------------------------------------------

    def read(self, wanted: Sequence[Wanted]) -> list[str]:
        """Read objects to where they are wanted; return for each the empty string, or why not."""
        reading = Reading(wanted)
        with self._lock:
            for i, each in enumerate(wanted):
                record = self.catalog.find(each.key)
                if record is not None and _is_wanted(record, each):
                    self.catalog.touch(each.key)
                    reading.add(i, record)
        for reason, text in self._read_calls(reading, reading.calls()):
            if reason not in (STORED, GONE):
                self._count(reason, text)
        self._settle(wanted, reading.reasons)
        return reading.reasons

    def _read_calls(self, reading: Reading, calls: Sequence[Call]) -> list[tuple[str, str]]:
        """Make the calls; return what there is to say of each, in any order."""
        many: ManyReads | None = getattr(self.volume, "many", None)
        if many is None:
            return _each(self._readers, self._depth, partial(self._get, reading), calls)

        said: list[tuple[str, str]] = []
        many.read_all(calls, lambda at, error: said.append(_came(reading, calls[at], error)))
        return said

    def _get(self, reading: Reading, call: Call) -> tuple[str, str]:
        try:
            self.volume.read(call.extent, call.span.offset, call.span.buffers)
        except VolumeError as error:
            return _came(reading, call, error)
        return _came(reading, call, None)

    def _settle(self, wanted: Sequence[Wanted], reasons: list[str]) -> None:
        """Count what was read; take out what is broken."""
        broken: dict[str, list[Record]] = {}
        with self._lock:
            for each, reason in zip(wanted, reasons, strict=True):
                if reason == STORED:
                    self.counts["read"] += 1
                    self.counts["read_bytes"] += each.size
                    continue
                self.counts["missed"] += 1
                record = self.catalog.drop(each.key, each.generation)
                if record is not None:
                    broken.setdefault(reason, []).append(record)
        for reason, records in broken.items():
            self.on_lost(records, reason)
            with self._writing:
                self._bury(records)

    def _count(self, reason: str, text: str) -> None:
        with self._lock:
            self.counts[f"error_{reason}"] += 1
            new = reason not in self._told
            self._told.add(reason)
        if new:
            _log.warning("ssd: %s (%s; said once, counted from now on)", text, reason)


def _came(reading: Reading, call: Call, error: VolumeError | None) -> tuple[str, str]:
    """Take note of what came of a call; return the reason for the counters, and a text."""
    if error is not None:
        reading.failed(call.span, error.reason)
        return error.reason, f"objects cannot be read: {error}"
    whole = reading.arrived(call.span)
    return STORED if whole else CORRUPT, "an object on the disk is not what was put"


def _record(item: Item, extent: int, offset: int) -> Record:
    return Record(item.key, item.parent, item.size, item.checksum, item.generation, extent, offset)


def _is_wanted(record: Record, wanted: Wanted) -> bool:
    return (record.generation, record.size, record.checksum) == (
        wanted.generation,
        wanted.size,
        wanted.checksum,
    )


def _each(
    pool: ThreadPoolExecutor, depth: int, call: Callable[[T], R], arguments: Sequence[T]
) -> list[R]:
    """Make the calls in ``depth`` threads, in turn; return or raise when none is under way."""

    def some(first: int) -> list[R]:
        return [call(each) for each in arguments[first::depth]]

    shares = [pool.submit(some, first) for first in range(min(depth, len(arguments)))]
    wait(shares)
    return [result for share in shares for result in share.result()]
