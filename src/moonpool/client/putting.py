"""The way of a put: ask for space, write all replicas, commit; and what to do when one fails."""

from __future__ import annotations

import contextlib
import random
import threading
import time
from collections.abc import Iterable
from dataclasses import dataclass

import numpy as np

from moonpool.client.answers import as_many, expect
from moonpool.client.channel import Channel
from moonpool.client.grouping import Row, by_segment, chunks, one_place, pieces_of
from moonpool.client.memory import codes_of
from moonpool.client.reach import Reach
from moonpool.core.messages import (
    Codes,
    Grant,
    PutEnd,
    PutItem,
    PutRevoke,
    PutStart,
    PutStarted,
)
from moonpool.errors import (
    MasterUnreachableError,
    MoonpoolError,
    NoSpaceError,
    TransferError,
)
from moonpool.transport.base import I64, Pieces

REVOKE_TIMEOUT_S = 1.0
PAUSE_MIN_S = 0.001
PAUSE_MAX_S = 0.25


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


class Putter:
    """Puts batches. May be used from several threads."""

    def __init__(self, channel: Channel, reach: Reach, closed: threading.Event) -> None:
        self._channel = channel
        self._reach = reach
        self._closed = closed

    def put(self, batch: Batch, timeout_s: float) -> I64:
        """Put a batch; return a code for each object, shape (n,).

        A master that is lost on the way is a code; MasterUnreachableError if it is away at once.
        """
        deadline = time.monotonic() + timeout_s
        codes = codes_of(len(batch.keys), MasterUnreachableError.code)
        try:
            for first, last in chunks(batch.sizes):
                self._put_chunk(batch, np.arange(first, last), codes, deadline)
        except MasterUnreachableError as error:
            if (codes == MasterUnreachableError.code).all():
                raise
            codes[codes == MasterUnreachableError.code] = error.code
        return codes

    def _put_chunk(self, batch: Batch, left: I64, codes: I64, deadline: float) -> None:
        while True:
            which = left.tolist()
            answer, epoch = self._channel.ask(batch.start(which))
            reply = expect(PutStarted, answer)
            grants = dict(zip(which, as_many(reply.grants, len(which)), strict=True))
            for i, grant in grants.items():
                codes[i] = grant.code
            given = {i: grant for i, grant in grants.items() if grant.code == 0}
            if given:
                self._fill(batch, given, codes, epoch)
            pauses = [
                (i, grant.retry_after_s)
                for i, grant in grants.items()
                if grant.code == NoSpaceError.code and grant.retry_after_s > 0
            ]
            if not pauses or not self.pause(min(s for _, s in pauses), deadline):
                return
            left = np.array([i for i, _ in pauses], np.int64)

    def pause(self, seconds: float, deadline: float) -> bool:
        """Wait before space is asked for again; False if the deadline leaves no time."""
        seconds = min(max(seconds, PAUSE_MIN_S), PAUSE_MAX_S) * random.uniform(0.5, 1.5)
        if time.monotonic() + seconds >= deadline:
            return False
        return not self._closed.wait(seconds)

    def _fill(self, batch: Batch, given: dict[int, Grant], codes: I64, epoch: int) -> None:
        """Write what was granted and commit it; sets the codes of the objects."""
        generations = {i: grant.generation for i, grant in given.items()}
        try:
            checksums = self._write(batch, given, codes, epoch)
            self._finish(generations, checksums, codes)
        except BaseException:
            codes[list(generations)] = MasterUnreachableError.code
            self.give_up(generations.values())
            raise

    def _write(
        self, batch: Batch, given: dict[int, Grant], codes: I64, epoch: int
    ) -> dict[int, int]:
        """Write all replicas; return the checksums of the objects that were written."""
        rows: list[Row] = [
            (i, slot.segment, slot.index, slot.offset, batch.sizes[i], g.capacity, g.generation, 0)
            for i, g in given.items()
            for slot in g.slots
        ]
        checksums: dict[int, int] = {}
        for segment, objects, places in by_segment(rows):
            transport = self._reach.transport(epoch, segment)
            which = objects.tolist()
            if transport is None:
                codes[objects] = TransferError.code
                continue
            keys = [batch.keys[i] for i in which]
            parents = [batch.parents[i] for i in which] if batch.parents else []
            written = transport.write(places, pieces_of(batch.memory, objects), keys, parents)
            codes[objects] = np.where(codes[objects] == 0, written.codes, codes[objects])
            checksums.update(zip(which, written.checksums.tolist(), strict=True))
        return {i: checksum for i, checksum in checksums.items() if codes[i] == 0}

    def _finish(self, generations: dict[int, int], checksums: dict[int, int], codes: I64) -> None:
        failed = [generation for i, generation in generations.items() if i not in checksums]
        if failed:
            self.give_up(failed)
        if checksums:
            ended = [generations[i] for i in checksums]
            codes[list(checksums)] = self.end(ended, list(checksums.values()))

    def end(self, generations: list[int], checksums: list[int]) -> list[int]:
        """Commit; return a code for each, also if the master is away."""
        try:
            reply = self._channel.call(PutEnd(generations, checksums))
        except MasterUnreachableError as error:
            return [error.code] * len(generations)
        return list(as_many(expect(Codes, reply).codes, len(generations)))

    def give_up(self, generations: Iterable[int]) -> None:
        """Tell the master that these puts will not be written any more, if it can be reached."""
        with contextlib.suppress(MoonpoolError):
            self._channel.call(PutRevoke(list(generations)), REVOKE_TIMEOUT_S)

    # --- one object: the same in fewer steps --------------------------------------------------

    def put_one(self, batch: Batch, timeout_s: float) -> int:
        """Put a batch of one object; return its code. Raises MasterUnreachableError."""
        request = batch.start((0,))
        deadline = 0.0
        while True:
            answer, epoch = self._channel.ask(request)
            reply = expect(PutStarted, answer)
            (grant,) = as_many(reply.grants, 1)
            if grant.code == 0:
                return self._fill_one(batch, grant, epoch)
            if grant.code != NoSpaceError.code or grant.retry_after_s <= 0:
                return grant.code
            deadline = deadline or time.monotonic() + timeout_s
            if not self.pause(grant.retry_after_s, deadline):
                return grant.code

    def _fill_one(self, batch: Batch, grant: Grant, epoch: int) -> int:
        generation = grant.generation
        code, checksum = TransferError.code, 0
        try:
            for slot in grant.slots:
                transport = self._reach.transport(epoch, slot.segment)
                if transport is None:
                    code = TransferError.code
                    break
                place = one_place(
                    (
                        0,
                        slot.segment,
                        slot.index,
                        slot.offset,
                        batch.sizes[0],
                        grant.capacity,
                        generation,
                        0,
                    )
                )
                written = transport.write(place, batch.memory, batch.keys, batch.parents)
                code, checksum = int(written.codes[0]), int(written.checksums[0])
                if code:
                    break
        except BaseException:
            self.give_up((generation,))
            raise
        if code:
            self.give_up((generation,))
            return code
        reply = self._channel.call(PutEnd([generation], [checksum]))
        return as_many(expect(Codes, reply).codes, 1)[0]
