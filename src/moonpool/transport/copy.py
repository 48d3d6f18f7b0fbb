"""Copies between scattered pieces and contiguous objects, with checksums, for whole batches.

A compiled loop (kernels.py, Numba) does it where it can be had; it is loaded in the background
once enough bytes have been moved to be worth it, and a loop over ctypes serves until then.
Addresses are trusted: callers check them against what was registered or mapped.
"""

from __future__ import annotations

import contextlib
import contextvars
import itertools
import logging
import os
import threading
from collections.abc import Callable, Iterator
from typing import Any

import numpy as np

from moonpool.transport import native
from moonpool.transport.base import U64, Pieces

_log = logging.getLogger(__name__)

STEP_BYTES = 256 * 1024
"""Copied and hashed in turn, so that the hash reads from the cache."""
SPLIT_BYTES = 4 * 1024 * 1024
"""Every thread of those that share a batch gets so much at least."""
STREAM_BYTES = 16 * 1024 * 1024
"""Batches from here on would push everything else out of the cache: they go past it."""
THREADS = min(4, os.cpu_count() or 1)
"""One core does not fill a memory bus; many would take them from the engine."""
COMPILE_AFTER_BYTES = 64 * 1024 * 1024
"""Short-lived processes never pay for the compiler."""


class Kernels:
    """The compiled module, once it is there. With ``never`` it is not loaded of itself."""

    def __init__(self, *, never: bool = False) -> None:
        self.module: Any = None
        self._never = never
        self._moved = 0
        self._loader: threading.Thread | None = None
        self._lock = threading.Lock()

    def want(self, nbytes: int) -> None:
        """Count what the fallback moved; start loading when it has been enough."""
        self._moved += nbytes
        if self._moved >= COMPILE_AFTER_BYTES and self._loader is None and not self._never:
            self.load()

    def load(self) -> threading.Thread:
        """Start loading once; return the thread that does it."""
        with self._lock:
            if self._loader is None:
                # No daemon: the compiler must not be cut off while the process ends.
                self._loader = threading.Thread(target=self._load, name="moonpool-kernels")
                self._loader.start()
            return self._loader

    def _load(self) -> None:
        try:
            from moonpool.transport import kernels
        except (ImportError, OSError, AttributeError) as error:
            _log.info("copies use ctypes: %s", error)
        else:
            self.module = kernels


_kernels = Kernels()
_beside = contextvars.ContextVar("moonpool_beside", default=1)
_helpers = threading.BoundedSemaphore(max(1, THREADS - 1))


@contextlib.contextmanager
def beside(workers: int) -> Iterator[None]:
    """Say that so many threads copy at once, for as long as the block lasts: copies in this
    context then take a fair part of the threads."""
    token = _beside.set(workers)
    try:
        yield
    finally:
        _beside.reset(token)


def prepare() -> str:
    """Load the compiled copies now; return the name of what will be used."""
    _kernels.load().join()
    return implementation()


def implementation() -> str:
    """Return which copies are in use: ``numba`` or ``ctypes``."""
    return "ctypes" if _kernels.module is None else "numba"


def kernels(nbytes: int = 0) -> Any:
    """Return the compiled module, None while there is none; ``nbytes`` is what will be moved."""
    if _kernels.module is None:
        _kernels.want(nbytes)
    return _kernels.module


def gather(memory: Pieces, targets: U64, *, checksums: bool = True) -> U64:
    """Copy each object's pieces to its target address; return xxh3_64 of what was copied, (n,);
    without ``checksums`` zeros."""
    memory, targets = coalesce(memory), np.require(targets, np.uint64, ["C", "W"])
    sums = np.zeros(len(memory), np.uint64)
    total = int(memory.lengths.sum())
    large = total >= STREAM_BYTES

    def part(first: int, last: int) -> None:
        pieces = memory.starts[first : last + 1]
        where, result = targets[first:last], sums[first:last]
        kernels = _kernels.module
        if kernels is None:
            _gather(memory, pieces, where, result if checksums else None)
        elif not checksums:
            kernels.collect(memory.addresses, memory.lengths, pieces, where)
        else:
            keep, state = kernels.new_state()
            kernel = kernels.gather_past_cache if large else kernels.gather
            kernel(memory.addresses, memory.lengths, pieces, where, result, state)
            del keep

    _share(memory, total, part)
    return sums


