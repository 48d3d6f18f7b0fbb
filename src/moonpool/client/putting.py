"""The way of a put: ask for space, write all replicas, commit; and what to do when one fails."""

from __future__ import annotations

import contextlib
import random
import threading
import time
from collections import deque
from collections.abc import Iterable
from dataclasses import dataclass

import numpy as np

from moonpool.client.answers import as_many, expect
from moonpool.client.channel import Channel
from moonpool.client.grouping import Row, by_segment, chunks, one_place, pieces_of
from moonpool.client.memory import codes_of, one_object
from moonpool.client.reach import Reach, is_near
from moonpool.core.messages import Codes, Grant, PutEnd, PutItem, PutRevoke, PutStart, PutStarted
from moonpool.errors import (
    MasterUnreachableError,
    MoonpoolError,
    NoSpaceError,
    TransferError,
)
from moonpool.transport.base import I64, Pieces, Places, Transport, Written
from moonpool.transport.small import BUFFER_BYTES_MAX, Place
from moonpool.transport.tcp import TcpTransport

REVOKE_TIMEOUT_S = 1.0
PAUSE_MIN_S = 0.001
PAUSE_MAX_S = 0.25
SETTLE_S = 90.0
"""A write over TCP that broke off may go on at the node for as long as the node lets it take; only
then is its space given back."""
DOUBTFUL_MAX = 65_536

_FAILED = TransferError.code
_LOST = MasterUnreachableError.code


@dataclass(frozen=True, slots=True)
class Batch:
    """Objects to put, n of each; ``parents`` is empty or has packed keys."""

    keys: list[bytes]
    sizes: list[int]
    parents: list[bytes]
    memory: Pieces
    replicas: int
    pinned: bool = False

    def start(self, which: Iterable[int]) -> PutStart:
        """Return the request for some of the objects."""
        keys, sizes, parents = self.keys, self.sizes, self.parents
        items = [PutItem(keys[i], sizes[i], parents[i] if parents else b"") for i in which]
        return PutStart(items, self.replicas, "", self.pinned)

    def write(self, transport: Transport, objects: I64, places: Places) -> Written:
        """Write some of the objects to their places in one segment."""
        which = objects.tolist()
        keys = [self.keys[i] for i in which]
        parents = [self.parents[i] for i in which] if self.parents else []
        return transport.write(places, pieces_of(self.memory, objects), keys, parents)


class Putter:
    """Puts batches. May be used from several threads."""

    def __init__(self, channel: Channel, reach: Reach, closed: threading.Event) -> None:
        self._channel = channel
        self._reach = reach
        self._closed = closed
        self._doubtful: deque[tuple[float, list[int]]] = deque(maxlen=DOUBTFUL_MAX)

    def put(self, batch: Batch, timeout_s: float) -> I64:
        """Put a batch; return a code for each object, shape (n,).

        A master that is lost on the way is a code; MasterUnreachableError if it is away at once.
        """
        deadline = time.monotonic() + timeout_s
        codes = codes_of(len(batch.keys), _LOST)
        try:
            for first, last in chunks(batch.sizes):
                self._put_chunk(batch, np.arange(first, last), codes, deadline)
        except MasterUnreachableError as error:
            if (codes == _LOST).all():
                raise
            codes[codes == _LOST] = error.code
        return codes

    def _put_chunk(self, batch: Batch, left: I64, codes: I64, deadline: float) -> None:
        while True:
            which = left.tolist()
            answer, epoch = self._start(batch, which)
            grants = dict(zip(which, as_many(answer.grants, len(which)), strict=True))
            for i, grant in grants.items():
                codes[i] = grant.code
            given = {i: grant for i, grant in grants.items() if grant.code == 0}
            if given:
                self._fill(batch, given, codes, epoch)
            waits = {i: g.retry_after_s for i, g in grants.items() if _worth_waiting(g)}
            if not waits or not self._pause(min(waits.values()), deadline):
                return
            left = np.array(list(waits), np.int64)

    def _start(self, batch: Batch, which: Iterable[int]) -> tuple[PutStarted, int]:
        if self._doubtful:
            self._settle()
        answer, epoch = self._channel.ask(batch.start(which))
        return expect(PutStarted, answer), epoch

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
            self._doubt(generations.values())
            raise
        failed = [i for i in given if i not in checksums]
        if failed:
            self._doubt(generations[i] for i in failed if i in unsettled)
            self._give_up([generations[i] for i in failed if i not in unsettled])
        if checksums:
            ended = [generations[i] for i in checksums]
            codes[list(checksums)] = self._end(ended, list(checksums.values()))

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
        for segment, objects, places in by_segment(rows):
            transport = self._reach.transport(epoch, segment)
            if transport is None:
                codes[objects] = _FAILED
                continue
            written = batch.write(transport, objects, places)
            codes[objects] = np.where(codes[objects] == 0, written.codes, codes[objects])
            checksums.update(zip(objects.tolist(), written.checksums.tolist(), strict=True))
            if isinstance(transport, TcpTransport):
                unsettled.update(objects[written.codes == _FAILED].tolist())
        return {i: checksum for i, checksum in checksums.items() if codes[i] == 0}, unsettled

    def _end(self, generations: list[int], checksums: list[int]) -> list[int]:
        """Commit; return a code for each, also if the master is away."""
        try:
            reply = self._channel.call(PutEnd(generations, checksums))
        except MasterUnreachableError as error:
            return [error.code] * len(generations)
        return list(as_many(expect(Codes, reply).codes, len(generations)))

    def _give_up(self, generations: Iterable[int]) -> None:
        """Tell the master that these puts will not be written any more, if it can be reached."""
        generations = list(generations)
        if generations:
            with contextlib.suppress(MoonpoolError):
                self._channel.call(PutRevoke(generations), REVOKE_TIMEOUT_S)

    def _doubt(self, generations: Iterable[int]) -> None:
        """Give these puts up, but only after nobody can be writing them any more."""
        generations = list(generations)
        if generations:
            self._doubtful.append((time.monotonic() + SETTLE_S, generations))

    def _settle(self) -> None:
        now = time.monotonic()
        with contextlib.suppress(IndexError):
            while self._doubtful[0][0] <= now:
                self._give_up(self._doubtful.popleft()[1])

    # --- one object: the same in fewer steps --------------------------------------------------

    def put_one(
        self,
        key: bytes,
        value: memoryview | Pieces,
        size: int,
        parent: bytes,
        replicas: int,
        timeout_s: float,
    ) -> int:
        """Put one object; return its code. Raises MasterUnreachableError."""
        request = PutStart([PutItem(key, size, parent)], replicas)
        deadline = 0.0
        while True:
            if self._doubtful:
                self._settle()
            answer, epoch = self._channel.ask(request)
            (grant,) = as_many(expect(PutStarted, answer).grants, 1)
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
                self._doubt(generations)
        if code:
            if not unsettled:
                self._give_up(generations)
            return code
        reply = self._channel.call(PutEnd(generations, [checksum]))
        return as_many(expect(Codes, reply).codes, 1)[0]

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
                return code, 0, code == _FAILED and isinstance(transport, TcpTransport)
        return 0, checksum, False


def _worth_waiting(grant: Grant) -> bool:
    return grant.code == NoSpaceError.code and grant.retry_after_s > 0
