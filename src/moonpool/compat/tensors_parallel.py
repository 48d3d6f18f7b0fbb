"""Tensors that are spread along named axes, and readers that want them spread otherwise."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace as changed
from typing import Any

import numpy as np

from moonpool.compat.base import Base
from moonpool.compat.casting import Parameter, anything, call
from moonpool.compat.codes import INVALID
from moonpool.compat.connected import Connected
from moonpool.compat.copying import CONFIG
from moonpool.compat.moving import is_usable, view_at
from moonpool.compat.parallel import (
    MANIFEST,
    WRITER_MANIFEST,
    ReadTarget,
    axes_of,
    key_of,
    manifest,
    scaled,
    shard_key,
    split_axis,
    split_of,
    with_width,
)
from moonpool.compat.replicate import DEFAULT, ReplicateConfig
from moonpool.compat.tensor_format import (
    HEADER_BYTES,
    Axis,
    Meta,
    elements_of,
    encode,
    meta_of,
    tensor_of,
    torch,
)
from moonpool.compat.tensors import (
    TENSOR,
    TENSORS,
    each_of,
    got,
    load,
    load_bytes,
    put,
    put_bytes,
    put_whole,
)
from moonpool.compat.tensors_tp import put_part, put_split, tensor_at
from moonpool.compat.zerocopy import KEY, KEYS, POINTER, POINTERS, SIZE, SIZES

PARALLELISM = Parameter("parallelism", anything, None)
PARALLELISMS = Parameter("parallelisms", anything, None)
WRITER = Parameter("writer_partition", anything, None)
WRITERS = Parameter("writer_partitions", anything, None)
TARGET = Parameter("target", anything, None)
TARGETS = Parameter("targets", anything, None)
MANY = (PARALLELISMS, CONFIG, WRITERS)
ONE = (PARALLELISM, CONFIG, WRITER)


class TensorsParallel(Base):
    """The calls that take a TensorParallelism, a writer's partition or a ReadTarget."""

    @call(KEY, TENSOR, *ONE)
    def put_tensor_with_parallelism(
        self, key: str, tensor: Any, parallelism: Any, config: ReplicateConfig, writer: Any
    ) -> int:
        """Put this rank's shard of a tensor; return 0 or a code. writer: put this writer's part of
        a whole tensor, by ``rank``, ``size`` and ``split_dim``."""
        return spread(self._connected, key, tensor, parallelism, config, writer)

    @call(KEY, TENSOR, *ONE)
    def upsert_tensor_with_parallelism(
        self, key: str, tensor: Any, parallelism: Any, config: ReplicateConfig, writer: Any
    ) -> int:
        """Do that in place of what may be there."""
        return spread(self._connected, key, tensor, parallelism, config, writer, replace=True)

    @call(KEYS, TENSORS, *MANY)
    def batch_put_tensor_with_parallelism(
        self, keys: list[str], tensors: list[Any], many: Any, config: ReplicateConfig, writers: Any
    ) -> list[int]:
        """Put shards of several tensors; return 0 or a code for each."""
        return _spread_many(self._connected, keys, tensors, many, config, writers)

    @call(KEYS, TENSORS, *MANY)
    def batch_upsert_tensor_with_parallelism(
        self, keys: list[str], tensors: list[Any], many: Any, config: ReplicateConfig, writers: Any
    ) -> list[int]:
        """Do that in place of what may be there."""
        return _spread_many(self._connected, keys, tensors, many, config, writers, replace=True)

    @call(KEY, POINTER, SIZE, *ONE)
    def put_tensor_with_parallelism_from(
        self, key: str, at: int, size: int, parallelism: Any, config: ReplicateConfig, writer: Any
    ) -> int:
        """Put all shards of a tensor in registered memory."""
        return _spread_from(self._connected, key, at, size, parallelism, config, writer)

    @call(KEY, POINTER, SIZE, *ONE)
    def upsert_tensor_with_parallelism_from(
        self, key: str, at: int, size: int, parallelism: Any, config: ReplicateConfig, writer: Any
    ) -> int:
        """Do that in place of what may be there."""
        return _spread_from(
            self._connected, key, at, size, parallelism, config, writer, replace=True
        )

    @call(KEYS, POINTERS, SIZES, *MANY)
    def batch_put_tensor_with_parallelism_from(
        self, keys: list[str], at: Any, sizes: Any, many: Any, config: ReplicateConfig, writers: Any
    ) -> list[int]:
        """Do that for each of several."""
        return _spread_many_from(self._connected, keys, (at, sizes), many, config, writers)

    @call(KEYS, POINTERS, SIZES, *MANY)
    def batch_upsert_tensor_with_parallelism_from(
        self, keys: list[str], at: Any, sizes: Any, many: Any, config: ReplicateConfig, writers: Any
    ) -> list[int]:
        """Do that in place of what may be there."""
        return _spread_many_from(
            self._connected, keys, (at, sizes), many, config, writers, replace=True
        )

    @call(KEY, TARGET)
    def get_tensor_with_parallelism(self, key: str, target: Any) -> Any:
        """Return what a reader wants of a tensor, None if it cannot be had."""
        return wanted(self._connected, key, target)

    @call(KEYS, TARGETS)
    def batch_get_tensor_with_parallelism(self, keys: list[str], targets: Any) -> list[Any]:
        """Return that for each of several."""
        each = _listed(targets, len(keys))
        if each is None:
            return [None] * len(keys)
        return [wanted(self._connected, k, t) for k, t in zip(keys, each, strict=True)]

    @call(KEY, POINTER, SIZE, TARGET)
    def get_tensor_with_parallelism_into(
        self, key: str, buffer_ptr: int, size: int, target: Any
    ) -> Any:
        """Load that into registered memory, behind a header; return a tensor that lies there."""
        return _wanted_into(self._connected, key, buffer_ptr, size, target)

    @call(KEYS, POINTERS, SIZES, TARGETS)
    def batch_get_tensor_with_parallelism_into(
        self, keys: list[str], pointers: Any, sizes: Any, targets: Any
    ) -> list[Any]:
        """Do that for each of several."""
        each = _listed(targets, len(keys))
        if each is None or not len(keys) == len(pointers) == len(sizes):
            return [None] * len(keys)
        rows = zip(keys, pointers.tolist(), sizes.tolist(), each, strict=True)
        return [_wanted_into(self._connected, *row) for row in rows]


