"""Taking in what a segment holds, thousands of objects at once.

The same as an Announce for each object, which costs many times as much: checks, places and marks
are done with NumPy, and the objects themselves are made later, or when they are asked for. What is
not plain (its key is known already, or waited for, or on a disk) goes the slow way.
"""

from __future__ import annotations

import struct
from collections.abc import Sequence
from typing import NamedTuple

import numpy as np
import numpy.typing as npt

from moonpool.core import codes
from moonpool.core.backlog import Batch
from moonpool.core.catching import settle
from moonpool.core.checks import SIZE_MAX
from moonpool.core.copies import are_tagged
from moonpool.core.index import pack_places
from moonpool.core.keys import DIGEST_BYTES, NAMESPACE_BYTES_MAX
from moonpool.core.messages import (
    BATCH_ITEMS_MAX,
    PACKED_COLUMNS,
    Announced,
    AnnouncePacked,
    Failed,
    Found,
)
from moonpool.core.nodes import adopt, announcing
from moonpool.core.segments import Segment
from moonpool.core.state import GENERATION_MAX, State

SLOW_MAX = 64
"""Of more objects than these the keys are looked up in the index only, not in the backlog."""

U64 = npt.NDArray[np.uint64]
Flags = npt.NDArray[np.bool_]
Numbers = dict[str, U64]
_LINE = struct.calcsize("<6Q")


class _Told(NamedTuple):
    """What an announcement says: words of shape (n, 2), and columns of shape (n,)."""

    digests: U64
    parents: U64
    numbers: Numbers


def announce_packed(state: State, request: AnnouncePacked, peer: str) -> Announced | Failed:
    """Adopt what a segment holds; the last piece opens it for puts."""
    segment = announcing(state, request.handle, peer)
    if isinstance(segment, Failed):
        return segment
    count = len(request.numbers) // _LINE
    wrong = _what_is_wrong(request, count)
    if wrong:
        return Failed(codes.INVALID, wrong)
    told = _told(request, count)
    sane = _are_sane(segment, told)
    for i in np.flatnonzero(state.removed.suspects(told.digests[:, 0])).tolist():
        generation = int(told.numbers["generation"][i])
        sane[i] &= not state.removed.covers(_key(request.namespace, told.digests[i]), generation)
    rejected = told.numbers["index"][~sane].tolist()
    new = _note(state, request.namespace, told, sane)
    rejected += _take_places(state, segment, request.namespace, told, np.flatnonzero(new))
    slow = np.flatnonzero(sane & ~new)
    if len(slow) > SLOW_MAX:
        settle(state)
    for i in slow.tolist():
        found = _found(request.namespace, told, i)
        if not adopt(state, segment, found):
            rejected.append(found.index)
    state.counters["announced"] += count - len(rejected)
    state.counters["announce_rejected"] += len(rejected)
    segment.ready = segment.ready or request.last
    return Announced(rejected)


def _what_is_wrong(request: AnnouncePacked, count: int) -> str | None:
    if count > BATCH_ITEMS_MAX:
        return f"over {BATCH_ITEMS_MAX} objects"
    if len(request.namespace) > NAMESPACE_BYTES_MAX:
        return f"a namespace of {len(request.namespace)} bytes"
    digests = count * DIGEST_BYTES
    lengths = (len(request.numbers), len(request.digests), len(request.parents))
    if lengths != (count * _LINE, digests, digests):
        return f"arrays of {lengths} bytes for {count} objects"
    return None


def _told(request: AnnouncePacked, count: int) -> _Told:
    """Return what is told, by generation."""
    lines = np.frombuffer(request.numbers, "<u8").reshape(count, len(PACKED_COLUMNS))
    numbers: Numbers = dict(zip(PACKED_COLUMNS, lines.T, strict=True))
    digests = np.frombuffer(request.digests, "<u8").reshape(-1, 2)
    parents = np.frombuffer(request.parents, "<u8").reshape(-1, 2)
    generation = numbers["generation"]
    if (generation[1:] < generation[:-1]).any():
        order = np.argsort(generation, kind="stable")
        digests, parents = digests[order], parents[order]
        return _Told(digests, parents, {name: each[order] for name, each in numbers.items()})
    return _Told(
        digests, parents, {name: np.ascontiguousarray(each) for name, each in numbers.items()}
    )


