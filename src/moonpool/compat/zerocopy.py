"""Puts from and gets into memory that the caller names by address."""

from __future__ import annotations

from moonpool.compat.base import Base
from moonpool.compat.casting import (
    Parameter,
    Ragged,
    boolean,
    call,
    numbers,
    ragged,
    text,
    texts,
    u64,
)
from moonpool.compat.codes import INTERNAL, INVALID, OK, code_of
from moonpool.compat.copying import CONFIG
from moonpool.compat.moving import aligned, flat, get_one, get_pieces, put_one, put_pieces, together
from moonpool.compat.replicate import ReplicateConfig, for_nothing
from moonpool.errors import MoonpoolError
from moonpool.transport.base import U64

KEY = Parameter("key", text)
KEYS = Parameter("keys", texts)
POINTER = Parameter("buffer_ptr", u64)
POINTERS = Parameter("buffer_ptrs", numbers)
SIZE = Parameter("size", u64)
SIZES = Parameter("sizes", numbers)
ALL_POINTERS = Parameter("all_buffer_ptrs", ragged)
ALL_SIZES = Parameter("all_sizes", ragged)
SAME_NODE = Parameter("prefer_alloc_in_same_node", boolean, False)


class ZeroCopy(Base):
    """The calls that copy nothing on their own. Addresses must lie in registered memory."""

    @call(POINTER, SIZE)
    def register_buffer(self, buffer_ptr: int, size: int) -> int:
        """Let calls use memory; return 0, or -600 for what overlaps registered memory."""
        connected = self._connected
        if connected is None:
            return INVALID
        try:
            connected.store.register_memory(buffer_ptr, size)
        except (MoonpoolError, OverflowError) as error:
            return code_of(error)
        return OK

    @call(POINTER)
    def unregister_buffer(self, buffer_ptr: int) -> int:
        """Take memory back by its first address; return 0, or -600 if it is not registered."""
        connected = self._connected
        if connected is None:
            return INVALID
        try:
            connected.store.unregister_memory(buffer_ptr)
        except MoonpoolError as error:
            return code_of(error)
        return OK

    @call(KEY, POINTER, SIZE, CONFIG)
    def put_from(self, key: str, buffer_ptr: int, size: int, config: ReplicateConfig) -> int:
        """Put an object; return 0 or a code. Nothing is put of size 0."""
        connected = self._connected
        if connected is None:
            return INVALID
        if not size:
            return for_nothing(config)
        return put_one(connected, key, buffer_ptr, size, config)

    @call(KEYS, POINTERS, SIZES, CONFIG)
    def batch_put_from(
        self, keys: list[str], pointers: U64, sizes: U64, config: ReplicateConfig
    ) -> list[int]:
        """Put objects; return 0 or a code for each."""
        connected = self._connected
        if connected is None or not len(keys) == len(pointers) == len(sizes):
            return [INVALID] * len(keys)
        if config.prefer_alloc_in_same_node:
            return [INVALID] * len(keys)
        return put_pieces(connected, keys, flat(pointers, sizes), config)

    @call(KEYS, ALL_POINTERS, ALL_SIZES, CONFIG)
    def batch_put_from_multi_buffers(
        self, keys: list[str], pointers: Ragged, sizes: Ragged, config: ReplicateConfig
    ) -> list[int]:
        """Put objects that lie in several places each; return 0 or a code for each."""
        connected = self._connected
        if connected is None:
            return []
        if not len(keys) == len(pointers.starts) - 1 == len(sizes.starts) - 1:
            return [INVALID] * len(keys)
        pieces, _ = aligned(pointers, sizes)
        return put_pieces(connected, keys, pieces, config)

    @call(KEY, POINTER, SIZE)
    def get_into(self, key: str, buffer_ptr: int, size: int) -> int:
        """Load an object into memory that is at least as large; return its size, or a code."""
        connected = self._connected
        return INVALID if connected is None else get_one(connected, key, buffer_ptr, size)

    @call(KEYS, POINTERS, SIZES)
    def batch_get_into(self, keys: list[str], pointers: U64, sizes: U64) -> list[int]:
        """Load objects; return a size or a code for each."""
        connected = self._connected
        if connected is None or not len(keys) == len(pointers) == len(sizes):
            return [INVALID] * len(keys)
        return get_pieces(connected, keys, flat(pointers, sizes))

    @call(KEYS, ALL_POINTERS, ALL_SIZES, SAME_NODE)
    def batch_get_into_multi_buffers(
        self, keys: list[str], pointers: Ragged, sizes: Ragged, _same_node: bool
    ) -> list[int]:
        """Load objects into several places each, which are together exactly as large; return a size
        or a code for each."""
        connected = self._connected
        if connected is None or not len(keys) == len(pointers.starts) - 1 == len(sizes.starts) - 1:
            return [INVALID] * len(keys)
        pieces, even = aligned(pointers, sizes)
        codes = get_pieces(connected, keys, pieces, exact=True)
        return [code if fits else INVALID for code, fits in zip(codes, even.tolist(), strict=True)]

    @call(
        KEY,
        POINTER,
        Parameter("metadata_buffer_ptr", u64),
        SIZE,
        Parameter("metadata_size", u64),
        CONFIG,
    )
    def put_from_with_metadata(
        self,
        key: str,
        data: int,
        metadata: int,
        size: int,
        metadata_size: int,
        config: ReplicateConfig,
    ) -> int:
        """Put an object of metadata and data, which lie in two places; return 0 or a code."""
        connected = self._connected
        if connected is None:
            return INVALID
        if config.prefer_alloc_in_same_node:
            return INTERNAL
        spans = [(p, n) for p, n in ((metadata, metadata_size), (data, size)) if n]
        if not spans:
            return OK
        pieces = together([p for p, _ in spans], [n for _, n in spans])
        return put_pieces(connected, [key], pieces, config)[0]
