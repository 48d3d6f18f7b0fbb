"""The way of a put: ask for space, write all replicas, commit; and what to do when one fails."""

from __future__ import annotations

import random
import threading
import time
from collections.abc import Iterable, Sequence
from dataclasses import dataclass

import numpy as np

from moonpool.client.channel import Channel
from moonpool.client.grouping import CHUNK_BYTES, Row, by_segment, chunks, one_place, pieces_of
from moonpool.client.ledger import PutLedger
from moonpool.client.memory import codes_of, one_object
from moonpool.client.reach import Reach, is_near
from moonpool.client.turns import in_turn
from moonpool.client.wishes import Wishes
from moonpool.core.messages import Grant, PutItem, PutStart
from moonpool.errors import MasterUnreachableError, NoSpaceError, TransferError
from moonpool.transport.base import I64, Pieces, Places, Transport, Written
from moonpool.transport.small import BUFFER_BYTES_MAX, Place

PAUSE_MIN_S = 0.001
PAUSE_MAX_S = 0.25
WORKERS = 4
"""Chunks of a batch that are under way at once: while one asks the master, others copy."""

_FAILED = TransferError.code
_LOST = MasterUnreachableError.code


@dataclass(frozen=True, slots=True)
class Batch:
    """Objects to put, n of each; ``parents`` is empty or has packed keys."""

    keys: list[bytes]
    sizes: list[int]
    parents: list[bytes]
    memory: Pieces
    wishes: Wishes

    def start(self, which: Iterable[int], preferred: str) -> PutStart:
        """Return the request for some of the objects."""
        keys, sizes, parents = self.keys, self.sizes, self.parents
        items = [PutItem(keys[i], sizes[i], parents[i] if parents else b"") for i in which]
        return self.wishes.start(items, preferred)

    def write(self, transport: Transport, objects: I64, places: Places) -> Written:
        """Write some of the objects to their places in one segment."""
        which = objects.tolist()
        keys = [self.keys[i] for i in which]
        parents = [self.parents[i] for i in which] if self.parents else []
        return transport.write(places, pieces_of(self.memory, objects), keys, parents)