def _are_sane(segment: Segment, told: _Told) -> Flags:
    generation, size, capacity = (told.numbers[n] for n in ("generation", "size", "capacity"))
    sane: Flags = (generation > 0) & (generation <= np.uint64(GENERATION_MAX))
    sane &= (size > 0) & (size <= capacity) & (capacity <= np.uint64(SIZE_MAX))
    sane &= told.numbers["index"] < np.uint64(segment.table.count)
    sane &= told.numbers["offset"] < np.uint64(segment.space.total_bytes)
    # A digest of zeros stands for no parent; nothing is its own.
    sane &= (told.digests[:, 0] | told.digests[:, 1]) != 0
    sane &= (told.digests != told.parents).any(axis=1)
    return sane


def _note(state: State, namespace: bytes, told: _Told, sane: Flags) -> Flags:
    """Set the marks of keys of which nothing is known; tell which. The others have to be looked
    at one by one, as all have if one of them is told twice."""
    new = np.zeros(len(sane), bool)
    if state.handoffs.waiting:
        return new
    new[sane] = state.index.marks.add_digests(namespace, told.digests[sane])
    known = state.index.known()
    shelved = state.disks.objects
    for i in np.flatnonzero(sane & ~new).tolist():
        key = _key(namespace, told.digests[i])
        if key not in known and key not in shelved:
            for j in np.flatnonzero(new).tolist():
                state.index.marks.remove(_key(namespace, told.digests[j]))
            return np.zeros(len(sane), bool)
    return new


def _take_places(
    state: State, segment: Segment, namespace: bytes, told: _Told, chosen: npt.NDArray[np.intp]
) -> list[int]:
    """Let objects be found whose marks are set; return the table entries of those not taken, whose
    marks are gone then."""
    wanted = {name: column[chosen] for name, column in told.numbers.items()}
    index = wanted["index"].view(np.int64)
    free = segment.table.reserve_many(index)
    offsets, capacities = wanted["offset"].view(np.int64), wanted["capacity"].view(np.int64)
    had = np.zeros(len(chosen), bool)
    had[free], spans, starts, numbers = segment.space.reserve_many(offsets[free], capacities[free])
    for entry in index[free & ~had].tolist():
        segment.table.give(entry)
    for i in chosen[~had].tolist():
        state.index.marks.remove(_key(namespace, told.digests[i]))
    taken = {name: column[had] for name, column in wanted.items()}
    batch = Batch(
        bytes([len(namespace)]) + namespace,
        told.digests[chosen[had]],
        told.parents[chosen[had]],
        pack_places(segment.handle, taken),
        (spans, starts[had[free]], numbers[had[free]]),
    )
    state.copies.tagged |= bool(are_tagged(taken["generation"]).any())
    state.add_later(batch, int(taken["generation"].max(initial=0)))
    rejected: list[int] = index[~had].tolist()
    return rejected


def _key(namespace: bytes, digest: U64) -> bytes:
    return bytes([len(namespace)]) + namespace + digest.tobytes()


def _found(namespace: bytes, told: _Told, i: int) -> Found:
    def of(name: str) -> int:
        return int(told.numbers[name][i])

    return Found(
        key=_key(namespace, told.digests[i]),
        parent=_key(namespace, told.parents[i]) if told.parents[i].any() else b"",
        size=of("size"),
        capacity=of("capacity"),
        checksum=of("checksum"),
        generation=of("generation"),
        index=of("index"),
        offset=of("offset"),
    )


def packed_rows(columns: Sequence[U64]) -> bytes:
    """Return columns (in the order of PACKED_COLUMNS) as AnnouncePacked carries them."""
    return np.ascontiguousarray(np.stack(columns, axis=1)).astype("<u8", copy=False).tobytes()