def scatter(sources: U64, memory: Pieces) -> None:
    """Copy each object from its source address to its pieces."""
    memory, sources = coalesce(memory), np.require(sources, np.uint64, ["C", "W"])
    total = int(memory.lengths.sum())
    large = total >= STREAM_BYTES

    def part(first: int, last: int) -> None:
        pieces, where = memory.starts[first : last + 1], sources[first:last]
        if _kernels.module is None:
            _scatter(memory, pieces, where)
            return
        kernel = _kernels.module.scatter_past_cache if large else _kernels.module.scatter
        kernel(memory.addresses, memory.lengths, pieces, where)

    _share(memory, total, part)


def digest(memory: Pieces) -> U64:
    """Return xxh3_64 of each object's pieces in order, shape (n,). Runs in the calling thread."""
    sums = np.zeros(len(memory), np.uint64)
    digest_some(coalesce(memory), 0, len(memory), sums)
    return sums


def digest_some(memory: Pieces, first: int, last: int, sums: U64) -> None:
    """Hash the objects ``first`` up to ``last`` of what ``coalesce`` returned into ``sums``."""
    starts, result = memory.starts[first : last + 1], sums[first:last]
    if _kernels.module is None:
        # A whole object is one call of C anyway.
        a, b = int(starts[0]), int(starts[-1])
        if b - a > last - first:
            _kernels.want(int(memory.lengths[a:b].sum()))
        _digest(memory, starts, result)
        return
    state = np.empty(native.XXH3_STATE_BYTES + 64, np.uint8)
    _kernels.module.digest(
        memory.addresses, memory.lengths, starts, result, native.state_address(state)
    )


class HostCopier:
    """The Copier for memory that the processor reaches itself.

    checksums: what is written without them is good only for readers that map the segment: others,
    and a node that starts again, find a wrong checksum and so no object. To measure their price.
    """

    direct = True

    def __init__(self, *, checksums: bool = True) -> None:
        self._checksums = checksums

    def gather(self, memory: Pieces, targets: U64) -> U64:
        """Copy each object's pieces to its target address; return xxh3_64 of each, (n,)."""
        return gather(memory, targets, checksums=self._checksums)

    def scatter(self, sources: U64, memory: Pieces) -> None:
        """Copy each object from its source address to its pieces."""
        scatter(sources, memory)

    def attach(self, address: int, nbytes: int) -> None:
        """Do nothing."""

    def detach(self, address: int) -> None:
        """Do nothing."""

    @contextlib.contextmanager
    def staging(self, nbytes: int) -> Iterator[int]:
        """Lend memory for as long as the block lasts."""
        memory = np.empty(max(nbytes, 1), np.uint8)
        yield int(memory.ctypes.data)


HOST = HostCopier()


def whole(addresses: U64, sizes: U64) -> Pieces:
    """Return the pieces of objects that are contiguous: one piece each."""
    return Pieces(addresses, sizes, np.arange(len(addresses) + 1, dtype=np.int64))


def coalesce(memory: Pieces) -> Pieces:
    """Return the same memory with neighbouring pieces of an object joined; arrays contiguous."""
    # The compiled loops take arrays that could be written to, though they do not.
    addresses = np.require(memory.addresses, np.uint64, ["C", "W"])
    lengths = np.require(memory.lengths, np.uint64, ["C", "W"])
    starts = np.require(memory.starts, np.int64, ["C", "W"])
    if len(addresses) <= len(memory):
        return Pieces(addresses, lengths, starts)
    opens = np.ones(len(addresses) + 1, bool)
    np.not_equal(addresses[:-1] + lengths[:-1], addresses[1:], out=opens[1:-1])
    opens[starts] = True
    if opens.all():
        return Pieces(addresses, lengths, starts)
    rank = np.cumsum(opens) - 1
    first = np.flatnonzero(opens)
    total = np.zeros(len(addresses) + 1, np.uint64)
    np.cumsum(lengths, out=total[1:])
    joined = total[first[1:]] - total[first[:-1]]
    return Pieces(addresses[first[:-1]], joined, rank[starts])


