"""The way to a segment on another host: pooled connections to its node, several streams a batch.

Bytes land in or leave from the caller's memory as it lies. Both ends hash what passes; an object
whose bytes are not those that were put is reported as -801 and never as good.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterator
from functools import partial

import numpy as np

from moonpool.errors import (
    ChecksumError,
    DeadlineError,
    InvalidArgumentError,
    MoonpoolError,
    ProtocolError,
    TransferError,
)
from moonpool.protocol import data
from moonpool.transport import copy, streams
from moonpool.transport.base import I64, U64, Copier, Pieces, Places, Written
from moonpool.transport.batch import chosen, fitting, picked, places_span, some, span
from moonpool.transport.lane import Exchange
from moonpool.transport.pool import CONNECTIONS_MAX, ConnectionPool
from moonpool.transport.wire import Wire

_log = logging.getLogger(__name__)

_FAILED = TransferError.code
_WRONG = ChecksumError.code
_BAD = InvalidArgumentError.code
BYTES_PER_S_MIN = 32 * 1024 * 1024
"""A transfer may take its timeout and what this rate needs."""
WAIT_S = 120.0
"""For the requests before it on the same connection, each of which has its own limit."""
STAGED_BYTES = 16 * 1024 * 1024
"""What one request moves through staging memory, and at most an object more."""


class TcpTransport:
    """Reads and writes one segment of a node through its data port.

    address: the node's host:port, or a ConnectionPool shared with its other segments.
    client: the name of the client's session with the master. streams: connections a batch is
    spread over, in chunks of at least 1 MiB. copier: reaches the memory that Pieces describe; if
    that is not the processor's, the bytes pass through ``copier.staging``.
    """

    def __init__(
        self,
        address: str | ConnectionPool,
        segment: str,
        client: str = "",
        *,
        streams: int = streams.STREAMS,
        timeout_s: float = 5.0,
        token: str = "",
        copier: Copier = copy.HOST,
    ) -> None:
        if isinstance(address, ConnectionPool):
            self._pool, self._owned = address, False
        else:
            self._pool = ConnectionPool(address, client, timeout_s=timeout_s, token=token)
            self._owned = True
        self.segment = segment
        self._streams = streams
        self._timeout_s = timeout_s
        self._copier = copier
        self._closed = False
        self.outdated: Callable[[], bool] = lambda: False
        """Whether there is a better way to the segment by now."""

    def read(self, places: Places, memory: Pieces) -> I64:
        """Copy objects into memory; a code for each: -704 gone, -801 wrong bytes, -800 broken."""
        codes = fitting(places, memory)
        which = np.flatnonzero(codes == 0)
        taken, pieces = chosen(places, which), some(memory, which)
        results = np.full(len(which), _FAILED, np.int64)

        def part(first: int, last: int) -> None:
            self._read_part(
                places_span(taken, first, last), span(pieces, first, last), results[first:last]
            )

        self._run(part, taken.sizes)
        codes[which] = results
        return codes

    def write(
        self, places: Places, memory: Pieces, keys: list[bytes], parents: list[bytes]
    ) -> Written:
        """Write objects and commit their slots; the node checks what arrives."""
        count = len(places)
        checksums = np.zeros(count, np.uint64)
        if len(keys) != count or len(memory) != count or len(parents) not in (0, count):
            return Written(np.full(count, _BAD, np.int64), checksums)
        codes = fitting(places, memory)
        which = np.flatnonzero(codes == 0)
        taken, pieces = chosen(places, which), some(memory, which)
        names, fathers = picked(keys, which), picked(parents, which)
        results = np.full(len(which), _FAILED, np.int64)
        sums = np.zeros(len(which), np.uint64)

        def part(first: int, last: int) -> None:
            self._write_part(
                places_span(taken, first, last),
                span(pieces, first, last),
                (names[first:last], fathers[first:last]),
                Written(results[first:last], sums[first:last]),
            )

        self._run(part, taken.sizes)
        codes[which] = results
        checksums[which] = sums
        return Written(codes, checksums)

    def close(self) -> None:
        """Close the connections; what is moving fails."""
        self._closed = True
        if self._owned:
            self._pool.close()

    def _read_part(self, places: Places, memory: Pieces, codes: I64) -> None:
        if self._copier.direct:
            job = _Read(self.segment, places, memory, codes)
            self._attempt(job)
            return

        def move(staged: Pieces) -> None:
            job = _Read(self.segment, places, staged, codes)
            self._attempt(job)
            right = np.flatnonzero(codes == 0)
            self._copier.scatter(staged.addresses[right], some(memory, right))

        _staged(self._copier, places.sizes, codes, move)

    def _write_part(
        self, places: Places, memory: Pieces, names: tuple[list[bytes], list[bytes]], done: Written
    ) -> None:
        if self._copier.direct:
            job = _Write(self.segment, places, memory, names, done)
            self._attempt(job)
            return

        def move(staged: Pieces) -> None:
            self._copier.gather(memory, staged.addresses)
            job = _Write(self.segment, places, staged, names, done)
            self._attempt(job)

        _staged(self._copier, places.sizes, done.codes, move)

    def _run(self, part: Callable[[int, int], None], sizes: U64) -> None:
        staged_bytes = None if self._copier.direct else STAGED_BYTES

        def stream(first: int, last: int) -> None:
            for a, b in _requests(sizes[first:last], staged_bytes):
                part(first + a, first + b)

        if self._closed:
            return
        width = self._width()
        if width > self._streams:
            streams.run_in_turn(width, stream, streams.steps(sizes, streams.WIDE_PART_BYTES))
            return
        ranges = streams.chunks(sizes, width)
        streams.run_all([partial(stream, *limits) for limits in ranges])

    def _width(self) -> int:
        return streams.width(self._streams, self._pool.round_trip_s, CONNECTIONS_MAX)

    def _attempt(self, job: _Read | _Write) -> None:
        """Run a request on a connection; once more on a fresh one if nothing has happened."""
        allowed_s = self._timeout_s + job.nbytes / BYTES_PER_S_MIN
        bulk = job.nbytes >= streams.CHUNK_BYTES_MIN
        width = self._width() if bulk else CONNECTIONS_MAX
        for fresh in (False, True):
            try:
                with (
                    self._pool.lane(fresh=fresh, width=width) as lane,
                    Exchange(lane, allowed_s, WAIT_S) as exchange,
                ):
                    job.run(exchange)
                return
            except MoonpoolError as error:
                _log.debug("%s: %s", self._pool.address, error)
                # A peer that did not answer in time is not asked a second time.
                if fresh or not job.untouched or isinstance(error, DeadlineError):
                    return


class _Read:
    """One chunk of a read on one connection; fills ``codes``."""

    def __init__(self, segment: str, places: Places, memory: Pieces, codes: I64) -> None:
        self.segment, self.places, self.memory, self.codes = segment, places, memory, codes
        self.nbytes = int(memory.lengths.sum())
        self.untouched = True

    def run(self, exchange: Exchange) -> None:
        places = self.places
        exchange.wire.send(
            data.ReadBatch(
                self.segment,
                places.offsets.tobytes(),
                places.sizes.tobytes(),
                places.generations.tobytes(),
            )
        )
        link = exchange.sent()
        head = data.decode_reply(link.receive(), data.ReadHead)
        self.untouched = False
        codes = _codes(head.codes, len(places))
        coming = np.flatnonzero(codes == 0)
        self.codes[codes != 0] = codes[codes != 0]
        right = self._receive(link, coming)
        tail = _codes(data.decode_reply(link.receive(), data.ReadTail).codes, len(places))
        self.codes[coming] = np.where(right, 0, _WRONG)
        late = coming[tail[coming] != 0]
        self.codes[late] = tail[late]

    def _receive(self, link: Wire, coming: I64) -> np.ndarray[tuple[int], np.dtype[np.bool_]]:
        """Fill the memory of the objects that come; tell which have the right checksum."""
        sums = link.receive_hashed(some(self.memory, coming))
        return np.asarray(sums == self.places.checksums[coming])


class _Write:
    """One chunk of a write on one connection; fills ``codes`` and ``checksums``."""

    def __init__(
        self,
        segment: str,
        places: Places,
        memory: Pieces,
        names: tuple[list[bytes], list[bytes]],
        done: Written,
    ) -> None:
        self.segment, self.places, self.memory = segment, places, memory
        self.keys, self.parents = names
        self.codes, self.checksums = done.codes, done.checksums
        self.nbytes = int(memory.lengths.sum())
        self.untouched = True

    def run(self, exchange: Exchange) -> None:
        places, link = self.places, exchange.wire
        self.untouched = False
        link.send(
            data.WriteBatch(
                self.segment,
                places.indexes.tobytes(),
                places.offsets.tobytes(),
                places.sizes.tobytes(),
                places.capacities.tobytes(),
                places.generations.tobytes(),
                self.keys,
                self.parents,
            )
        )
        sums = link.send_hashed(self.memory)
        link.send(data.WriteTail(sums.tobytes()))
        link = exchange.sent()
        done = data.decode_reply(link.receive(), data.WriteDone)
        codes = _codes(done.codes, len(places))
        # The node compared with what it got; this compares with what we sent.
        arrived = data.words(done.checksums, len(places)) == sums
        self.checksums[:] = sums
        self.codes[:] = np.where((codes == 0) & ~arrived, _WRONG, codes)


def _requests(sizes: U64, nbytes: int | None) -> Iterator[tuple[int, int]]:
    """Yield the ranges of objects that are asked for in one message each."""
    ranges = [(0, len(sizes))] if nbytes is None else streams.steps(sizes, nbytes)
    for first, last in ranges:
        for at in range(first, last, streams.ITEMS_MAX):
            yield at, min(at + streams.ITEMS_MAX, last)


def _staged(copier: Copier, sizes: U64, codes: I64, move: Callable[[Pieces], None]) -> None:
    """Call ``move`` with host memory for the objects; if the copier fails, so do they."""
    ends = np.cumsum(sizes, dtype=np.uint64)
    try:
        with copier.staging(int(ends[-1]) if len(ends) else 0) as address:
            move(copy.whole(ends - sizes + np.uint64(address), sizes))
    except TransferError as error:
        _log.debug("staging: %s", error)
        codes[codes == 0] = _FAILED


def _codes(raw: bytes, count: int) -> I64:
    codes = data.numbers(raw, count)
    if (codes > 0).any():
        raise ProtocolError("a code above 0")
    return codes
