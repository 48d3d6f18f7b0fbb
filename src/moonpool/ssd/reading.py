"""One read of many objects: which calls it takes, and what has arrived whole."""

from __future__ import annotations

import threading
from collections.abc import Sequence
from typing import NamedTuple

from moonpool.errors import InvalidArgumentError
from moonpool.ssd.records import BLOCK_BYTES, Record
from moonpool.ssd.spans import Part, Span, Tails, spans_of
from moonpool.transport import native

STORED = ""
GONE, CORRUPT = "gone", "corrupt"
"""Reasons for what is not there, and for what is not what was put."""


class Wanted(NamedTuple):
    """An object to read, as it must be; ``address`` is a whole block's."""

    key: bytes
    generation: int
    size: int
    checksum: int
    address: int


class Call(NamedTuple):
    """A call to the volume."""

    extent: int
    span: Span


class Reading:
    """Objects on their way. ``reasons`` has for each the empty string, or why it is not there.

    The thread that brings an object's last bytes compares them with its checksum.
    """

    def __init__(self, wanted: Sequence[Wanted]) -> None:
        self.reasons = [GONE] * len(wanted)
        self._wanted = wanted
        self._parts: dict[int, Part] = {}
        self._by_extent: dict[int, list[Part]] = {}
        self._tails = Tails(len(wanted))
        self._left: dict[int, int] = {}
        self._lock = threading.Lock()

    def add(self, index: int, record: Record) -> None:
        """Say where a wanted object is. Raises InvalidArgumentError for memory that is not a whole
        block's."""
        address = self._wanted[index].address
        if address % BLOCK_BYTES:
            raise InvalidArgumentError(f"address {address:#x} is no whole block's")
        part = self._parts[index] = Part(index, record.offset, address, record.size)
        self._by_extent.setdefault(record.extent, []).append(part)

    def calls(self) -> list[Call]:
        """Return the calls that bring it all."""
        calls = [
            Call(extent, span)
            for extent, parts in self._by_extent.items()
            for span in spans_of(parts, self._tails)
        ]
        for call in calls:
            for index in call.span.owners:
                self._left[index] = self._left.get(index, 0) + 1
                self.reasons[index] = STORED
        return calls

    def failed(self, span: Span, reason: str) -> None:
        """Take note that a call failed."""
        with self._lock:
            for index in span.owners:
                self.reasons[index] = reason

    def arrived(self, span: Span) -> bool:
        """Take note that a call is done; tell whether what is complete now is what was put."""
        owners, left = span.owners, self._left
        if len(owners) == 1 and left[owners[0]] == 1:  # no other call is about it
            done = owners if self.reasons[owners[0]] == STORED else []
        else:
            with self._lock:
                for index in owners:
                    left[index] -= 1
                done = [i for i in owners if not left[i] and self.reasons[i] == STORED]
        whole = True
        for index in done:
            part, each = self._parts[index], self._wanted[index]
            self._tails.settle(part)
            if native.xxh3(each.address, each.size) != each.checksum:
                self.reasons[index] = CORRUPT
                whole = False
        return whole