def _share(memory: Pieces, total: int, part: Callable[[int, int], None]) -> None:
    """Run ``part`` over all objects, on several threads where the batch is large."""
    if _kernels.module is None:
        _kernels.want(total)
    wanted = min(max(1, THREADS // _beside.get()), total // SPLIT_BYTES, len(memory))
    helpers = 0
    while helpers < wanted - 1 and _helpers.acquire(blocking=False):
        helpers += 1
    try:
        cuts = _cuts(memory, total, helpers + 1) if helpers else [0, len(memory)]
        _share_with_threads(part, list(itertools.pairwise(cuts)))
    finally:
        if helpers:
            _helpers.release(helpers)


def _cuts(memory: Pieces, total: int, parts: int) -> list[int]:
    """Return the objects at which so many parts of about as many bytes begin, and the end."""
    done = np.cumsum(memory.sizes())
    inner = np.searchsorted(done, np.arange(1, parts) * (total / parts)) + 1
    return [0, *np.minimum(inner, len(memory)).tolist(), len(memory)]


def _share_with_threads(part: Callable[[int, int], None], ranges: list[tuple[int, int]]) -> None:
    # A new thread starts on an idle core; one that waits in a pool tends to wake on the core of
    # its waker and to stay there for longer than the copy takes.
    helpers = []
    failed: list[Exception] = []

    def helped(first: int, last: int) -> None:
        try:
            part(first, last)
        except Exception as error:  # noqa: BLE001 - raised by the thread that waits
            failed.append(error)

    for first, last in ranges[1:]:
        helper = threading.Thread(target=helped, args=(first, last), name="moonpool-copy")
        try:
            helper.start()
        except RuntimeError:  # no more threads
            part(first, last)
        else:
            helpers.append(helper)
    try:
        part(*ranges[0])
    finally:
        for helper in helpers:
            helper.join()
    if failed:
        raise failed[0]


def _gather(memory: Pieces, starts: Any, targets: U64, sums: U64 | None) -> None:
    memmove = native.memmove
    addresses, lengths = memory.addresses.tolist(), memory.lengths.tolist()
    bounds = starts.tolist()
    for i, at in enumerate(targets.tolist()):
        hasher, hashed = native.Hasher(), at
        for p in range(bounds[i], bounds[i + 1]):
            source, end = addresses[p], addresses[p] + lengths[p]
            while source < end:
                n = min(end - source, STEP_BYTES)
                memmove(at, source, n)
                at += n
                source += n
                if at - hashed >= STEP_BYTES and sums is not None:
                    hasher.update(hashed, at - hashed)
                    hashed = at
        if sums is not None:
            hasher.update(hashed, at - hashed)
            sums[i] = hasher.digest()


def _scatter(memory: Pieces, starts: Any, sources: U64) -> None:
    memmove = native.memmove
    addresses, lengths = memory.addresses.tolist(), memory.lengths.tolist()
    bounds = starts.tolist()
    for i, at in enumerate(sources.tolist()):
        for p in range(bounds[i], bounds[i + 1]):
            memmove(addresses[p], at, lengths[p])
            at += lengths[p]


def _digest(memory: Pieces, starts: Any, sums: U64) -> None:
    bounds = starts.tolist()
    for i, (first, last) in enumerate(itertools.pairwise(bounds)):
        addresses = memory.addresses[first:last].tolist()
        lengths = memory.lengths[first:last].tolist()
        if last - first == 1:
            sums[i] = native.xxh3(addresses[0], lengths[0])
            continue
        hasher = native.Hasher()
        for address, length in zip(addresses, lengths, strict=True):
            hasher.update(address, length)
        sums[i] = hasher.digest()
