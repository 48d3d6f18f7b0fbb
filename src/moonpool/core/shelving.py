"""The verbs of nodes with disks, and the hint of those who are about to load."""

from __future__ import annotations

from moonpool.core import codes, offload, promotion
from moonpool.core.catching import bring_in, settle
from moonpool.core.checks import SIZE_MAX, U64_MAX, is_packed
from moonpool.core.disks import Disk, OnDisk
from moonpool.core.keys import KEY_BYTES_MAX, NAMESPACE_BYTES_MAX
from moonpool.core.messages import (
    BATCH_ITEMS_MAX,
    DISK_POLICIES,
    MATCH_DIGESTS_MAX,
    UNSHELVE_REASONS,
    Announced,
    DiskInfo,
    Done,
    Failed,
    Matched,
    MountDisk,
    Mounted,
    Prefetch,
    Shelve,
    Shelved,
    Unshelve,
)
from moonpool.core.room import evict
from moonpool.core.state import GENERATION_MAX, State

_BYTES_MAX = 1 << 60
_TEXT_MAX = 4096


def mount_disk(state: State, request: MountDisk, peer: str) -> Mounted | Failed:
    """Take a disk in. A node that comes back replaces what it had mounted before."""
    info = request.disk
    if not _is_sound(info) or not 0 <= request.generation_max <= GENERATION_MAX:
        return Failed(codes.INVALID, f"the disk of node {info.node[:80]!r} makes no sense")
    for before in list(state.disks.by_handle.values()):
        if before.peer == peer or before.info.node == info.node:
            drop_disk(state, before)
    state.generation = max(state.generation, request.generation_max)
    disk = state.disks.mount(info, peer)
    state.counters["disks_mounted"] += 1
    return Mounted(disk.handle, state.epoch)


def _is_sound(info: DiskInfo) -> bool:
    sizes = info.capacity_bytes, info.promote_bytes, info.offload_bytes
    return (
        0 < len(info.node) <= _TEXT_MAX
        and len(info.address) <= _TEXT_MAX
        and info.policy in DISK_POLICIES
        and all(0 < size <= _BYTES_MAX for size in sizes)
    )


def shelve(state: State, request: Shelve, peer: str) -> Announced | Failed:
    """Adopt what is on a disk: all at first, later only what the node was asked to write."""
    disk = _own(state, request.handle, peer)
    if isinstance(disk, Failed):
        return disk
    if len(request.objects) > BATCH_ITEMS_MAX:
        return Failed(codes.INVALID, f"over {BATCH_ITEMS_MAX} objects")
    bring_in(state, [each.key for each in request.objects])
    rejected: list[int] = []
    for i, each in enumerate(request.objects):
        asked = disk.answered(each.generation)
        if _is_sane(each) and (asked or not disk.ready) and _adopt(state, disk, each):
            state.counters["shelved"] += 1
        else:
            state.counters["shelve_rejected"] += 1
            rejected.append(i)
        _settle(state, each.generation)
    disk.ready = disk.ready or request.last
    promotion.go_on(state)
    return Announced(rejected)


def _own(state: State, handle: int, peer: str) -> Disk | Failed:
    disk = state.disks.by_handle.get(handle)
    if disk is None:
        return Failed(codes.NOT_FOUND, f"no disk {handle}")
    if disk.peer != peer:
        return Failed(codes.ILLEGAL_CLIENT, f"disk {handle} is another node's")
    return disk


def _is_sane(each: Shelved) -> bool:
    return (
        0 < each.generation <= GENERATION_MAX
        and 0 < each.size <= SIZE_MAX
        and 0 <= each.checksum <= U64_MAX
        and is_packed(each.key)
        and (not each.parent or is_packed(each.parent))
        and each.parent != each.key
    )


