"""The way to a segment on the same host: copy from and to the mapping."""

from __future__ import annotations

import numpy as np

from moonpool.errors import InvalidArgumentError, NotFoundError, TransferError
from moonpool.transport import copy, small
from moonpool.transport.base import I64, Copier, Pieces, Places, Written
from moonpool.transport.batch import chosen, fitting, picked, some
from moonpool.transport.segment import Segment
from moonpool.transport.warm import Warmer

_BAD = InvalidArgumentError.code
_GONE = NotFoundError.code
_FAILED = TransferError.code


class ShmTransport:
    """Reads and writes a mapped segment; the Transport of a client on the node's host.

    copier: reaches the memory that Pieces describe.
    """

    def __init__(self, segment: Segment, copier: Copier = copy.HOST) -> None:
        self.segment = segment
        self._copier = copier
        self._warmer = Warmer(segment)
        copier.attach(segment.address, segment.geometry.data_bytes)

    def read(self, places: Places, memory: Pieces) -> I64:
        """Copy objects into memory; -704 for one whose space was reused, -600 for a bad place."""
        segment = self.segment
        if self._copier.direct and len(places) == len(memory) and small.is_small(places):
            try:
                return np.array(small.read(segment, places, memory), np.int64)
            except TransferError:
                return np.full(len(places), _FAILED, np.int64)
        codes = fitting(places, memory)
        try:
            keep = segment.parts()
            codes[(codes == 0) & ~segment.inside(places)] = _BAD
            which = np.flatnonzero(codes == 0)
            intact = segment.intact(chosen(places, which))
            codes[which[~intact]] = _GONE
            which = which[intact]
            taken = chosen(places, which)
            sources = taken.offsets + np.uint64(segment.address)
            self._copier.scatter(sources, some(memory, which))
            codes[which[~segment.intact(taken)]] = _GONE
            del keep
            self._warm(taken)
        except TransferError:
            codes[codes == 0] = _FAILED
        return codes

    def write(
        self, places: Places, memory: Pieces, keys: list[bytes], parents: list[bytes]
    ) -> Written:
        """Write objects and commit their slots; -700 for a slot that a later writer has."""
        segment, count = self.segment, len(places)
        checksums = np.zeros(count, np.uint64)
        if len(keys) != count or len(memory) != count or len(parents) not in (0, count):
            return Written(np.full(count, _BAD, np.int64), checksums)
        codes = fitting(places, memory)
        try:
            if self._copier.direct and small.is_small_write(places):
                results, sums = small.write(segment, places, memory, keys, parents)
                return Written(np.array(results, np.int64), np.array(sums, np.uint64))
            keep = segment.parts()
            which = np.flatnonzero(codes == 0)
            codes[which] = segment.begin(
                chosen(places, which), picked(keys, which), picked(parents, which)
            )
            which = np.flatnonzero(codes == 0)
            taken = chosen(places, which)
            targets = taken.offsets + np.uint64(segment.address)
            checksums[which] = self._copier.gather(some(memory, which), targets)
            codes[which] = segment.seal(taken, checksums[which])
            del keep
            self._warm(taken)
        except TransferError:
            codes[codes == 0] = _FAILED
        return Written(codes, checksums)

    def write_buffer(
        self, place: small.Place, value: memoryview, key: bytes, parent: bytes
    ) -> tuple[int, int]:
        """Write one small object without arrays; return its code and checksum."""
        try:
            return small.write_buffer(self.segment, place, value, key, parent)
        except TransferError:
            return _FAILED, 0

    def read_buffer(self, place: small.Place, target: memoryview) -> int:
        """Read one small object without arrays; return its code."""
        try:
            return small.read_buffer(self.segment, place, target)
        except TransferError:
            return _FAILED

    def close(self) -> None:
        """Unmap the segment."""
        self._warmer.close()
        self._copier.detach(self.segment.address)
        self.segment.close()

    def _warm(self, moved: Places) -> None:
        if self._copier.direct:
            self._warmer.moved(int(moved.sizes.sum()))
