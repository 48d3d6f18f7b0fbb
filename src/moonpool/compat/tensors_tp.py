"""Tensors that are split for tensor parallelism: an object for each rank."""

from __future__ import annotations

from typing import Any

import numpy as np

from moonpool.compat.base import Base
from moonpool.compat.casting import Parameter, call, i32
from moonpool.compat.codes import INVALID, OK
from moonpool.compat.connected import Connected
from moonpool.compat.copying import CONFIG
from moonpool.compat.moving import view_at
from moonpool.compat.parallel import shard_key, with_width
from moonpool.compat.replicate import DEFAULT, ReplicateConfig
from moonpool.compat.tensor_format import HEADER_BYTES, Axis, Meta, meta_of, tensor_of
from moonpool.compat.tensors import (
    TENSOR,
    TENSORS,
    each_of,
    each_place,
    got,
    got_into,
    meta_at,
    put,
    put_whole,
)
from moonpool.compat.zerocopy import KEY, KEYS, POINTER, POINTERS, SIZE, SIZES

RANK, RANKS = Parameter("tp_rank", i32, 0), Parameter("tp_size", i32, 1)
DIM = Parameter("split_dim", i32, 0)
BASE_KEYS = Parameter("base_keys", KEYS.cast)
TP = (RANK, RANKS, DIM)


class TensorsTp(Base):
    """The calls that split. ``tp_size`` of 1 or less is a tensor that is not split."""

    @call(KEY, TENSOR, *TP)
    def put_tensor_with_tp(
        self, key: str, tensor: Any, _rank: int, tp_size: int, split_dim: int
    ) -> int:
        """Put all ranks' parts of a tensor; the dimension must be a multiple of the ranks."""
        return put_split(self._connected, key, tensor, tp_size, split_dim)

    @call(KEY, TENSOR, CONFIG, *TP)
    def pub_tensor_with_tp(
        self,
        key: str,
        tensor: Any,
        config: ReplicateConfig,
        _rank: int,
        tp_size: int,
        split_dim: int,
    ) -> int:
        """Do that, kept as the config says."""
        return put_split(self._connected, key, tensor, tp_size, split_dim, config)

    @call(BASE_KEYS, TENSORS, *TP)
    def batch_put_tensor_with_tp(
        self, keys: list[str], tensors: list[Any], _rank: int, tp_size: int, split_dim: int
    ) -> list[int]:
        """Put all parts of several tensors; -600 for all if one is none."""
        return _put_many(self._connected, keys, tensors, tp_size, split_dim, DEFAULT)

    @call(BASE_KEYS, TENSORS, CONFIG, *TP)
    def batch_pub_tensor_with_tp(
        self,
        keys: list[str],
        tensors: list[Any],
        config: ReplicateConfig,
        _rank: int,
        tp_size: int,
        split_dim: int,
    ) -> list[int]:
        """Do that, kept as the config says."""
        return _put_many(self._connected, keys, tensors, tp_size, split_dim, config)

    @call(KEY, *TP)
    def get_tensor_with_tp(self, key: str, tp_rank: int, tp_size: int, _dim: int) -> Any:
        """Return a rank's part, None if it cannot be had."""
        return got(self._connected, part_key(key, tp_rank, tp_size))

    @call(BASE_KEYS, RANK, RANKS)
    def batch_get_tensor_with_tp(self, keys: list[str], tp_rank: int, tp_size: int) -> list[Any]:
        """Return a rank's parts of several tensors."""
        return [got(self._connected, part_key(key, tp_rank, tp_size)) for key in keys]

    @call(KEY, POINTER, SIZE, *TP)
    def get_tensor_with_tp_into(
        self, key: str, buffer_ptr: int, size: int, tp_rank: int, tp_size: int, _dim: int
    ) -> Any:
        """Load a rank's part into registered memory; return a tensor that lies there."""
        return got_into(self._connected, part_key(key, tp_rank, tp_size), buffer_ptr, size)

    @call(BASE_KEYS, POINTERS, SIZES, RANK, RANKS)
    def batch_get_tensor_with_tp_into(
        self, keys: list[str], pointers: Any, sizes: Any, tp_rank: int, tp_size: int
    ) -> list[Any]:
        """Do that for each of several."""
        if not len(keys) == len(pointers) == len(sizes):
            return [INVALID] * len(keys)
        names = [part_key(key, tp_rank, tp_size) for key in keys]
        places = zip(names, pointers.tolist(), sizes.tolist(), strict=True)
        return [got_into(self._connected, *place) for place in places]

    @call(KEY, POINTER, SIZE, *TP)
    def put_tensor_with_tp_from(
        self, key: str, buffer_ptr: int, size: int, _rank: int, tp_size: int, split_dim: int
    ) -> int:
        """Put all parts of a tensor of which header and elements lie in registered memory."""
        return put_split_from(self._connected, key, buffer_ptr, size, tp_size, split_dim)

    @call(BASE_KEYS, POINTERS, SIZES, *TP)
    def batch_put_tensor_with_tp_from(
        self, keys: list[str], pointers: Any, sizes: Any, _rank: int, tp_size: int, split_dim: int
    ) -> list[int]:
        """Do that for each of several."""

        def one(key: str, address: int, size: int) -> int:
            return put_split_from(self._connected, key, address, size, tp_size, split_dim)

        return each_place(keys, pointers, sizes, one)


