"""Bytes to and from a Mooncake cluster: the wheel's batch calls, in parts that they can bear.

The wheel answers a put of a key that exists with 0, and fills only one buffer where a batch names a
key twice: keys are asked for before a put, and a batch is read in parts without a key twice.
"""

from __future__ import annotations

import itertools
import time
from collections.abc import Callable, Iterator, Sequence
from typing import Final

import numpy as np

from moonpool.client import memory
from moonpool.client.getting import Getter
from moonpool.client.memory import codes_of
from moonpool.client.mooncake.channel import MooncakeChannel, size_of
from moonpool.client.mooncake.keys import name_of, names_of
from moonpool.client.mooncake.wheel import Wheel
from moonpool.client.putting import Batch, Putter
from moonpool.client.wishes import Wishes
from moonpool.errors import (
    AlreadyExistsError,
    BufferTooSmallError,
    DeadlineError,
    NoSpaceError,
    NotFoundError,
    TransferError,
)
from moonpool.transport.base import I64, U64, Pieces

PART_BYTES: Final = 32 << 20
PART_PIECES: Final = 4096
PART_OBJECTS: Final = 256
"""Larger batches of small objects overrun its queue (-800)."""
PAUSE_S: Final = 0.025
"""A full cluster evicts every 10 ms."""
_EXISTS, _FULL = AlreadyExistsError.code, NoSpaceError.code
_GONE, _MISFIT, _FAILED = NotFoundError.code, BufferTooSmallError.code, TransferError.code


class MooncakePutter(Putter):
    """Puts through the wheel."""

    def __init__(self, wheel: Wheel, channel: MooncakeChannel) -> None:
        self._wheel = wheel
        self._channel_there = channel

    def put(self, batch: Batch, timeout_s: float) -> I64:
        """See Putter. Waits until ``timeout_s`` for room in a full cluster."""
        deadline = time.monotonic() + timeout_s
        names = names_of(batch.keys)
        there = self._channel_there.present(names)
        codes = codes_of(len(names), _EXISTS)
        new = np.flatnonzero(~np.array(there, bool))
        new = new[np.unique([names[i] for i in new.tolist()], return_index=True)[1]]
        for some in _parts(np.sort(new), batch.memory):
            codes[some] = self._put_some(names, batch, some, deadline)
        return codes

    def _put_some(self, names: list[str], batch: Batch, some: I64, deadline: float) -> I64:
        wishes = self._config(batch.wishes)
        codes = codes_of(len(some), _FULL)
        while True:
            left = np.flatnonzero(codes == _FULL)
            which = some[left]
            places, sizes = _lists(batch.memory, which)
            keys = [names[i] for i in which.tolist()]
            got = self._wheel.batch_put_from_multi_buffers(keys, places, sizes, wishes)
            codes[left] = [min(int(code), 0) for code in got]
            if not (codes == _FULL).any() or time.monotonic() + PAUSE_S >= deadline:
                return codes
            time.sleep(PAUSE_S)

    def _config(self, wishes: Wishes) -> object:
        config = self._wheel.config_class()
        config.replica_num = wishes.replicas
        config.with_hard_pin = wishes.pinned
        if wishes.soft_pin_s:
            config.soft_pin_action = self._wheel.soft_pin
            if wishes.soft_pin_s > 0:
                config.soft_pin_ttl_ms = max(1, int(wishes.soft_pin_s * 1000))
        if wishes.preferred:
            config.preferred_segments = [wishes.preferred]
        return config

    def put_one(
        self,
        key: bytes,
        value: memoryview | Pieces,
        size: int,
        parent: bytes,
        wishes: Wishes,
        timeout_s: float,
    ) -> int:
        """Put an object; its memory is registered for the call if it is not."""
        pieces = memory.one_object(value)
        batch = Batch([key], [size], [], pieces, wishes)
        with registered(self._wheel, pieces):
            return int(self.put(batch, timeout_s)[0])


