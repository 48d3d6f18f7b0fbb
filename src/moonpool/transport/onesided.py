"""The way to a segment by one-sided reads: NIXL or Mooncake's engine moves the bytes.

Whoever owns the memory that bytes land in fetches them: this client reads the node's segment into
its own staging memory; what it stores the node reads from there. So nothing that was given up
can ever write into memory that has gone to somebody else.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial

import numpy as np

from moonpool.errors import (
    ChecksumError,
    InvalidArgumentError,
    MoonpoolError,
    NotFoundError,
    TransferError,
)
from moonpool.protocol import data
from moonpool.transport import copy, streams
from moonpool.transport.base import I64, U64, Copier, Pieces, Places, Written
from moonpool.transport.batch import chosen, fitting, picked, places_span, some, span
from moonpool.transport.layout import PAGE_BYTES
from moonpool.transport.onesided_gpu import GpuMemory, located
from moonpool.transport.onesided_peer import Link
from moonpool.transport.onesided_staging import ALIGN_BYTES, Staging, Window
from moonpool.transport.owners import pages_of
from moonpool.transport.tcp import TcpTransport

_log = logging.getLogger(__name__)

_FAILED = TransferError.code
_WRONG = ChecksumError.code
_GONE = NotFoundError.code
_BAD = InvalidArgumentError.code
BYTES_PER_S_MIN = 32 * 1024 * 1024
WORKERS = 2
"""Threads a batch is spread over: one checks and copies while the other's bytes are coming."""
_OWNER_BYTES = 8