def part_key(key: str, rank: int, ranks: int) -> str:
    """Return the key of a rank's part."""
    return shard_key(key, rank) if ranks > 1 else key


def put_split(
    connected: Connected | None,
    key: str,
    tensor: Any,
    ranks: int,
    dim: int,
    config: ReplicateConfig = DEFAULT,
    *,
    replace: bool = False,
) -> int:
    """Put all ranks' parts of a tensor; return 0 or the first code."""
    if ranks <= 1:
        return put_whole(connected, key, tensor, config, replace=replace)
    meta = meta_of(tensor)
    if meta is None or not key or not 0 <= dim < len(meta.whole) or meta.whole[dim] % ranks:
        return INVALID
    for rank, part in enumerate(tensor.chunk(ranks, dim)):
        code = put_part(
            connected, shard_key(key, rank), meta, part, (rank, ranks, dim), config, replace=replace
        )
        if code:
            return code
    return OK


def put_part(
    connected: Connected | None,
    key: str,
    whole: Meta,
    part: Any,
    place: tuple[int, int, int],
    config: ReplicateConfig,
    *,
    replace: bool = False,
) -> int:
    """Put one part of a whole: (rank, ranks, dimension)."""
    rank, ranks, dim = place
    shape = tuple(part.shape)
    axes = with_width((Axis("tp", rank, ranks, dim),), shape)
    meta = Meta(whole.type, whole.whole, shape, axes)
    return put(connected, key, meta, part, config, replace=replace)


def tensor_at(connected: Connected | None, address: int, size: int) -> Any:
    """Return the tensor whose header and elements lie in registered memory, None if none does."""
    meta = meta_at(connected, address, size)
    if meta is None:
        return None
    return tensor_of(meta, np.frombuffer(view_at(address, size)[HEADER_BYTES:], np.uint8))


def put_split_from(
    connected: Connected | None, key: str, address: int, size: int, ranks: int, dim: int
) -> int:
    """Put all parts of a tensor in registered memory."""
    tensor = tensor_at(connected, address, size)
    return INVALID if tensor is None else put_split(connected, key, tensor, ranks, dim)


def _put_many(
    connected: Connected | None,
    keys: list[str],
    tensors: list[Any],
    ranks: int,
    dim: int,
    config: ReplicateConfig,
) -> list[int]:
    if any(meta_of(each) is None for each in tensors):
        return [INVALID] * len(keys)

    def one(key: str, tensor: Any) -> int:
        return put_split(connected, key, tensor, ranks, dim, config)

    return each_of(keys, tensors, one)
