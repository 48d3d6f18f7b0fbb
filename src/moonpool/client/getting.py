"""The way of a get: locate under a lease, read each object from a replica that works, release."""

from __future__ import annotations

import itertools
import random
import time
from collections.abc import Callable, Sequence
from functools import partial

import numpy as np

from moonpool.client.answers import CODE_MIN, as_many, expect, words
from moonpool.client.channel import Channel
from moonpool.client.choosing import Choice
from moonpool.client.coming import is_any_coming, wait_for
from moonpool.client.grouping import Row, by_segment, chunks, one_place, pieces_of
from moonpool.client.memory import codes_of, one_object, trimmed
from moonpool.client.reach import Reach, is_near
from moonpool.client.turns import in_turn
from moonpool.core.messages import Get, Got, Located, Release
from moonpool.errors import (
    BufferTooSmallError,
    DeadlineError,
    LeaseExpiredError,
    MasterUnreachableError,
    NotFoundError,
    NotReadyError,
    TransferError,
)
from moonpool.transport.base import I64, U64, Pieces, Places, Transport
from moonpool.transport.batch import span
from moonpool.transport.small import BUFFER_BYTES_MAX, Place

CHUNK_OBJECTS = 1024
CHUNK_BYTES = 128 * 1024 * 1024
"""Objects and bytes that are read under one lease."""
WORKERS = 3
"""Chunks of a batch that are under way at once: while one asks the master, others copy."""

_GONE = NotFoundError.code
_FAILED = TransferError.code
_NOT_READY = NotReadyError.code
_LATE = LeaseExpiredError.code
SLOW_S = 0.25
"""A read of one object that broke only after this met a node that does not answer."""