# --- putting --------------------------------------------------------------------------------------


def spread(
    connected: Connected | None,
    key: str,
    tensor: Any,
    parallelism: Any,
    config: ReplicateConfig = DEFAULT,
    writer: Any = None,
    *,
    replace: bool = False,
) -> int:
    """Put a shard, a writer's part, or a tensor that is not split; return 0 or a code."""
    meta = meta_of(tensor)
    if meta is None or not key or (writer is not None and parallelism is not None):
        return INVALID
    if writer is not None:
        return _put_writer(connected, key, meta, tensor, writer, config, replace=replace)
    if parallelism is None:
        return put_whole(connected, key, tensor, config, replace=replace)
    axes = axes_of(parallelism)
    axis = None if axes is None else split_axis(axes)
    dim = -1 if axis is None else axis.split_dim
    if axes is None or dim is None or (axis is not None and not 0 <= dim < len(meta.part)):
        return INVALID
    if axis is not None and len(axes) == 1:
        # The tensor is one rank's shard.
        meta = changed(meta, whole=scaled(meta.part, dim, axis.size))
    elif axis is not None:
        # The tensor is whole, and this rank's part of it is put.
        if meta.whole[dim] % axis.size:
            return INVALID
        tensor = tensor.chunk(axis.size, dim)[axis.rank]
    part = tuple(tensor.shape)
    meta = Meta(meta.type, meta.whole, part, with_width(axes, part))
    code = put(connected, key_of(key, axes), meta, tensor, config, replace=replace)
    if code or axis is None:
        return code
    said = manifest(meta, dim, axis.size)
    return put_bytes(connected, key + MANIFEST, [said], config, replace=replace)


def _put_writer(
    connected: Connected | None,
    key: str,
    meta: Meta,
    tensor: Any,
    writer: Any,
    config: ReplicateConfig,
    *,
    replace: bool,
) -> int:
    try:
        rank, size, dim = int(writer.rank), int(writer.size), int(writer.split_dim)
    except (AttributeError, TypeError, ValueError):
        return INVALID
    if not 0 <= rank < size or not 0 <= dim < len(meta.whole) or meta.whole[dim] % size:
        return INVALID
    part = tensor.chunk(size, dim)[rank]
    name = _writer_key(key, rank, size, dim)
    code = put_part(connected, name, meta, part, (rank, size, dim), config, replace=replace)
    if code:
        return code
    said = manifest(meta, dim, size)
    return put_bytes(connected, key + WRITER_MANIFEST, [said], config, replace=replace)


def _writer_key(key: str, rank: int, size: int, dim: int) -> str:
    return f"{key}__writer_{rank}of{size}_sd{dim}"


def _listed(items: Any, count: int) -> Sequence[Any] | None:
    """Return one item for each key; None if they are not as many."""
    if items is None:
        return [None] * count
    if not isinstance(items, list | tuple) or len(items) != count:
        return None
    return items


def _spread_many(
    connected: Connected | None,
    keys: list[str],
    tensors: Sequence[Any],
    parallelisms: Any,
    config: ReplicateConfig,
    writers: Any,
    *,
    replace: bool = False,
) -> list[int]:
    splits, parts = _listed(parallelisms, len(keys)), _listed(writers, len(keys))
    if splits is None or parts is None or len(tensors) != len(keys):
        return [INVALID] * len(keys)
    rows = list(zip(tensors, splits, parts, strict=True))

    def one(key: str, row: Any) -> int:
        tensor, split, part = row
        return spread(connected, key, tensor, split, config, part, replace=replace)

    return each_of(keys, rows, one)


