"""Taking in what a segment holds, thousands of objects at once.

The same as an Announce for each object, which costs several times as much: checks, table entries
and marks are done with NumPy, and what is left for each object is one turn of a loop. What is not
plain (its key is known already, or waited for, or on a disk) goes the slow way.
"""

from __future__ import annotations

import struct
from collections.abc import Sequence

import numpy as np
import numpy.typing as npt

from moonpool.core import codes
from moonpool.core.checks import SIZE_MAX
from moonpool.core.copies import are_tagged
from moonpool.core.index import PLACE_BYTES, Object, pack_places
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

U64 = npt.NDArray[np.uint64]
Numbers = dict[str, U64]
_LINE = struct.calcsize("<6Q")
_DIGEST = struct.Struct(f"{DIGEST_BYTES}s")


def announce_packed(state: State, request: AnnouncePacked, peer: str) -> Announced | Failed:
    """Adopt what a segment holds; the last piece opens it for puts."""
    segment = announcing(state, request.handle, peer)
    if isinstance(segment, Failed):
        return segment
    count = len(request.numbers) // _LINE
    wrong = _what_is_wrong(request, count)
    if wrong:
        return Failed(codes.INVALID, wrong)
    lines = np.frombuffer(request.numbers, "<u8").reshape(count, len(PACKED_COLUMNS))
    numbers: Numbers = dict(zip(PACKED_COLUMNS, lines.T, strict=True))
    order = np.argsort(numbers["generation"], kind="stable")
    numbers = {name: np.ascontiguousarray(column[order]) for name, column in numbers.items()}
    keys = _keys(request.namespace, request.digests, order)
    parents = _keys(request.namespace, request.parents, order)
    sane = _are_sane(segment, numbers)
    for i, (key, parent) in enumerate(zip(keys, parents, strict=True)):
        if not key or key == parent:
            sane[i] = False
    heads = np.frombuffer(request.digests, "<u8")[::2][order]
    for i in np.flatnonzero(state.removed.suspects(heads)).tolist():
        sane[i] &= not state.removed.covers(keys[i], int(numbers["generation"][i]))
    slow = _slow(state, keys)
    rejected = numbers["index"][~sane].tolist()
    fast = np.flatnonzero(sane & ~slow)
    rejected += _adopt_fast(state, segment, fast, keys, parents, numbers)
    for i in np.flatnonzero(sane & slow).tolist():
        found = _found(keys[i], parents[i], numbers, i)
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


def _keys(namespace: bytes, digests: bytes, order: npt.NDArray[np.intp]) -> list[bytes]:
    """Return the packed keys of digests; an empty one for a digest of zeros, which stands for no
    parent."""
    head, none = bytes([len(namespace)]) + namespace, bytes(DIGEST_BYTES)
    rows = np.frombuffer(digests, np.uint8).reshape(-1, DIGEST_BYTES)[order]
    cut = _DIGEST.iter_unpack(rows.tobytes())
    if rows.any(axis=1).all():
        return [head + digest for (digest,) in cut]
    return [b"" if digest == none else head + digest for (digest,) in cut]


def _are_sane(segment: Segment, numbers: Numbers) -> npt.NDArray[np.bool_]:
    generation, size, capacity = numbers["generation"], numbers["size"], numbers["capacity"]
    sane: npt.NDArray[np.bool_] = (generation > 0) & (generation <= np.uint64(GENERATION_MAX))
    sane &= (size > 0) & (size <= capacity) & (capacity <= np.uint64(SIZE_MAX))
    sane &= numbers["index"] < np.uint64(segment.table.count)
    sane &= numbers["offset"] < np.uint64(segment.space.total_bytes)
    return sane


def _slow(state: State, keys: list[bytes]) -> npt.NDArray[np.bool_]:
    """Tell which objects have to be looked at one by one."""
    by_key, shelved = state.index.by_key, state.disks.objects
    if state.handoffs.waiting or len(set(keys)) != len(keys):
        slow = np.ones(len(keys), bool)
    elif shelved:
        slow = np.fromiter((k in by_key or k in shelved for k in keys), bool, len(keys))
    else:
        slow = np.fromiter(map(by_key.__contains__, keys), bool, len(keys))
    return slow


def _adopt_fast(
    state: State,
    segment: Segment,
    chosen: npt.NDArray[np.intp],
    keys: list[bytes],
    parents: list[bytes],
    numbers: Numbers,
) -> list[int]:
    """Make objects readable whose keys are not there; return the table entries not taken."""
    if not chosen.size:
        return []
    index = numbers["index"][chosen].view(np.int64)
    free = segment.table.reserve_many(index)
    rejected: list[int] = index[~free].tolist()
    chosen = chosen[free]
    wanted = {name: column[chosen] for name, column in numbers.items()}
    places = pack_places(segment.handle, wanted)
    offsets, capacities = wanted["offset"].view(np.int64), wanted["capacity"].view(np.int64)
    spans, numbered = segment.space.reserve_many(offsets, capacities)
    stamp = state.stamps(len(spans))
    added: list[Object] = []
    for at, (span, number, i) in enumerate(zip(spans, numbered, chosen.tolist(), strict=True)):
        if span is None:
            segment.table.give(int(wanted["index"][at]))
            rejected.append(int(wanted["index"][at]))
            continue
        start, used = at * PLACE_BYTES, stamp + at
        place = places[start : start + PLACE_BYTES]
        made = span.owners[number] = Object(-1, used, used, keys[i], parents[i], place)
        added.append(made)
    state.add_objects(added, int(wanted["generation"].max(initial=0)))
    if are_tagged(wanted["generation"]).any():
        state.copies.made(added)
    return rejected


def _found(key: bytes, parent: bytes, numbers: Numbers, i: int) -> Found:
    def of(name: str) -> int:
        return int(numbers[name][i])

    return Found(
        key=key,
        parent=parent,
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