class Getter:
    """Reads batches. May be used from several threads."""

    chunk_bytes = CHUNK_BYTES

    def __init__(self, channel: Channel, reach: Reach, lease_s: float) -> None:
        self._channel = channel
        self._reach = reach
        self.lease_s = lease_s
        self._leases = itertools.count(1)
        self._choice = Choice(random.getrandbits(16))

    def new_lease(self) -> int:
        """Return a number that this client has not used for a lease yet."""
        return next(self._leases)

    def read(
        self,
        keys: list[bytes],
        memory: Pieces,
        lease: int | None,
        timeout_s: float | None,
        *,
        exact: bool,
        sizes: U64 | None = None,
    ) -> I64:
        """Read objects into memory that is at least as large, or ``exact``ly as large; return a
        code for each, shape (n,). ``sizes`` gets the size of each that is there.

        A master that is lost on the way is a code; MasterUnreachableError if it is away at once.
        """
        deadline = None if timeout_s is None else time.monotonic() + timeout_s
        codes = codes_of(len(keys), MasterUnreachableError.code)

        def read(first: int, last: int) -> None:
            left = _left(deadline)
            if left is not None and left <= 0:
                raise DeadlineError(f"{len(keys) - first} objects were not begun in time")
            said = None if sizes is None else sizes[first:last]
            fitted = partial(_fitted, span(memory, first, last), exact, said)
            codes[first:last] = self.read_chunk(keys[first:last], fitted, lease, left)

        ranges = list(chunks(memory.sizes().tolist(), CHUNK_OBJECTS, self.chunk_bytes))
        try:
            in_turn(read, ranges, WORKERS)
        except MasterUnreachableError as error:
            if (codes == MasterUnreachableError.code).all():
                raise
            codes[codes == MasterUnreachableError.code] = error.code
        return codes

    def read_chunk(
        self,
        keys: list[bytes],
        memory_for: Callable[[U64, I64], Pieces],
        lease: int | None = None,
        timeout_s: float | None = None,
    ) -> I64:
        """Locate and read objects; return a code for each, shape (n,).

        ``memory_for(sizes, codes)`` returns the memory for all n objects, exactly as large as
        they are; it may set codes of objects that it has no room for. With a ``lease`` the
        objects come under it and stay leased, else their lease ends with the call. Raises
        MasterUnreachableError.
        """
        number = self.new_lease() if lease is None else lease
        until = time.monotonic() + self.lease_s
        answer, epoch = self._channel.ask(Get(keys, number, self.lease_s), timeout_s)
        found = as_many(expect(Got, answer).objects, len(keys))
        codes = np.array([_code(where) for where in found], np.int64)
        if is_any_coming(codes, found):
            request = Get(keys, number, self.lease_s)
            found, epoch, until = wait_for(
                self._channel, request, found, epoch, timeout_s, direct=self._reads_disk
            )
            codes = np.array([_code(where) for where in found], np.int64)
        on_disk = [i for i, where in enumerate(found) if where.disk and codes[i]]
        codes[on_disk] = 0
        try:
            sizes = words([where.size for where in found])
            most = np.uint64(self._reach.size_max(int(sizes.max(initial=0))))
            codes[(codes == 0) & (sizes > most)] = _GONE
            sizes = np.minimum(sizes, most)
            memory = memory_for(sizes, codes)
            on_disk = [i for i in on_disk if codes[i] == 0]
            codes[on_disk] = _NOT_READY
            self._read(epoch, found, memory, codes, until)
            if on_disk:
                self._read_disks(found, on_disk, memory, codes)
        finally:
            if lease is None and any(where.generation for where in found):
                self._channel.send_only(Release([number]))
        return codes

    def _read(
        self, epoch: int, found: Sequence[Located], memory: Pieces, codes: I64, until: float
    ) -> None:
        """Read from one replica after the other until an object is right or none is left.

        Only what was read before ``until`` counts: a node that does not answer takes nothing away
        from what others gave.
        """
        with self._choice.reading(found, partial(self._reach.is_near, epoch)) as ordered:
            self._read_in_order(epoch, ordered, memory, codes, until)

    def _reads_disk(self, address: str) -> bool:
        return self._reach.disk(address) is not None

    def _read_disks(
        self, found: Sequence[Located], which: Sequence[int], memory: Pieces, codes: I64
    ) -> None:
        """Read objects straight from disks; their checksums tell whether they are right."""
        for address in {found[i].disk: None for i in which}:
            rows = [_disk_row(i, found[i]) for i in which if found[i].disk == address]
            transport = self._reach.disk(address)
            if transport is None:
                continue
            for _, objects, places in by_segment(rows):
                codes[objects] = transport.read(places, pieces_of(memory, objects))

    def _read_in_order(
        self, epoch: int, found: Sequence[Located], memory: Pieces, codes: I64, until: float
    ) -> None:
        wanted = np.flatnonzero(codes == 0)
        for attempt in range(max((len(where.slots) for where in found), default=0)):
            rows = [
                _row(i, found[i], attempt) for i in wanted.tolist() if attempt < len(found[i].slots)
            ]

            def read(transport: Transport | None, objects: I64, places: Places) -> None:
                if transport is None:
                    codes[objects] = _FAILED
                    return
                results = transport.read(places, pieces_of(memory, objects))
                if time.monotonic() > until:
                    results[results == 0] = _LATE
                codes[objects] = results

            self._reach.each(epoch, by_segment(rows), read)
            left = codes[wanted]
            wanted = wanted[(left != 0) & (left != _LATE)]
            if not wanted.size:
                return

    # --- one object: the same in fewer steps --------------------------------------------------

    def read_one(
        self, key: bytes, room_for: Callable[[int], memoryview | Pieces], kept: int | None = None
    ) -> int:
        """Read an object; return its code. ``room_for(size)`` returns memory for exactly that;
        what it raises is passed on. Raises MasterUnreachableError.

        The first try takes no lease: a copy of what was evicted meanwhile is noticed, and then
        the object is read again under one. With ``kept``, a lease's number, the object comes
        under that one and stays leased.
        """
        started = time.monotonic()
        first = (0, 0.0) if kept is None else (kept, self.lease_s)
        code, found = self._read_once(key, *first, room_for)
        slow = time.monotonic() - started > SLOW_S
        if code == 0 or not found or (code == _FAILED and slow):
            return code
        lease = self.new_lease()
        started = time.monotonic()
        try:
            code, _ = self._read_once(key, lease, self.lease_s, room_for)
        finally:
            self._channel.send_only(Release([lease]))
        if code == 0 and time.monotonic() - started > self.lease_s:
            return _LATE
        return code

    def _read_once(
        self,
        key: bytes,
        lease: int,
        lease_s: float,
        room_for: Callable[[int], memoryview | Pieces],
    ) -> tuple[int, bool]:
        """Read from the replicas in turn; return the code, and whether the object was found."""
        request = Get([key], lease, lease_s)
        answer, epoch = self._channel.ask(request)
        (where,) = as_many(expect(Got, answer).objects, 1)
        if where.retry_after_s > 0:
            (where,), epoch, _ = wait_for(
                self._channel, request, [where], epoch, None, direct=self._reads_disk
            )
        code = _code(where)
        if code and where.disk and 0 < where.size <= self._reach.size_max(where.size):
            codes = np.array([code], np.int64)
            self._read_disks([where], [0], one_object(room_for(where.size)), codes)
            return int(codes[0]), False
        if code:
            return code, False
        code = _GONE
        if not 0 < where.size <= self._reach.size_max(where.size):
            return code, False
        room = room_for(where.size)
        if len(where.slots) == 1:
            return self._read_replica(epoch, where, 0, room), True
        with self._choice.reading([where], partial(self._reach.is_near, epoch)) as (ordered,):
            for attempt in range(len(ordered.slots)):
                code = self._read_replica(epoch, ordered, attempt, room)
                if code == 0:
                    break
        return code, True

    def _read_replica(
        self, epoch: int, where: Located, attempt: int, room: memoryview | Pieces
    ) -> int:
        slot, size = where.slots[attempt], where.size
        transport = self._reach.transport(epoch, slot.segment)
        if transport is None:
            return _FAILED
        if is_near(transport) and isinstance(room, memoryview) and size <= BUFFER_BYTES_MAX:
            generation = slot.generation or where.generation
            place = Place(slot.index, slot.offset, size, size, generation)
            return transport.read_buffer(place, room)
        return int(transport.read(one_place(_row(0, where, attempt)), one_object(room))[0])


def _code(where: Located) -> int:
    if where.generation:
        return 0
    return max(where.code, CODE_MIN) if where.code < 0 else _GONE


def _left(deadline: float | None) -> float | None:
    return None if deadline is None else deadline - time.monotonic()


def _row(i: int, where: Located, attempt: int) -> Row:
    slot, size = where.slots[attempt], where.size
    at = slot.segment, slot.index, slot.offset
    return (i, *at, size, size, slot.generation or where.generation, where.checksum)


def _disk_row(i: int, where: Located) -> Row:
    """Return a row of the disk's segment, whose objects are known by their generations."""
    return (i, 0, 0, 0, where.size, where.size, where.disk_generation, where.checksum)


def _fitted(memory: Pieces, exact: bool, said: U64 | None, sizes: U64, codes: I64) -> Pieces:
    """Return the memory cut to the objects' sizes; sets the codes of those that do not fit."""
    if said is not None:
        said[:] = sizes
    room = memory.sizes()
    misfits = room != sizes if exact else room < sizes
    codes[(codes == 0) & misfits] = BufferTooSmallError.code
    return trimmed(memory, np.minimum(sizes, room))