def _adopt(state: State, disk: Disk, each: Shelved) -> bool:
    """Take an object in, unless another of its key is known that has other bytes."""
    if state.removed.covers(each.key, each.generation):
        return False
    before = state.disks.objects.get(each.key)
    if before is not None:
        if before.disk != disk.handle:
            return False
        state.forget_shelved(before)
    found = state.index.find(each.key)
    if found is not None:
        where = found.where
        if (where.size, where.checksum) != (each.size, each.checksum):
            return False
    state.generation = max(state.generation, each.generation)
    state.add_shelved(
        OnDisk(each.key, each.parent, each.size, each.checksum, each.generation, disk.handle)
    )
    return True


def unshelve(state: State, request: Unshelve, peer: str) -> Done | Failed:
    """Forget what is not on a disk any more, or never came there."""
    disk = _own(state, request.handle, peer)
    if isinstance(disk, Failed):
        return disk
    if len(request.keys) != len(request.generations) or len(request.keys) > BATCH_ITEMS_MAX:
        return Failed(codes.INVALID, f"{len(request.keys)} keys, {len(request.generations)}")
    if request.reason in UNSHELVE_REASONS:
        state.counters[f"disk_{request.reason}"] += len(request.keys)
    for key, generation in zip(request.keys, request.generations, strict=True):
        if disk.answered(generation):
            state.counters["offload_failed"] += 1
        known = state.disks.objects.get(key)
        if known is not None and (known.disk, known.generation) == (disk.handle, generation):
            state.counters["unshelved"] += 1
            state.forget_shelved(known)
        _settle(state, generation)
    promotion.go_on(state)
    return Done()


def _settle(state: State, generation: int) -> None:
    if state.disks.leaving:
        evicted = offload.settled(state, generation)
        if evicted is not None:
            evict(state, evicted)


def drop_disk(state: State, disk: Disk) -> None:
    """Forget a disk. What was to leave memory for it may leave without."""
    settle(state)
    for each in state.disks.unmount(disk):
        state.forget_shelved(each)
    disks = state.disks
    for generation, (of, _) in list(disks.promotions.items()):
        if of is disk:
            del disks.promotions[generation]
    for generation in disk.asked:
        leaving = disks.stay(generation)
        if leaving is not None:
            state.offer([leaving.object])


def prefetch(state: State, request: Prefetch, _peer: str) -> Matched | Failed:
    """Begin to read what only disks have of a prefix; return how many objects are on their way."""
    width, digests = request.digest_bytes, request.digests
    if not 1 <= width <= KEY_BYTES_MAX or len(digests) % width or request.stride < 1:
        return Failed(codes.INVALID, f"{len(digests)} bytes of digests of {width} bytes each")
    if len(digests) // width > MATCH_DIGESTS_MAX or len(request.namespace) > NAMESPACE_BYTES_MAX:
        return Failed(codes.INVALID, "too many digests, or too long a namespace")
    started = 0
    if state.disks.only:
        wanted: list[bytes] = []
        for key in _prefix_keys(state, request):
            in_memory = state.index.find(key)
            if in_memory is None:
                wanted.append(key)
            else:
                # It is about to be used: what is brought in must not push it out.
                in_memory.used = state.stamp()
        started = promotion.hint(state, wanted)
    state.counters["prefetches"] += 1
    state.counters["prefetched"] += started
    return Matched(started)


def _prefix_keys(state: State, request: Prefetch) -> list[bytes]:
    """Return the keys of the longest prefix that is there, in order."""
    width, stride, digests = request.digest_bytes, request.stride, request.digests
    start = bytes((len(request.namespace),)) + request.namespace
    total = len(digests) // width
    keys: list[bytes] = []
    known = state.index.known()

    def there(block: int) -> bytes | None:
        key = start + digests[block * width : (block + 1) * width]
        return key if key in known or key in state.disks.objects else None

    full = 0
    while full + stride <= total and (key := there(full + stride - 1)) is not None:
        keys.append(key)
        full += stride
    for last in range(min(full + stride - 1, total) - 1, full - 1, -1):
        if (key := there(last)) is not None:
            return [*keys, key]
    return keys