class OneSidedTransport:
    """Reads and writes one segment of a node. Objects larger than a staging window go over TCP.

    When the node or the carrier goes away, ``lost`` is set and calls answer -800.
    """

    def __init__(
        self,
        link: Link,
        staging: Staging,
        segment: str,
        *,
        timeout_s: float = 5.0,
        copier: Copier = copy.HOST,
        gpu: Sequence[GpuMemory] = (),
        on_close: Callable[[OneSidedTransport], None] = lambda _closed: None,
    ) -> None:
        """Raises TransferError if the node has no such segment."""
        found = link.segments.get(segment)
        if found is None:
            raise TransferError(f"the node has no segment {segment!r} to read")
        self.link, self._staging, self._where = link, staging, found
        self._timeout_s, self._copier = timeout_s, copier
        self._gpu = gpu
        self._on_close = on_close
        self._closed = False
        self._tcp = TcpTransport(link.pool, segment, timeout_s=timeout_s, copier=copier)

    @property
    def lost(self) -> bool:
        """Whether there is no way any more."""
        return self.link.lost

    def read(self, places: Places, memory: Pieces) -> I64:
        """Copy objects into memory; a code for each: -704 gone, -801 wrong bytes, -800 broken."""
        codes = fitting(places, memory)
        codes[(codes == 0) & ~self._inside(places)] = _BAD

        def part(at: Places, pieces: Pieces, _which: I64) -> tuple[I64, U64]:
            return self._read(at, pieces), at.checksums

        self._run(places, memory, codes, part, lambda w: self._large_read(places, memory, w))
        return codes

    def write(
        self, places: Places, memory: Pieces, keys: list[bytes], parents: list[bytes]
    ) -> Written:
        """Write objects and commit their slots; the node fetches and checks them."""
        count = len(places)
        sums = np.zeros(count, np.uint64)
        if len(keys) != count or len(memory) != count or len(parents) not in (0, count):
            return Written(np.full(count, _BAD, np.int64), sums)
        codes = fitting(places, memory)

        def part(at: Places, pieces: Pieces, which: I64) -> tuple[I64, U64]:
            return self._write(at, pieces, picked(keys, which), picked(parents, which))

        def large(which: I64) -> tuple[I64, U64]:
            done = self._tcp.write(
                chosen(places, which),
                some(memory, which),
                picked(keys, which),
                picked(parents, which),
            )
            return done.codes, done.checksums

        sums[:] = self._run(places, memory, codes, part, large)
        return Written(codes, sums)

    def close(self) -> None:
        """Fail calls from now on; the link is its owner's."""
        if not self._closed:
            self._closed = True
            self._tcp.close()
            self._on_close(self)

    # --- cutting a batch ----------------------------------------------------------------------

    def _inside(self, places: Places) -> np.ndarray[tuple[int], np.dtype[np.bool_]]:
        end = np.uint64(self._where.data_bytes)
        aligned = places.offsets % np.uint64(PAGE_BYTES) == 0
        fits = places.sizes <= end - np.minimum(places.offsets, end)
        return np.asarray(aligned & fits & (places.offsets < end) & (places.generations != 0))

    def _large_read(self, places: Places, memory: Pieces, which: I64) -> tuple[I64, U64]:
        codes = self._tcp.read(chosen(places, which), some(memory, which))
        return codes, places.checksums[which]

    def _run(
        self,
        places: Places,
        memory: Pieces,
        codes: I64,
        part: Callable[[Places, Pieces, I64], tuple[I64, U64]],
        large: Callable[[I64], tuple[I64, U64]],
    ) -> U64:
        """Do all objects with code 0 in chunks that fit a window; set their codes and return the
        checksums, shape (n,)."""
        sums = np.zeros(len(places), np.uint64)
        good = codes == 0
        codes[good] = _FAILED
        if self._closed or self.link.lost:
            return sums
        room = _footprint(places)
        fits = room <= np.uint64(self._staging.window_bytes)
        over = np.flatnonzero(good & ~fits)
        if len(over):
            codes[over], sums[over] = large(over)
        which = np.flatnonzero(good & fits)
        taken, pieces = chosen(places, which), some(memory, which)
        cuts = _chunks(room[which], self._staging.window_bytes)

        def worker(first: int) -> None:
            for a, b in cuts[first::WORKERS]:
                at = which[a:b]
                try:
                    codes[at], sums[at] = part(places_span(taken, a, b), span(pieces, a, b), at)
                except MoonpoolError as error:
                    codes[at] = _FAILED
                    _log.debug("%s: %s", self.link.peer, error)

        streams.run_all([partial(worker, n) for n in range(min(WORKERS, len(cuts)))])
        return sums

    # --- one chunk ----------------------------------------------------------------------------

    def _read(self, places: Places, memory: Pieces) -> I64:
        window = self._staging.take(self._timeout_s)
        held = True
        try:
            plan = _Plan(places, window, self._where)
            direct = located(memory, self._gpu)
            if direct is not None:
                return self._read_direct(plan, memory, *direct)
            seconds = self._timeout_s + plan.nbytes / BYTES_PER_S_MIN
            pending = self.link.carrier.fetch(self.link.peer, 0, plan.rows, plan.phases, note=True)
            if not pending.wait(seconds):
                held = False
                if not self._staging.keep_until(pending, window):
                    _log.warning("no transfer ends; the carrier does")
                    self.link.carrier.kill()
            pending.result()
            return self._take(plan, memory)
        finally:
            if held:
                self._staging.give_back(window)

    def _read_direct(self, plan: _Plan, memory: Pieces, number: int, at: U64) -> I64:
        """Fetch into a GPU's memory; only the owners can be checked."""
        carrier = self.link.carrier
        before, after = plan.owners()
        straight = at, plan.sources(memory), memory.lengths
        seconds = self._timeout_s + plan.nbytes / BYTES_PER_S_MIN
        for region, rows in ((0, before), (1 + number, straight), (0, after)):
            pending = carrier.fetch(self.link.peer, region, rows, [len(rows[0])])
            if not pending.wait(seconds):
                carrier.kill()  # it may be the caller's memory that is written
            pending.result()
        return np.where(plan.intact(self._staging), 0, _GONE).astype(np.int64)

    def _take(self, plan: _Plan, memory: Pieces) -> I64:
        """Check what has arrived and copy what is right to its place."""
        places = plan.places
        codes = np.where(plan.intact(self._staging), 0, _GONE).astype(np.int64)
        sums = np.zeros(len(places), np.uint64)
        arrived = copy.whole(plan.addresses, places.sizes)
        step = streams.STEP_BYTES if self._copier is copy.HOST else self._staging.window_bytes
        for first, last in streams.steps(places.sizes, step):
            copy.digest_some(arrived, first, last, sums)
            right = sums[first:last] == places.checksums[first:last]
            part = codes[first:last]
            part[(part == 0) & ~right] = _WRONG
            good = first + np.flatnonzero(part == 0)
            if len(good):
                self._copier.scatter(plan.addresses[good], memory.take(good))
        return codes

    def _write(
        self, places: Places, memory: Pieces, keys: list[bytes], parents: list[bytes]
    ) -> tuple[I64, U64]:
        direct = located(memory, self._gpu)
        if direct is not None:
            counts = np.diff(memory.starts).tobytes()
            pieces = direct[1].tobytes(), memory.lengths.tobytes(), counts
            return self._ask(places, keys, parents, b"", _Sources(1 + direct[0], *pieces))
        window = self._staging.take(self._timeout_s)
        try:
            offsets = _laid_out(places.sizes)
            sums = self._copier.gather(memory, offsets + np.uint64(window.address))
            at = (offsets + np.uint64(window.offset)).tobytes()
            codes, arrived = self._ask(places, keys, parents, sums.tobytes(), _Sources(0, at))
        finally:
            # The node may still read it; what it gets then does not have the checksums it was told.
            self._staging.give_back(window)
        return np.where((codes == 0) & (arrived != sums), _WRONG, codes).astype(np.int64), sums

    def _ask(
        self,
        places: Places,
        keys: list[bytes],
        parents: list[bytes],
        checksums: bytes,
        sources: _Sources,
    ) -> tuple[I64, U64]:
        """Let the node fetch objects; return its codes and the checksums of what arrived."""
        request = data.PullBatch(
            self.link.carrier.kind,
            self._where.name,
            places.indexes.tobytes(),
            places.offsets.tobytes(),
            places.sizes.tobytes(),
            places.capacities.tobytes(),
            places.generations.tobytes(),
            keys,
            parents,
            checksums,
            sources.at,
            sources.memory,
            sources.lengths,
            sources.counts,
        )
        with self.link.pool.connection() as wire:
            wire.within(self._timeout_s + int(places.sizes.sum()) / BYTES_PER_S_MIN)
            wire.send(request)
            done = data.decode_reply(wire.receive(), data.WriteDone)
        codes = data.numbers(done.codes, len(places))
        sums = data.words(done.checksums, len(places))
        return np.where(codes > 0, _FAILED, codes).astype(np.int64), sums


