"""Requests on one connection to the data port."""

from __future__ import annotations

import hmac
from contextlib import AbstractContextManager, nullcontext
from typing import Protocol

import numpy as np
import numpy.typing as npt

from moonpool.errors import (
    ChecksumError,
    IllegalClientError,
    InvalidArgumentError,
    InvalidWriteError,
    NotFoundError,
    ProtocolError,
)
from moonpool.node.direct import DirectReads
from moonpool.node.onesided import OneSided
from moonpool.node.pulling import pull
from moonpool.node.writers import Writers
from moonpool.node.writing import begin, places_of
from moonpool.protocol import data
from moonpool.protocol.versions import negotiate
from moonpool.ssd.pace import Pace
from moonpool.transport import copy
from moonpool.transport.base import I64, U64, Pieces, Places
from moonpool.transport.batch import chosen
from moonpool.transport.segment import Segment
from moonpool.transport.wire import Wire, iovecs

HANDSHAKE_S = 5.0
IDLE_S = 600.0
REQUEST_S = 30.0
BYTES_PER_S_MIN = 8 * 1024 * 1024
"""A transfer may take REQUEST_S and what this rate needs."""
SCRATCH_BYTES = 1024 * 1024
NODE_PREFIX = "node/"
"""What the names of nodes' sessions begin with."""

_BAD = InvalidArgumentError.code
_GONE = NotFoundError.code
_STALE = InvalidWriteError.code
_WRONG = ChecksumError.code


class Shelf(Protocol):
    """The node's segments, as the data port sees them."""

    name: str
    host: str

    def segment(self, name: str) -> Segment | None:
        """Return a segment by name."""
        ...

    def attachable(self) -> list[data.AttachedSegment]:
        """Return what clients on this host may map."""
        ...


