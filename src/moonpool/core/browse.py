"""What people ask: list, stat and status. Nothing here changes anything."""

from __future__ import annotations

from collections import Counter
from itertools import islice
from typing import Final

from moonpool.core import codes, draining
from moonpool.core.catching import settle
from moonpool.core.copies import wanted_of
from moonpool.core.disks import Disk, OnDisk
from moonpool.core.index import Object, children_of
from moonpool.core.messages import (
    BATCH_ITEMS_MAX,
    DiskStatus,
    Failed,
    GetStatus,
    List,
    Listed,
    ObjectInfo,
    SegmentStatus,
    Stat,
    Status,
)
from moonpool.core.retiring import healthy_hosts
from moonpool.core.segments import Put
from moonpool.core.state import State

_DISKS_AT: Final = 1 << 61
"""Above all serials: where objects that are on disks only are listed."""


def list_objects(state: State, request: List, _peer: str) -> Listed | Failed:
    """Return a page of objects by age. A page may be short or empty and still have a next."""
    if not 1 <= request.limit <= BATCH_ITEMS_MAX or request.after < 0:
        text = f"limit {request.limit}, after {request.after}: 1 to {BATCH_ITEMS_MAX} and 0 or more"
        return Failed(codes.INVALID, text)
    if request.after >= _DISKS_AT:
        return _list_disks(state, request)
    settle(state)
    entries, more = state.index.page(request.after, state.config.list_scan_max)
    found: list[ObjectInfo] = []
    for each in entries:
        if each.alive and _is_listed(each, request):
            found.append(_info(state, each))
            if len(found) == request.limit:
                last = each.serial if more or each is not entries[-1] else _behind(state)
                return Listed(found, last)
    return Listed(found, entries[-1].serial if more else _behind(state))


def _behind(state: State) -> int:
    """Return where the list goes on behind the objects in memory."""
    return _DISKS_AT if state.disks.only else 0


def _list_disks(state: State, request: List) -> Listed:
    """Return a page of the objects that are on disks only, in any order that lasts."""
    at = min(request.after - _DISKS_AT, len(state.disks.objects))
    found: list[ObjectInfo] = []
    scanned = islice(state.disks.objects.values(), at, at + state.config.list_scan_max)
    for each in scanned:
        at += 1
        if _is_listed(each, request) and state.index.find(each.key) is None:
            found.append(_disk_info(state, each))
            if len(found) == request.limit:
                break
    return Listed(found, _DISKS_AT + at if at < len(state.disks.objects) else 0)


def _is_listed(each: Object | OnDisk, request: List) -> bool:
    cut = each.key[0] + 1
    if request.namespace is not None and each.key[1:cut] != request.namespace:
        return False
    return each.key.startswith(request.prefix, cut)


def stat(state: State, request: Stat, _peer: str) -> Listed:
    """Return one object, also one that is still being put."""
    put = state.in_progress.get(request.key)
    if put is not None:
        return Listed([_put_info(state, put)], 0)
    found = state.index.find(request.key)
    if found is None and request.key in state.disks.objects:
        return Listed([_disk_info(state, state.disks.objects[request.key])], 0)
    return Listed([] if found is None else [_info(state, found)], 0)


def status(state: State, _request: GetStatus, _peer: str) -> Status:
    """Return the pool at a glance."""
    pending: dict[int, int] = {}
    unfinished: Counter[int] = Counter()
    for put in state.puts.values():
        unfinished.update(slot.segment for slot in put.slots + put.held)
        for slot in () if put.generation in state.copies.under_way else put.held:
            pending[slot.segment] = pending.get(slot.segment, 0) + put.capacity
    segments = [
        SegmentStatus(
            info=each.info,
            used_bytes=each.space.used_bytes,
            objects=each.table.used - unfinished[handle],
            ready=each.ready,
            pending_bytes=pending.get(handle, 0),
            draining=each.draining,
        )
        for handle, each in state.segments.by_handle.items()
    ]
    return Status(
        epoch=state.epoch,
        uptime_s=state.now,
        objects=state.index.count,
        puts_in_progress=len(state.in_progress),
        leases=state.leases.count,
        clients=len({*state.leases.peers(), *state.pending_bytes} - {""}),
        segments=segments,
        counters=dict(state.counters),
        disks=[_disk_status(each) for each in state.disks.by_handle.values()],
        disk_only=state.disks.only,
        drains=draining.statuses(state),
        thin=len(state.copies.thin),
        spare=len(state.copies.spares),
        copying=len(state.copies.under_way),
    )


def _disk_status(disk: Disk) -> DiskStatus:
    return DiskStatus(
        info=disk.info,
        used_bytes=disk.used_bytes,
        objects=disk.objects,
        ready=disk.ready,
        offloading_bytes=disk.asked_bytes,
        promoting_bytes=disk.promoting_bytes,
    )


def _info(state: State, each: Object) -> ObjectInfo:
    where = each.where
    soft_pin_s = state.soft.rest_s(each, state.now) if each.pinned else 0.0
    return ObjectInfo(
        key=each.key,
        parent=each.parent_key,
        size=where.size,
        checksum=where.checksum,
        generation=where.generation,
        complete=True,
        pinned=each.pinned and not soft_pin_s,
        children=sum(1 for _ in children_of(each)),
        leases=each.leases,
        created_s_ago=state.ago(each.serial),
        used_s_ago=state.ago(each.used),
        segments=[_name(state, slot.segment) for slot in where.slots],
        disk=_disk_of(state, each.key),
        soft_pin_s=soft_pin_s,
        replicas=wanted_of(where.generation),
        hosts=len(healthy_hosts(state, each)),
        group=state.groups.of.get(each, b""),
    )


def _disk_of(state: State, key: bytes) -> str:
    shelved = state.disks.objects.get(key)
    return "" if shelved is None else state.disks.by_handle[shelved.disk].info.node


def _disk_info(state: State, each: OnDisk) -> ObjectInfo:
    """Return what is known of an object that is on a disk only."""
    return ObjectInfo(
        key=each.key,
        parent=each.parent,
        size=each.size,
        checksum=each.checksum,
        generation=each.generation,
        complete=True,
        pinned=False,
        children=0,
        leases=0,
        created_s_ago=0.0,
        used_s_ago=0.0,
        segments=[],
        disk=_disk_of(state, each.key),
        replicas=wanted_of(each.generation),
        hosts=0,
    )


def _put_info(state: State, put: Put) -> ObjectInfo:
    return ObjectInfo(
        key=put.key,
        parent=put.parent,
        size=put.size,
        checksum=0,
        generation=put.generation,
        complete=False,
        pinned=put.pinned,
        children=0,
        leases=0,
        created_s_ago=state.now - put.started,
        used_s_ago=state.now - put.started,
        segments=[_name(state, slot.segment) for slot in put.slots],
        replicas=wanted_of(put.generation),
        hosts=len(put.slots),
        group=put.group,
    )


def _name(state: State, handle: int) -> str:
    info = state.segments.by_handle[handle].info
    return f"{info.node}/{info.name}"