@dataclass(frozen=True)
class _Sources:
    """Where the node fetches from: the number of a memory, offsets there, and the pieces' lengths
    and counts unless each object is one piece."""

    memory: int
    at: bytes
    lengths: bytes = b""
    counts: bytes = b""


class _Plan:
    """What is fetched for a chunk: the owners of its pages, its bytes, and the owners again."""

    def __init__(self, places: Places, window: Window, where: data.OneSidedSegment) -> None:
        first, self._count = pages_of(places.offsets, places.sizes)
        self.places = places
        offsets = _laid_out(places.sizes)
        self.addresses = offsets + np.uint64(window.address)
        word = np.uint64(_OWNER_BYTES)
        self._words = int(self._count.sum())
        lengths = self._count.astype(np.uint64) * word
        tables = np.zeros(len(places), np.uint64)
        np.cumsum(lengths[:-1], out=tables[1:])
        start = np.uint64(_end(offsets, places.sizes))
        again = start + np.uint64(self._words * _OWNER_BYTES)
        self._tables = [window.address + int(start), window.address + int(again)]
        owners = np.uint64(where.owners) + first.astype(np.uint64) * word
        bytes_at = np.uint64(where.data) + places.offsets
        inside = np.uint64(window.offset)
        self.rows = (
            np.concatenate([start + tables, offsets, again + tables]) + inside,
            np.concatenate([owners, bytes_at, owners]),
            np.concatenate([lengths, places.sizes, lengths]),
        )
        self.phases = [len(places)] * 3
        self.nbytes = int(self.rows[2].sum())

    def owners(self) -> tuple[tuple[U64, U64, U64], tuple[U64, U64, U64]]:
        """Return the rows that fetch the owners before and after."""
        n = len(self.places)
        targets, sources, lengths = self.rows
        return (targets[:n], sources[:n], lengths[:n]), (
            targets[2 * n :],
            sources[2 * n :],
            lengths[2 * n :],
        )

    def sources(self, memory: Pieces) -> U64:
        """Return the node's address of each piece, shape (p,)."""
        n, counts = len(self.places), np.diff(memory.starts)
        inner = np.zeros(len(memory.lengths), np.uint64)
        np.cumsum(memory.lengths[:-1], out=inner[1:])
        begun = np.zeros(n, np.uint64)
        np.cumsum(memory.sizes()[:-1], out=begun[1:])
        return np.asarray(np.repeat(self.rows[1][n : 2 * n] - begun, counts) + inner)

    def intact(self, staging: Staging) -> np.ndarray[tuple[int], np.dtype[np.bool_]]:
        """Tell whose pages carried its generation before and after, shape (n,)."""
        wanted = np.repeat(self.places.generations, self._count)
        same = np.ones(self._words, bool)
        for address in self._tables:
            same &= staging.view(address, self._words * _OWNER_BYTES).view(np.uint64) == wanted
        starts = np.zeros(len(self._count), np.int64)
        np.cumsum(self._count[:-1], out=starts[1:])
        return np.logical_and.reduceat(same, starts) if len(starts) else same