def _spread_from(
    connected: Connected | None,
    key: str,
    address: int,
    size: int,
    parallelism: Any,
    config: ReplicateConfig,
    writer: Any,
    *,
    replace: bool = False,
) -> int:
    tensor = tensor_at(connected, address, size)
    axes = None if parallelism is None else axes_of(parallelism)
    if tensor is None or (parallelism is not None and axes is None):
        return INVALID
    if axes is not None and len(axes) == 1 and axes[0].split_dim is not None:
        ranks, dim = axes[0].size, axes[0].split_dim
        return put_split(connected, key, tensor, ranks, dim, config, replace=replace)
    return spread(connected, key, tensor, parallelism, config, writer, replace=replace)


def _spread_many_from(
    connected: Connected | None,
    keys: list[str],
    places: tuple[Any, Any],
    parallelisms: Any,
    config: ReplicateConfig,
    writers: Any,
    *,
    replace: bool = False,
) -> list[int]:
    splits, parts = _listed(parallelisms, len(keys)), _listed(writers, len(keys))
    pointers, sizes = places
    if splits is None or parts is None or not len(keys) == len(pointers) == len(sizes):
        return [INVALID] * len(keys)
    rows = list(zip(pointers.tolist(), sizes.tolist(), splits, parts, strict=True))

    def one(key: str, row: Any) -> int:
        at, size, split, part = row
        return _spread_from(connected, key, at, size, split, config, part, replace=replace)

    return each_of(keys, rows, one)


# --- reading --------------------------------------------------------------------------------------


def wanted(connected: Connected | None, key: str, target: Any) -> Any:
    """Return what a reader wants of a tensor, None if it cannot be had."""
    if target is not None and not isinstance(target, ReadTarget):
        return None
    if target is None or target.parallelism is None:
        mode = "as_stored" if target is None else target.mode
        found = None if mode == "shard" else got(connected, key)
        return _of_writers(connected, key) if found is None and mode == "full" else found
    axes = axes_of(target.parallelism)
    if axes is None or target.mode == "as_stored":
        return None
    axis = split_axis(axes)
    if axis is None or len(axes) > 1:
        return got(connected, key_of(key, axes)) if target.mode == "shard" else None
    found = _resplit(connected, key, axis, whole=target.mode == "full")
    if found is None and target.mode == "shard":
        return _of_writer(connected, key, axis)
    return found


def _written(connected: Connected | None, key: str) -> tuple[int, int] | None:
    """Return (dimension, parts) of a tensor that writers put, None if they put none."""
    content = b"" if connected is None else load_bytes(connected, key + WRITER_MANIFEST)
    return split_of(content)


def _of_writers(connected: Connected | None, key: str) -> Any:
    """Put a tensor together from its writers' parts."""
    split = _written(connected, key)
    if split is None:
        return None
    dim, size = split
    parts = [got(connected, _writer_key(key, rank, size, dim)) for rank in range(size)]
    return None if any(part is None for part in parts) else torch().cat(parts, dim=dim)


def _of_writer(connected: Connected | None, key: str, axis: Axis) -> Any:
    """Return a writer's part, if it is just what is asked for."""
    if _written(connected, key) != (axis.split_dim, axis.size):
        return None
    return got(connected, _writer_key(key, axis.rank, axis.size, axis.split_dim or 0))


def _resplit(connected: Connected | None, key: str, axis: Axis, *, whole: bool) -> Any:
    """Put a tensor together from its shards, and cut a rank's part out of it."""
    first = load(connected, shard_key(key, 0))
    stored = None if first is None else split_axis(first[0].axes)
    if first is None or stored is None or stored.split_dim is None:
        return None
    parts = [tensor_of(*first)]
    for rank in range(1, stored.size):
        part = got(connected, shard_key(key, rank))
        if part is None:
            return None
        parts.append(part)
    together = torch().cat(parts, dim=stored.split_dim)
    if whole:
        return together
    if together.shape[stored.split_dim] % axis.size:
        return None
    return together.chunk(axis.size, stored.split_dim)[axis.rank].contiguous()


def _wanted_into(
    connected: Connected | None, key: str, address: int, size: int, target: Any
) -> Any:
    if connected is None or not is_usable(connected, address, size):
        return None
    found = wanted(connected, key, target)
    meta = None if found is None else meta_of(found)
    if meta is None or HEADER_BYTES + meta.nbytes > size:
        return None
    view = view_at(address, size)
    view[:HEADER_BYTES] = encode(meta)
    view[HEADER_BYTES : HEADER_BYTES + meta.nbytes] = elements_of(found).data
    return tensor_of(meta, np.frombuffer(view[HEADER_BYTES:], np.uint8)[: meta.nbytes])
