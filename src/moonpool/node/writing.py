"""Taking slots for a client that writes, whichever way its bytes come."""

from __future__ import annotations

import time

import numpy as np

from moonpool.errors import InvalidArgumentError, InvalidWriteError, ProtocolError
from moonpool.node.writers import Writers
from moonpool.protocol import data
from moonpool.transport import layout
from moonpool.transport.base import I64, Places
from moonpool.transport.batch import chosen, picked
from moonpool.transport.segment import Segment

_STALE = InvalidWriteError.code


def places_of(request: data.WriteBatch | data.PullBatch) -> Places:
    """Return the places of a batch; ProtocolError unless its arrays are of one length."""
    offsets = data.words(request.offsets)
    count = len(offsets)
    if len(request.keys) != count or len(request.parents) not in (0, count):
        raise ProtocolError(f"{len(request.keys)} keys for {count} objects")
    return Places(
        indexes=data.numbers(request.indexes, count),
        offsets=offsets,
        sizes=data.words(request.sizes, count),
        capacities=data.words(request.capacities, count),
        generations=data.words(request.generations, count),
        checksums=np.zeros(count, np.uint64),
    )


def begin(
    segment: Segment,
    places: Places,
    keys: list[bytes],
    parents: list[bytes],
    writers: Writers,
    client: str,
) -> I64:
    """Take the slots that the client may write; return a code for each, shape (n,).

    Called inside ``writers.writing``, so that no fence is missed. -700: a generation that the
    client may not write any more, or that no master can have granted yet; else as Segment.begin.
    """
    if float(places.sizes.sum(dtype=np.float64)) > segment.geometry.data_bytes:
        raise InvalidArgumentError("a batch larger than the segment")
    refused = writers.refused(client, places.generations)
    refused |= places.generations >= np.uint64(layout.generation_limit(time.time()))
    codes: I64 = np.where(refused, _STALE, 0).astype(np.int64)
    allowed = np.flatnonzero(codes == 0)
    codes[allowed] = segment.begin(
        chosen(places, allowed), picked(keys, allowed), picked(parents, allowed)
    )
    return codes