def _padded(sizes: U64) -> U64:
    step = np.uint64(ALIGN_BYTES)
    return np.asarray((sizes + step - np.uint64(1)) // step * step)


def _laid_out(sizes: U64) -> U64:
    """Return where in a window each object goes."""
    offsets = np.zeros(len(sizes), np.uint64)
    np.cumsum(_padded(sizes)[:-1], out=offsets[1:])
    return offsets


def _end(offsets: U64, sizes: U64) -> int:
    return int(offsets[-1] + _padded(sizes)[-1]) if len(offsets) else 0


def _footprint(places: Places) -> U64:
    """Return the bytes of a window that each object needs, with its owners twice."""
    page = np.uint64(PAGE_BYTES)
    sizes = np.minimum(places.sizes, np.uint64(1 << 62))
    pages = np.maximum((sizes + page - np.uint64(1)) // page, np.uint64(1))
    return np.asarray(_padded(sizes) + pages * np.uint64(2 * _OWNER_BYTES))


def _chunks(room: U64, window_bytes: int) -> list[tuple[int, int]]:
    """Cut a batch into ranges that fit a window and a message; small batches into halves."""
    ends = np.cumsum(room)
    total = int(ends[-1]) if len(ends) else 0
    limit = window_bytes
    if total > WORKERS * streams.CHUNK_BYTES_MIN:
        limit = min(window_bytes, max(int(room.max()), -(-total // WORKERS)))
    cuts, first = [], 0
    while first < len(ends):
        before = int(ends[first - 1]) if first else 0
        last = int(np.searchsorted(ends, np.uint64(before + limit), "right"))
        last = min(max(last, first + 1), first + streams.ITEMS_MAX)
        cuts.append((first, last))
        first = last
    return cuts
