"""Registered memory that is lent out piece by piece."""

from __future__ import annotations

import ctypes
import threading
import time
from collections import defaultdict
from types import TracebackType
from typing import Any, Self

from moonpool.compat.base import Base
from moonpool.compat.casting import (
    CastError,
    Parameter,
    anything,
    boolean,
    call,
    refusal,
    u64,
)

MIN_CLASS = 64 << 10
ALIGNMENT = 8 << 20
_OPTIONS = (
    Parameter("max_bytes", u64, 0),
    Parameter("min_size_class", u64, MIN_CLASS),
    Parameter("max_size_class", anything, None),
    Parameter("alignment", u64, ALIGNMENT),
    Parameter("block_on_exhaustion", boolean, True),
    Parameter("default_timeout", anything, None),
    Parameter("max_regions", anything, None),
    Parameter("prewarm_size", anything, None),
    Parameter("prewarm_count", u64, 0),
)


class BufferLease:
    """A piece of registered memory, until it is released."""

    def __init__(self, pool: BufferPool, region: Any, nbytes: int) -> None:
        self._pool = pool
        self._region = region
        self._view: memoryview | None = None
        self._size = nbytes

    @property
    def size(self) -> int:
        """Its length in bytes, also once it is released."""
        return self._size

    @property
    def ptr(self) -> int:
        """Its address. Raises RuntimeError once it is released."""
        if self._region is None:
            raise RuntimeError("buffer lease is closed")
        return ctypes.addressof(self._region)

    @property
    def buffer(self) -> memoryview:
        """Its bytes. Raises BufferError once it is released."""
        if self._region is None:
            raise BufferError("buffer lease is closed")
        if self._view is None:
            self._view = memoryview(self._region).cast("B")[: self._size]
        return self._view

    def release(self) -> None:
        """Give it back. Idempotent."""
        region, self._region = self._region, None
        if region is not None:
            self._view = None
            self._pool._give(region)  # noqa: SLF001 - they are one thing

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, _kind: type[BaseException] | None, _error: object, _trace: TracebackType | None
    ) -> None:
        self.release()

    def __del__(self) -> None:
        self.release()


class BufferPool:
    """Lends registered memory, in pieces of powers of two of bytes.

    max_bytes: how much there may be, in whole multiples of ``alignment``; 0 is any amount.
    """

    def __init__(self, store: Any, *args: Any, **named: Any) -> None:
        """Raises RuntimeError for a store that is not set up and for options that cannot be."""
        if not isinstance(store, Base):
            raise RuntimeError("BufferPool store parameter must be a MooncakeDistributedStore")
        options = _options(args, named)
        if store._connected is None:  # noqa: SLF001
            raise RuntimeError("MooncakeDistributedStore is not initialized")
        self._store: Any = store
        self._min = options["min_size_class"]
        alignment = options["alignment"]
        if not self._min or not alignment:
            raise RuntimeError("min_size_class and alignment must be positive")
        if alignment & (alignment - 1) or alignment < ctypes.sizeof(ctypes.c_void_p):
            raise RuntimeError("alignment must be a power of two and at least sizeof(void*)")
        self._unit = alignment
        limit = -(-options["max_bytes"] // alignment) * alignment
        regions = options["max_regions"]
        self._limit = limit or (1 << 62)
        self._regions_max = regions or (1 << 62)
        self._block = options["block_on_exhaustion"]
        self._timeout = options["default_timeout"]
        self._free: defaultdict[int, list[Any]] = defaultdict(list)
        self._taken = self._regions = self._leased = 0
        self._changed = threading.Condition()
        if options["prewarm_size"] and options["prewarm_count"]:
            self.prewarm(options["prewarm_size"], options["prewarm_count"])

    @call(
        Parameter("size", u64),
        Parameter("block", anything, None),
        Parameter("timeout", anything, None),
    )
    def acquire(self, size: int, block: Any, timeout: Any) -> BufferLease:
        """Lend so many bytes; wait for them if there are none. Raises RuntimeError."""
        waits = self._block if block is None else bool(block)
        limit = self._timeout if timeout is None else timeout
        if limit is not None and (not isinstance(limit, int | float) or limit < 0):
            raise RuntimeError("timeout must be non-negative")
        wanted = self._class_of(size)
        deadline = None if limit is None else time.monotonic() + limit
        with self._changed:
            while True:
                region = self._take(wanted)
                if region is not None:
                    self._leased += 1
                    return BufferLease(self, region, size)
                if not waits:
                    raise RuntimeError("buffer pool is exhausted")
                left = None if deadline is None else deadline - time.monotonic()
                if left is not None and left <= 0:
                    raise RuntimeError("timed out waiting for buffer")
                self._changed.wait(left)

    buffer = acquire

    @call(Parameter("size", u64), Parameter("count", u64))
    def prewarm(self, size: int, count: int) -> None:
        """Have memory for so many pieces ready. Raises RuntimeError."""
        leases = [self.acquire(size, False) for _ in range(count)] if size else []
        for lease in leases:
            lease.release()

    @call()
    def close(self) -> None:
        """Give all memory back. Raises RuntimeError while something is lent."""
        with self._changed:
            if self._leased:
                raise RuntimeError("cannot close buffer pool with active leases")
            for regions in self._free.values():
                for region in regions:
                    self._store.unregister_buffer(ctypes.addressof(region))
            self._free.clear()
            self._taken = self._regions = 0

    def _class_of(self, size: int) -> int:
        wanted = max(size, self._min, 1)
        return int(1 << (wanted - 1).bit_length())

    def _take(self, nbytes: int) -> Any:
        if self._free[nbytes]:
            return self._free[nbytes].pop()
        if self._taken + nbytes > self._limit or self._regions >= self._regions_max:
            return None
        region = (ctypes.c_ubyte * nbytes)()
        if self._store.register_buffer(ctypes.addressof(region), nbytes):
            raise RuntimeError("the memory of a buffer cannot be registered")
        self._taken += nbytes
        self._regions += 1
        return region

    def _give(self, region: Any) -> None:
        with self._changed:
            self._free[len(region)].append(region)
            self._leased -= 1
            self._changed.notify()


def _options(args: tuple[Any, ...], named: dict[str, Any]) -> dict[str, Any]:
    given = dict(zip((each.name for each in _OPTIONS), args, strict=False)) | named
    if len(args) > len(_OPTIONS) or set(given) - {each.name for each in _OPTIONS}:
        raise TypeError(refusal("__init__", _OPTIONS))
    try:
        found = {each.name: each.cast(given.get(each.name, each.default)) for each in _OPTIONS}
    except CastError:
        raise TypeError(refusal("__init__", _OPTIONS)) from None
    for name, kinds in (
        ("max_size_class", int),
        ("default_timeout", int | float),
        ("max_regions", int),
        ("prewarm_size", int),
    ):
        if found[name] is not None and not isinstance(found[name], kinds):
            raise RuntimeError(f"{name}: {found[name]!r} is no number")
    return found
