"""Fetching what clients store from their memory into granted slots."""

from __future__ import annotations

import logging
import time
from dataclasses import dataclass

import numpy as np

from moonpool.errors import (
    ChecksumError,
    InvalidArgumentError,
    ProtocolError,
    TransferError,
)
from moonpool.node.onesided import Session
from moonpool.node.writers import Writers
from moonpool.node.writing import begin, places_of
from moonpool.protocol import data
from moonpool.transport import copy
from moonpool.transport.base import I64, U64, Places
from moonpool.transport.batch import chosen, picked
from moonpool.transport.onesided_carrier import Pending
from moonpool.transport.segment import Segment
from moonpool.transport.wire import Wire

_log = logging.getLogger(__name__)

PULL_S = 20.0
BYTES_PER_S_MIN = 32 * 1024 * 1024
ANSWER_S = 10.0
LOOK_S = 0.1
ABORT_S = 1.0
"""How long a transfer whose client is gone may take to end by itself."""

_FAILED = TransferError.code
_BAD = InvalidArgumentError.code
_WRONG = ChecksumError.code


def pull(
    session: Session,
    request: data.PullBatch,
    wire: Wire,
    segment: Segment,
    writers: Writers,
    client: str,
) -> None:
    """Answer PullBatch; called inside ``writers.writing``. When it returns or raises, nothing is
    written into the slots any more."""
    places = places_of(request)
    count = len(places)
    said = data.words(request.checksums, count) if request.checksums else None
    sources = _sources(request, places, session)
    keep = segment.parts()
    codes = sources.codes.copy()
    good = np.flatnonzero(codes == 0)
    codes[good] = begin(
        segment,
        chosen(places, good),
        picked(request.keys, good),
        picked(request.parents, good),
        writers,
        client,
    )
    good = np.flatnonzero(codes == 0)
    memory = session.memory[request.memory]
    if not _fetch(session, segment, chosen(places, good), sources.take(good), wire, memory):
        codes[good] = _FAILED
    sums = np.zeros(count, np.uint64)
    good = np.flatnonzero(codes == 0)
    at = chosen(places, good)
    sums[good] = copy.digest(copy.whole(at.offsets + np.uint64(segment.address), at.sizes))
    if said is not None:
        codes[good[sums[good] != said[good]]] = _WRONG
    good = np.flatnonzero(codes == 0)
    codes[good] = segment.seal(chosen(places, good), sums[good])
    wire.within(ANSWER_S)
    wire.send(data.WriteDone(codes.tobytes(), sums.tobytes()))
    del keep


def _fetch(
    session: Session,
    segment: Segment,
    places: Places,
    sources: _Sources,
    wire: Wire,
    memory: data.OneSidedMemory,
) -> bool:
    """Fill the slots; tell whether all bytes came."""
    if not len(places):
        return True
    carrier = session.life.carrier
    rows = sources.rows(places.offsets + np.uint64(segment.geometry.data_offset))
    seconds = PULL_S + int(rows[2].sum()) / BYTES_PER_S_MIN
    region = session.life.regions[segment.header.name]
    try:
        pending = carrier.fetch(
            session.peer,
            region,
            rows,
            [len(rows[0])],
            gpu=memory.gpu,
            device=memory.device,
        )
        if not _wait(pending, wire, seconds):
            _log.warning("a transfer from %s does not end; its carrier does", session.peer)
            carrier.kill()
        pending.result()
    except TransferError as error:
        _log.debug("%s: %s", session.peer, error)
        return False
    return True


def _wait(pending: Pending, wire: Wire, seconds: float) -> bool:
    """Wait for a transfer; give up soon once its client is gone."""
    until = time.monotonic() + seconds
    while not pending.wait(LOOK_S):
        if not wire.quiet():
            until = min(until, time.monotonic() + ABORT_S)
        if time.monotonic() >= until:
            return False
    return True


@dataclass(frozen=True)
class _Sources:
    """Where the pieces of a batch's objects are in the client's memory; addresses there."""

    codes: I64
    addresses: U64
    lengths: U64
    counts: I64

    def take(self, which: I64) -> _Sources:
        """Return those of some of the objects."""
        if len(which) == len(self.codes):
            return self
        mask = np.zeros(len(self.codes), bool)
        mask[which] = True
        pieces = np.repeat(mask, self.counts)
        return _Sources(
            self.codes[which], self.addresses[pieces], self.lengths[pieces], self.counts[which]
        )

    def rows(self, targets: U64) -> tuple[U64, U64, U64]:
        """Return (targets, sources, lengths) of all pieces; ``targets`` is per object."""
        if len(self.addresses) == len(self.codes):
            return targets, self.addresses, self.lengths
        before = np.zeros(len(self.lengths) + 1, np.uint64)
        np.cumsum(self.lengths, out=before[1:])
        starts = np.zeros(len(self.counts), np.int64)
        np.cumsum(self.counts[:-1], out=starts[1:])
        inner = before[:-1] - np.repeat(before[starts], self.counts)
        return np.repeat(targets, self.counts) + inner, self.addresses, self.lengths


def _sources(request: data.PullBatch, places: Places, session: Session) -> _Sources:
    """Check where a batch's bytes are to come from; -600 for objects that are not there."""
    if not 0 <= request.memory < len(session.memory):
        raise ProtocolError(f"no memory {request.memory} of this client")
    memory, count = session.memory[request.memory], len(places)
    at = data.words(request.sources)
    if request.counts or request.lengths:
        lengths, counts = data.words(request.lengths, len(at)), data.numbers(request.counts, count)
        if (counts <= 0).any() or int(counts.sum()) != len(at):
            raise ProtocolError("the pieces of a batch do not add up")
    else:
        lengths, counts = places.sizes, np.ones(count, np.int64)
    if len(at) != len(lengths):
        raise ProtocolError(f"{len(at)} sources for {len(lengths)} pieces")
    end = np.uint64(memory.nbytes)
    outside = (lengths > end) | (at > end - np.minimum(lengths, end))
    starts = np.zeros(count, np.int64)
    np.cumsum(counts[:-1], out=starts[1:])
    wrong = np.zeros(count, bool)
    if count:
        wrong = np.logical_or.reduceat(outside, starts)
        wrong |= np.add.reduceat(np.minimum(lengths, end), starts) != places.sizes
    codes = np.where(wrong, _BAD, 0).astype(np.int64)
    return _Sources(codes, at + np.uint64(memory.base), lengths, counts)
