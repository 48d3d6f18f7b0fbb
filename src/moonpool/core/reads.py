"""Lookups, which change nothing, and the verbs that locate and lease."""

from __future__ import annotations

import math

from moonpool.core import codes, offload, promotion
from moonpool.core.catching import bring_in
from moonpool.core.checks import is_packed
from moonpool.core.index import Object
from moonpool.core.keys import DIGEST_BYTES, KEY_BYTES_MAX, NAMESPACE_BYTES_MAX
from moonpool.core.messages import (
    BATCH_ITEMS_MAX,
    MATCH_DIGESTS_MAX,
    Existing,
    Exists,
    Failed,
    Get,
    Got,
    Hold,
    Located,
    Match,
    Matched,
    MatchKeys,
    Release,
)
from moonpool.core.state import State

_MISSING = Located(code=codes.NOT_FOUND)
_NOT_READY = Located(code=codes.NOT_READY)
_INVALID = Located(code=codes.INVALID)
_U64_MAX = (1 << 64) - 1


def match(state: State, request: Match, _peer: str) -> Matched | Failed:
    """Return how many leading blocks are there."""
    width, stride, digests = request.digest_bytes, request.stride, request.digests
    if not 1 <= width <= KEY_BYTES_MAX or len(digests) % width:
        return Failed(codes.INVALID, f"{len(digests)} bytes of digests of {width} bytes each")
    total = len(digests) // width
    if total > MATCH_DIGESTS_MAX or stride < 1:
        text = f"{total} digests, stride {stride}: {MATCH_DIGESTS_MAX} and at least 1 are allowed"
        return Failed(codes.INVALID, text)
    count = 0
    if len(request.namespace) <= NAMESPACE_BYTES_MAX:
        if width == DIGEST_BYTES:
            count = state.index.marks.prefix(request.namespace, digests, min(stride, total + 1))
        else:
            count = _prefix(state, request)
    counters = state.counters
    counters["matches"] += 1
    counters["match_blocks"] += total
    counters["match_hit_blocks"] += count
    return Matched(count, bool(state.disks.only))


def _prefix(state: State, request: Match) -> int:
    """Do what the marks do for 16-byte digests, for names of any other length."""
    known, stride, digests = state.index.known(), request.stride, request.digests
    on_disk = state.disks.objects
    width = request.digest_bytes
    start = bytes((len(request.namespace),)) + request.namespace
    total = len(digests) // width

    def there(block: int) -> bool:
        key = start + digests[block * width : (block + 1) * width]
        return key in known or key in on_disk

    full = 0
    while full + stride <= total and there(full + stride - 1):
        full += stride
    for last in range(min(full + stride - 1, total) - 1, full - 1, -1):
        if there(last):
            return last + 1
    return full


def match_keys(state: State, request: MatchKeys, _peer: str) -> Matched | Failed:
    """Return how many leading keys are there."""
    if len(request.keys) > BATCH_ITEMS_MAX:
        return _too_many(request.keys)
    bring_in(state, request.keys)
    count = 0
    for key in request.keys:
        if state.index.by_key.get(key) is None and key not in state.disks.objects:
            break
        count += 1
    state.counters["matches"] += 1
    state.counters["match_blocks"] += len(request.keys)
    state.counters["match_hit_blocks"] += count
    return Matched(count)


def exists(state: State, request: Exists, _peer: str) -> Existing | Failed:
    """Return which keys are there."""
    if len(request.keys) > BATCH_ITEMS_MAX:
        return _too_many(request.keys)
    bring_in(state, request.keys)
    known, on_disk = state.index.by_key, state.disks.objects
    if on_disk:
        return Existing(bytes(key in known or key in on_disk for key in request.keys))
    return Existing(bytes(map(known.__contains__, request.keys)))


def get(state: State, request: Get, peer: str) -> Got | Failed:
    """Locate objects and lease those found."""
    if len(request.keys) > BATCH_ITEMS_MAX:
        return _too_many(request.keys)
    bring_in(state, request.keys)
    find = state.index.by_key.get
    known = [find(key) for key in request.keys]
    there = [each for each in known if each is not None]
    failed = _lease(state, request, peer, there)
    if failed is not None:
        return failed
    if state.copies.heat.on:
        state.copies.heat.read(there)
    objects = [_MISSING if each is None else each.where for each in known]
    misses, counted = known.count(None), len(known)
    if misses:
        # All places first: bringing one from disk may push another out that is not leased.
        for i, each in enumerate(known):
            if each is None:
                objects[i] = _why_not(state, request.keys[i])
        direct = sum(bool(each.disk) for each in objects)
        coming = sum(each.retry_after_s > 0 and not each.disk for each in objects)
        # These are asked for again, and count then.
        misses, counted = misses - coming - direct, counted - coming
        state.counters["get_waits"] += coming
    state.counters["gets"] += counted
    state.counters["get_hits"] += counted - misses
    state.counters["get_misses"] += misses
    return Got(objects)


def hold(state: State, request: Hold, peer: str) -> Matched | Failed:
    """Lease the leading keys that are there; return how many."""
    if len(request.keys) > BATCH_ITEMS_MAX:
        return _too_many(request.keys)
    bring_in(state, request.keys)
    known: list[Object] = []
    on_disk: list[bytes] = []
    for key in request.keys:
        each = state.index.by_key.get(key)
        if each is not None:
            known.append(each)
        elif key in state.disks.objects:
            on_disk.append(key)
        else:
            break
    failed = _lease(state, request, peer, known)
    for key in on_disk:
        promotion.bring(state, key)
    return failed or Matched(len(known) + len(on_disk))


def release(state: State, request: Release, peer: str) -> None:
    """End leases."""
    for number in request.leases[:BATCH_ITEMS_MAX]:
        state.offer(state.leases.release(peer, number))


def _lease(state: State, request: Get | Hold, peer: str, known: list[Object]) -> Failed | None:
    """Lease and touch objects. A lease of 0 seconds is none."""
    lease_s = request.lease_s
    if not math.isfinite(lease_s) or lease_s < 0 or not 0 <= request.lease <= _U64_MAX:
        return Failed(codes.INVALID, f"lease {request.lease} of {lease_s} s")
    state.expire_leases()
    if state.groups.of:
        known = state.groups.widened(known)
    # Uses that overlap are one: a load is held by its planner, then read by its worker.
    fresh = [each for each in known if not each.leases] if state.eviction.counts else None
    if lease_s and known:
        if not state.leases.has_room(peer, request.lease, len(known)):
            return Failed(codes.INVALID, "too many leases, or too many objects in them")
        expires = state.now + min(lease_s, state.config.lease_s_max)
        state.leases.take(peer, request.lease, known, expires)
    state.touch(known)
    if fresh:
        state.eviction.used(fresh)
    if state.disks.selective:
        offload.were_used(state, known)
    return None


def _why_not(state: State, key: bytes) -> Located:
    if state.disks.by_handle:
        coming = promotion.bring(state, key)
        if coming is not None:
            return coming
    if key in state.in_progress:
        return _NOT_READY
    return _MISSING if is_packed(key) else _INVALID


def _too_many(keys: list[bytes]) -> Failed:
    return Failed(codes.INVALID, f"{len(keys)} keys; {BATCH_ITEMS_MAX} are allowed")