class Handler:
    """Serves one connection until it ends. Whatever the peer sends only ever reaches places that
    ``Segment`` has found to be inside."""

    def __init__(
        self,
        wire: Wire,
        shelf: Shelf,
        writers: Writers,
        token: str = "",
        onesided: OneSided | None = None,
        pace: Pace | None = None,
        disk: DirectReads | None = None,
    ) -> None:
        """pace: is told while bytes are read, so that what may wait does."""
        self._disk = disk
        self._pace = pace or Pace()
        self._wire = wire
        self._token = token
        self._trusted = False
        self._shelf = shelf
        self._writers = writers
        self._onesided = onesided
        self.client = ""

    def run(self) -> None:
        """Serve; return or raise MoonpoolError when the connection is to be closed."""
        self._open()
        while True:
            if not self._wire.wait_for_data(IDLE_S):
                return  # the client opens a new one when it needs it
            self._wire.within(REQUEST_S)
            payload = self._wire.receive()
            request = data.decode_any_request(payload)
            if isinstance(request, data.ReadBatch):
                with self._first():
                    self._read(request)
            elif isinstance(request, data.WriteBatch):
                with self._writers.writing(self.client, self._wire):
                    self._write(request)
            elif isinstance(request, data.PullBatch):
                with self._writers.writing(self.client, self._wire):
                    self._pull(request)
            elif isinstance(request, data.OpenOneSided):
                self._need_trust("OpenOneSided")
                if self._onesided is not None:
                    self._onesided.serve(self.client, request, self._wire)
                else:
                    self._wire.send(data.OneSidedReady(b"", [], "the node offers none"))
            elif isinstance(request, data.Attach):
                self._attach()
                return
            else:
                raise ProtocolError(f"{type(request).__name__} where a request was expected")

    def _open(self) -> None:
        self._wire.within(HANDSHAKE_S)
        payload = self._wire.receive(data.OPEN_BYTES_MAX)
        opened = data.decode_request(payload, data.OpenData)
        if len(opened.client) > data.CLIENT_CHARS_MAX or not opened.client.isprintable():
            raise ProtocolError(f"a client name of {len(opened.client)} characters")
        self._check_token(opened.token)
        version = negotiate(opened.version_min, opened.version_max)
        self.client = opened.client
        self._wire.send(data.DataReady(version, self._shelf.name))

    def _check_token(self, said: str) -> None:
        """As the master does: without a token one may look, with a wrong one nothing."""
        if not self._token or not said:
            self._trusted = not self._token
            return
        wanted = self._token.encode()
        if not hmac.compare_digest(said.encode(errors="replace"), wanted):
            raise IllegalClientError("the token is wrong")
        self._trusted = True

    def _need_trust(self, what: str) -> None:
        if not self._trusted:
            raise IllegalClientError(f"{what} needs the pool's token")

    def _attach(self) -> None:
        self._need_trust("Attach")
        with self._writers.attached(self.client, self._wire):
            self._wire.send(data.Attached(self._shelf.host, self._shelf.attachable()))
            self._wire.wait_for_end()

    def _segment(self, name: str) -> Segment:
        segment = self._shelf.segment(name)
        if segment is None:
            raise NotFoundError(f"no segment {name[:64]!r} here")
        return segment

    def _allow(self, sizes: U64) -> None:
        self._wire.within(REQUEST_S + float(sizes.sum(dtype=np.float64)) / BYTES_PER_S_MIN)

    # --- reading ------------------------------------------------------------------------------

    def _first(self) -> AbstractContextManager[None]:
        """Have copies wait, unless it is another node that reads, for one."""
        return nullcontext() if self.client.startswith(NODE_PREFIX) else self._pace.reading()

    def _read(self, request: data.ReadBatch) -> None:
        if request.segment == data.DISK and self._disk is not None:
            self._read_disk(self._disk, request)
            return
        segment = self._segment(request.segment)
        places = _places(request.offsets, request.sizes, request.generations)
        keep = segment.parts()
        intact = segment.intact(places)
        codes = np.zeros(len(places), np.int64)
        if not intact.all():
            codes[~intact] = np.where(segment.inside(places), _GONE, _BAD)[~intact]
        good = np.flatnonzero(intact)
        taken = chosen(places, good)
        self._allow(taken.sizes)
        self._wire.send(data.ReadHead(codes.tobytes()))
        source = copy.whole(taken.offsets + np.uint64(segment.address), taken.sizes)
        self._wire.send_memory(iovecs(source))
        codes[good[~segment.intact(taken)]] = _GONE
        self._wire.send(data.ReadTail(codes.tobytes()))
        del keep

    def _read_disk(self, disk: DirectReads, request: data.ReadBatch) -> None:
        """Send objects straight from the disk. For what cannot be read other bytes and a code."""
        places = _places(request.offsets, request.sizes, request.generations)
        found = disk.find(places.generations.tolist(), places.sizes.tolist())
        codes = np.array([0 if each else _GONE for each in found], np.int64)
        good = np.flatnonzero(codes == 0)
        self._allow(places.sizes[good])
        self._wire.send(data.ReadHead(codes.tobytes()))
        first = 0
        for batch in disk.batches([each for each in found if each is not None]):
            which = good[first : first + len(batch)]
            first += len(batch)
            with disk.reading(batch) as (addresses, reasons):
                codes[which[[bool(reason) for reason in reasons]]] = _GONE
                at = np.array(addresses, np.uint64)
                self._wire.send_memory(iovecs(copy.whole(at, places.sizes[which])))
        self._wire.send(data.ReadTail(codes.tobytes()))

    # --- writing ------------------------------------------------------------------------------

    def _write(self, request: data.WriteBatch) -> None:
        self._need_trust("WriteBatch")
        segment = self._segment(request.segment)
        places = places_of(request)
        count = len(places)
        keep = segment.parts()
        codes = begin(segment, places, request.keys, request.parents, self._writers, self.client)
        self._allow(places.sizes)
        sums = self._receive(segment, places, codes)
        tail = data.decode_request(self._wire.receive(), data.WriteTail)
        codes[(codes == 0) & (data.words(tail.checksums, count) != sums)] = _WRONG
        good = np.flatnonzero(codes == 0)
        codes[good] = segment.seal(chosen(places, good), sums[good])
        self._wire.send(data.WriteDone(codes.tobytes(), sums.tobytes()))
        del keep

    def _pull(self, request: data.PullBatch) -> None:
        self._need_trust("PullBatch")
        if self._onesided is None:
            raise NotFoundError("the node offers no one-sided way")
        session = self._onesided.session(request.kind, self.client)
        segment = self._segment(request.segment)
        pull(session, request, self._wire, segment, self._writers, self.client)

    def _receive(self, segment: Segment, places: Places, codes: I64) -> U64:
        """Fill the slots of the objects with code 0, drop the other payloads; return the
        checksums of what arrived, shape (n,)."""
        scratch = np.empty(SCRATCH_BYTES, np.uint8)
        memory = _targets(segment, places, codes == 0, int(scratch.ctypes.data))
        sums = self._wire.receive_hashed(memory)
        sums[codes != 0] = 0
        return sums


def _places(offsets: bytes, sizes: bytes, generations: bytes) -> Places:
    """Return the places in a request; ProtocolError if its arrays are not of one length."""
    where = data.words(offsets)
    count = len(where)
    none = np.zeros(count, np.uint64)
    return Places(
        indexes=none.view(np.int64),
        offsets=where,
        sizes=data.words(sizes, count),
        capacities=none,
        generations=data.words(generations, count),
        checksums=none,
    )


def _targets(segment: Segment, places: Places, good: npt.NDArray[np.bool_], scratch: int) -> Pieces:
    """Return where payloads go: to their slots, or all of a refused one into the scratch."""
    if good.all():
        return copy.whole(places.offsets + np.uint64(segment.address), places.sizes)
    step = np.uint64(SCRATCH_BYTES)
    rounds = np.where(good, np.uint64(1), (places.sizes + step - np.uint64(1)) // step)
    starts = np.zeros(len(places) + 1, np.int64)
    np.cumsum(rounds.astype(np.int64), out=starts[1:])
    lengths = np.full(int(starts[-1]), step, np.uint64)
    addresses = np.full(int(starts[-1]), scratch, np.uint64)
    last = starts[1:][rounds > 0] - 1
    rest = np.where(good, places.sizes, places.sizes - (np.maximum(rounds, 1) - 1) * step)
    lengths[last] = rest[rounds > 0]
    addresses[starts[:-1][good]] = places.offsets[good] + np.uint64(segment.address)
    return Pieces(addresses, lengths, starts)