class Putter:
    """Puts batches. May be used from several threads."""

    chunk_bytes = CHUNK_BYTES

    def __init__(
        self, channel: Channel, reach: Reach, closed: threading.Event, *, near: bool = False
    ) -> None:
        """near: whether to prefer segments of this host while they have room."""
        self._near = near
        self._ledger = PutLedger(channel)
        self._reach = reach
        self._closed = closed

    def put(self, batch: Batch, timeout_s: float) -> I64:
        """Put a batch; return a code for each object, shape (n,).

        A master that is lost on the way is a code; MasterUnreachableError if it is away at once.
        """
        deadline = time.monotonic() + timeout_s
        codes = codes_of(len(batch.keys), _LOST)

        def put(first: int, last: int) -> None:
            self._put_chunk(batch, np.arange(first, last), codes, deadline)

        try:
            in_turn(put, list(chunks(batch.sizes, bytes_max=self.chunk_bytes)), WORKERS)
        except MasterUnreachableError as error:
            if (codes == _LOST).all():
                raise
            codes[codes == _LOST] = error.code
        return codes

    # --- a put of which the bytes come later --------------------------------------------------

    def begin(self, items: list[PutItem], wishes: Wishes) -> tuple[Sequence[Grant], int]:
        """Ask for space; return a grant for each, and the epoch they count in. Who was granted
        space must ``finish`` or ``abandon`` it. Raises MasterUnreachableError."""
        return self._ledger.start(wishes.start(items, self._preferred), [i.key for i in items])

    def finish(self, batch: Batch, grants: Sequence[Grant], epoch: int) -> I64:
        """Write objects to where space was granted and commit them; return a code for each.

        Raises MasterUnreachableError.
        """
        codes = codes_of(len(grants), 0)
        self._fill(batch, dict(enumerate(grants)), codes, epoch)
        return codes

    def abandon(self, grants: Iterable[Grant]) -> None:
        """Give space back."""
        self._ledger.give_up(grant.generation for grant in grants)

    @property
    def _preferred(self) -> str:
        return self._reach.near_host if self._near else ""

    def _put_chunk(self, batch: Batch, left: I64, codes: I64, deadline: float) -> None:
        while True:
            which = left.tolist()
            request = batch.start(which, self._preferred)
            answers, epoch = self._ledger.start(request, [item.key for item in request.items])
            grants = dict(zip(which, answers, strict=True))
            for i, grant in grants.items():
                codes[i] = grant.code
            given = {i: grant for i, grant in grants.items() if grant.code == 0}
            if given:
                self._fill(batch, given, codes, epoch)
            waits = {i: g.retry_after_s for i, g in grants.items() if _worth_waiting(g)}
            if not waits or not self._pause(min(waits.values()), deadline):
                return
            left = np.array(list(waits), np.int64)

    def _pause(self, seconds: float, deadline: float) -> bool:
        """Wait before space is asked for again; False if the deadline leaves no time."""
        seconds = min(max(seconds, PAUSE_MIN_S), PAUSE_MAX_S) * random.uniform(0.5, 1.5)
        if time.monotonic() + seconds >= deadline:
            return False
        return not self._closed.wait(seconds)

    def _fill(self, batch: Batch, given: dict[int, Grant], codes: I64, epoch: int) -> None:
        """Write what was granted and commit it; sets the codes of the objects."""
        generations = {i: grant.generation for i, grant in given.items()}
        try:
            checksums, unsettled = self._write(batch, given, codes, epoch)
        except BaseException:
            codes[list(given)] = _LOST
            self._ledger.doubt(generations.values())
            raise
        failed = [i for i in given if i not in checksums]
        if failed:
            self._ledger.doubt(generations[i] for i in failed if i in unsettled)
            self._ledger.give_up(generations[i] for i in failed if i not in unsettled)
        if checksums:
            ended = list(checksums)
            codes[ended] = _LOST
            try:
                codes[ended] = self._ledger.end(
                    [generations[i] for i in ended], list(checksums.values())
                )
            except MasterUnreachableError as error:
                codes[ended] = error.code

    def _write(
        self, batch: Batch, given: dict[int, Grant], codes: I64, epoch: int
    ) -> tuple[dict[int, int], set[int]]:
        """Write all replicas; return the checksums of the objects that were written, and the
        objects that the other end may still be writing."""
        rows: list[Row] = [
            (i, slot.segment, slot.index, slot.offset, batch.sizes[i], g.capacity, g.generation, 0)
            for i, g in given.items()
            for slot in g.slots
        ]
        checksums: dict[int, int] = {}
        unsettled: set[int] = set()
        lock = threading.Lock()  # replicas of an object are written side by side

        def write(transport: Transport | None, objects: I64, places: Places) -> None:
            if transport is None:
                codes[objects] = _FAILED
                return
            written = batch.write(transport, objects, places)
            with lock:
                codes[objects] = np.where(codes[objects] == 0, written.codes, codes[objects])
                checksums.update(zip(objects.tolist(), written.checksums.tolist(), strict=True))
                if not is_near(transport):
                    unsettled.update(objects[written.codes == _FAILED].tolist())

        self._reach.each(epoch, by_segment(rows), write)
        return {i: checksum for i, checksum in checksums.items() if codes[i] == 0}, unsettled

    # --- one object: the same in fewer steps --------------------------------------------------

    def put_one(
        self,
        key: bytes,
        value: memoryview | Pieces,
        size: int,
        parent: bytes,
        wishes: Wishes,
        timeout_s: float,
    ) -> int:
        """Put one object; return its code. Raises MasterUnreachableError."""
        keys = (key,)
        request = wishes.start((PutItem(key, size, parent),), self._preferred)
        deadline = 0.0
        while True:
            (grant,), epoch = self._ledger.start(request, keys)
            if grant.code == 0:
                return self._fill_one(request.items[0], value, grant, epoch)
            if not _worth_waiting(grant):
                return grant.code
            deadline = deadline or time.monotonic() + timeout_s
            if not self._pause(grant.retry_after_s, deadline):
                return grant.code

    def _fill_one(self, item: PutItem, value: memoryview | Pieces, grant: Grant, epoch: int) -> int:
        generations = [grant.generation]
        unsettled = True
        try:
            code, checksum, unsettled = self._write_one(item, value, grant, epoch)
        finally:
            if unsettled:
                self._ledger.doubt(generations)
        if code:
            if not unsettled:
                self._ledger.give_up(generations)
            return code
        return self._ledger.end(generations, [checksum])[0]

    def _write_one(
        self, item: PutItem, value: memoryview | Pieces, grant: Grant, epoch: int
    ) -> tuple[int, int, bool]:
        """Write all replicas; return the code, the checksum, and whether the other end may still
        be writing."""
        key, size, parent = item.key, item.size, item.parent
        checksum = 0
        for slot in grant.slots:
            transport = self._reach.transport(epoch, slot.segment)
            if transport is None:
                return _FAILED, 0, False
            if is_near(transport) and isinstance(value, memoryview) and size <= BUFFER_BYTES_MAX:
                place = Place(slot.index, slot.offset, size, grant.capacity, grant.generation)
                code, checksum = transport.write_buffer(place, value, key, parent)
            else:
                at = slot.segment, slot.index, slot.offset
                row = (0, *at, size, grant.capacity, grant.generation, 0)
                written = transport.write(one_place(row), one_object(value), [key], [parent])
                code, checksum = int(written.codes[0]), int(written.checksums[0])
            if code:
                return code, 0, code == _FAILED and not is_near(transport)
        return 0, checksum, False


def _worth_waiting(grant: Grant) -> bool:
    return grant.code == NoSpaceError.code and grant.retry_after_s > 0