class MooncakeGetter(Getter):
    """Reads through the wheel."""

    def __init__(self, wheel: Wheel, lease_s: float) -> None:
        self._wheel = wheel
        self.lease_s = lease_s
        self._leases = itertools.count(1)

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
        """See Getter. An object is leased while it is read, for as long as the cluster says."""
        deadline = None if timeout_s is None else time.monotonic() + timeout_s
        found, codes = self._sizes(names_of(keys))
        if sizes is not None:
            sizes[:] = found
        room = memory.sizes()
        codes[(codes == 0) & ((room != found) if exact else (room < found))] = _MISFIT
        self._load(keys, _trimmed(memory, np.minimum(found, room)), codes, deadline)
        return codes

    def read_chunk(
        self,
        keys: list[bytes],
        memory_for: Callable[[U64, I64], Pieces],
        lease: int | None = None,
        timeout_s: float | None = None,
    ) -> I64:
        """See Getter."""
        sizes, codes = self._sizes(names_of(keys))
        pieces = memory_for(sizes, codes)
        with registered(self._wheel, pieces):
            self._load(keys, pieces, codes, None)
        return codes

    def read_one(
        self, key: bytes, room_for: Callable[[int], memoryview | Pieces], kept: int | None = None
    ) -> int:
        """See Getter."""
        sizes, codes = self._sizes([name_of(key)])
        if codes[0]:
            return int(codes[0])
        pieces = memory.one_object(room_for(int(sizes[0])))
        with registered(self._wheel, pieces):
            self._load([key], pieces, codes, None)
        return int(codes[0])

    def _sizes(self, names: Sequence[str]) -> tuple[U64, I64]:
        """Return the objects' sizes, and -704 for those that are not there."""
        found = self._wheel.batch_get_replica_desc(list(names)) if names else {}
        sizes = [size_of(found.get(name) or ()) for name in names]
        codes = codes_of(len(names), 0)
        codes[[not size for size in sizes]] = _GONE
        return np.array(sizes, np.uint64), codes

    def _load(self, keys: list[bytes], pieces: Pieces, codes: I64, deadline: float | None) -> None:
        """Read those objects whose code is 0 and set the codes of those that fail."""
        names, left = names_of(keys), np.flatnonzero(codes == 0)
        sizes = pieces.sizes()
        while len(left):
            # Of a key that is named twice one is read now, the others in the next turn.
            first = np.sort(np.unique([names[i] for i in left.tolist()], return_index=True)[1])
            for some in _parts(left[first], pieces):
                if deadline is not None and time.monotonic() >= deadline:
                    codes[some] = DeadlineError.code
                    continue
                which = some.tolist()
                places, lengths = _lists(pieces, some)
                asked = [names[i] for i in which]
                got = self._wheel.batch_get_into_multi_buffers(asked, places, lengths)
                for i, code in zip(which, got, strict=True):
                    codes[i] = 0 if code == int(sizes[i]) else min(int(code), 0) or _FAILED
            left = np.delete(left, first)


class registered:
    """Memory that the wheel may use for the time of a call."""

    def __init__(self, wheel: Wheel, pieces: Pieces) -> None:
        self._wheel = wheel
        inner = slice(int(pieces.starts[0]), int(pieces.starts[-1]))
        self._ranges = zip(
            pieces.addresses[inner].tolist(), pieces.lengths[inner].tolist(), strict=True
        )
        self._done: list[int] = []

    def __enter__(self) -> None:
        # One that overlaps registered memory is refused, and may be used as it is.
        for address, nbytes in self._ranges:
            if nbytes and self._wheel.register_buffer(address, nbytes) == 0:
                self._done.append(address)

    def __exit__(self, *_: object) -> None:
        for address in self._done:
            self._wheel.unregister_buffer(address)


def _trimmed(pieces: Pieces, sizes: U64) -> Pieces:
    return memory.trimmed(pieces, sizes)


def _lists(pieces: Pieces, which: I64) -> tuple[list[list[int]], list[list[int]]]:
    """Return addresses and lengths of objects, without pieces that nothing is left of."""
    addresses, lengths, starts = pieces.addresses, pieces.lengths, pieces.starts
    places: list[list[int]] = []
    sizes: list[list[int]] = []
    for i in which.tolist():
        own = slice(int(starts[i]), int(starts[i + 1]))
        some = lengths[own] > 0
        places.append(addresses[own][some].tolist())
        sizes.append(lengths[own][some].tolist())
    return places, sizes


def _parts(which: I64, pieces: Pieces) -> Iterator[I64]:
    """Yield the objects in parts of bounded bytes, pieces and number, each with one at least."""
    sizes, counts = pieces.sizes(), np.diff(pieces.starts)
    first = nbytes = parts = 0
    for at, i in enumerate(which.tolist()):
        size, count = int(sizes[i]), int(counts[i])
        full = nbytes + size > PART_BYTES or parts + count > PART_PIECES
        if at > first and (full or at - first >= PART_OBJECTS):
            yield which[first:at]
            first, nbytes, parts = at, 0, 0
        nbytes, parts = nbytes + size, parts + count
    if first < len(which):
        yield which[first:]
