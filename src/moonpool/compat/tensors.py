"""Whole tensors: to and from objects."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import numpy as np

from moonpool.compat.base import Base, wishes_of
from moonpool.compat.casting import Parameter, anything, call, plain_list
from moonpool.compat.codes import INVALID, OK, code_of, put_code
from moonpool.compat.connected import Connected
from moonpool.compat.copying import CONFIG
from moonpool.compat.moving import is_usable, put_one, view_at
from moonpool.compat.replicate import DEFAULT, ReplicateConfig, refused
from moonpool.compat.tensor_format import (
    HEADER_BYTES,
    Meta,
    decode,
    elements_of,
    encode,
    meta_of,
    tensor_of,
)
from moonpool.compat.upserts import keeping, replacing
from moonpool.compat.zerocopy import KEY, KEYS, POINTER, POINTERS, SIZE, SIZES
from moonpool.errors import AlreadyExistsError, MoonpoolError

TENSOR = Parameter("tensor", anything)
TENSORS = Parameter("tensors_list", plain_list)


class Tensors(Base):
    """The calls that put and get tensors as they are."""

    @call(KEY, TENSOR)
    def put_tensor(self, key: str, tensor: Any) -> int:
        """Put a tensor; return 0 or a code."""
        return put_whole(self._connected, key, tensor)

    @call(KEY, TENSOR, CONFIG)
    def pub_tensor(self, key: str, tensor: Any, config: ReplicateConfig) -> int:
        """Put a tensor, kept as the config says."""
        return put_whole(self._connected, key, tensor, config)

    @call(KEY, TENSOR)
    def upsert_tensor(self, key: str, tensor: Any) -> int:
        """Put a tensor in place of one that may be there."""
        return put_whole(self._connected, key, tensor, replace=True)

    @call(KEY, TENSOR, CONFIG)
    def upsert_pub_tensor(self, key: str, tensor: Any, config: ReplicateConfig) -> int:
        """Do that, kept as the config says."""
        return put_whole(self._connected, key, tensor, config, replace=True)

    @call(KEYS, TENSORS)
    def batch_put_tensor(self, keys: list[str], tensors: list[Any]) -> list[int]:
        """Put tensors; return 0 or a code for each."""
        return each_of(keys, tensors, lambda k, t: put_whole(self._connected, k, t))

    @call(KEYS, TENSORS, CONFIG)
    def batch_pub_tensor(
        self, keys: list[str], tensors: list[Any], config: ReplicateConfig
    ) -> list[int]:
        """Put tensors, kept as the config says."""
        return each_of(keys, tensors, lambda k, t: put_whole(self._connected, k, t, config))

    @call(KEYS, TENSORS)
    def batch_upsert_tensor(self, keys: list[str], tensors: list[Any]) -> list[int]:
        """Put tensors in place of those that may be there."""
        return each_of(keys, tensors, lambda k, t: put_whole(self._connected, k, t, replace=True))

    @call(KEYS, TENSORS, CONFIG)
    def batch_upsert_pub_tensor(
        self, keys: list[str], tensors: list[Any], config: ReplicateConfig
    ) -> list[int]:
        """Do that, kept as the config says."""
        return each_of(
            keys, tensors, lambda k, t: put_whole(self._connected, k, t, config, replace=True)
        )

    @call(KEY)
    def get_tensor(self, key: str) -> Any:
        """Return a tensor, None if it cannot be had or is none."""
        return got(self._connected, key)

    @call(KEYS)
    def batch_get_tensor(self, keys: list[str]) -> list[Any]:
        """Return tensors, None for each that cannot be had."""
        return [got(self._connected, key) for key in keys]

    # --- in registered memory -----------------------------------------------------------------

    @call(KEY, POINTER, SIZE)
    def get_tensor_into(self, key: str, buffer_ptr: int, size: int) -> Any:
        """Load a tensor's object into registered memory; return a tensor that lies there."""
        return got_into(self._connected, key, buffer_ptr, size)

    @call(KEYS, POINTERS, SIZES)
    def batch_get_tensor_into(self, keys: list[str], pointers: Any, sizes: Any) -> list[Any]:
        """Do that for each of several."""
        if not len(keys) == len(pointers) == len(sizes):
            return [INVALID] * len(keys)
        places = zip(keys, pointers.tolist(), sizes.tolist(), strict=True)
        return [got_into(self._connected, *place) for place in places]

    @call(KEY, POINTER, SIZE)
    def put_tensor_from(self, key: str, buffer_ptr: int, size: int) -> int:
        """Put a tensor of which header and elements lie in registered memory."""
        return put_from(self._connected, key, buffer_ptr, size)

    @call(KEYS, POINTERS, SIZES)
    def batch_put_tensor_from(self, keys: list[str], pointers: Any, sizes: Any) -> list[int]:
        """Do that for each of several."""
        return _put_many_from(self._connected, keys, pointers, sizes, replace=False)

    @call(KEY, POINTER, SIZE)
    def upsert_tensor_from(self, key: str, buffer_ptr: int, size: int) -> int:
        """Do that in place of one that may be there."""
        return put_from(self._connected, key, buffer_ptr, size, replace=True)

    @call(KEYS, POINTERS, SIZES)
    def batch_upsert_tensor_from(self, keys: list[str], pointers: Any, sizes: Any) -> list[int]:
        """Do that for each of several."""
        return _put_many_from(self._connected, keys, pointers, sizes, replace=True)

    @call(KEY, TENSOR)
    def get_tensor_into_cuda(self, key: str, tensor: Any) -> int:
        """Load a tensor's elements into one on a GPU, of the same size; return the bytes or a
        code."""
        return _into_cuda(self._connected, key, tensor)

    @call(KEYS, TENSORS)
    def batch_get_tensor_into_cuda(self, keys: list[str], tensors: list[Any]) -> list[int]:
        """Do that for each of several."""
        return each_of(keys, tensors, lambda k, t: _into_cuda(self._connected, k, t))


def each_of(keys: list[str], items: Sequence[Any], do: Callable[[str, Any], int]) -> list[int]:
    """Call for each key and item; -600 for all if there are not as many."""
    if len(keys) != len(items):
        return [INVALID] * len(keys)
    return [do(key, item) for key, item in zip(keys, items, strict=True)]


def each_place(
    keys: list[str], pointers: Any, sizes: Any, do: Callable[[str, int, int], int]
) -> list[int]:
    """Call for each key and place."""
    if not len(keys) == len(pointers) == len(sizes):
        return [INVALID] * len(keys)
    places = zip(keys, pointers.tolist(), sizes.tolist(), strict=True)
    return [do(*place) for place in places]


def put_whole(
    connected: Connected | None,
    key: str,
    tensor: Any,
    config: ReplicateConfig = DEFAULT,
    *,
    replace: bool = False,
) -> int:
    """Put a tensor that is not split; return 0 or a code."""
    meta = meta_of(tensor)
    return INVALID if meta is None else put(connected, key, meta, tensor, config, replace=replace)


def put(
    connected: Connected | None,
    key: str,
    meta: Meta,
    tensor: Any,
    config: ReplicateConfig = DEFAULT,
    *,
    replace: bool = False,
) -> int:
    """Put a tensor with its header; return 0 or a code."""
    return put_bytes(connected, key, [encode(meta), elements_of(tensor)], config, replace=replace)


def put_bytes(
    connected: Connected | None,
    key: str,
    parts: list[Any],
    config: ReplicateConfig = DEFAULT,
    *,
    replace: bool = False,
) -> int:
    """Put an object that consists of parts; return 0 or a code."""
    if connected is None or not key:
        return INVALID
    code = refused(config, 1, same_node=True)
    if code:
        return code

    if replace:
        (code,), config = keeping(connected, [key], config)
        if code:
            return code

    def attempt() -> int:
        name, wishes = connected.keys.key(key), wishes_of(connected, config, [key])
        try:
            connected.store.put_from_parts(name, parts, wishes=wishes)
        except AlreadyExistsError:
            return OK
        return OK

    try:
        return replacing(connected, [key], attempt) if replace else attempt()
    except (MoonpoolError, OSError) as error:
        return put_code(code_of(error))


def load_bytes(connected: Connected, key: str) -> bytes:
    """Return an object's bytes, none if they cannot be had."""
    try:
        return connected.store.get(connected.keys.key(key), lease=connected.leases.number())
    except (MoonpoolError, OSError):
        return b""


def load(connected: Connected | None, key: str) -> tuple[Meta, Any] | None:
    """Return a tensor's header and its elements, None if they cannot be had."""
    if connected is None or not key:
        return None
    content = load_bytes(connected, key)
    meta = decode(content)
    if meta is None:
        return None
    return meta, np.frombuffer(content, np.uint8)[HEADER_BYTES:].copy()


def got(connected: Connected | None, key: str) -> Any:
    """Return a tensor, None if it cannot be had or is none."""
    found = load(connected, key)
    return None if found is None else tensor_of(*found)


def got_into(connected: Connected | None, key: str, address: int, size: int) -> Any:
    """Load a tensor's object into registered memory; return a tensor that lies there."""
    if connected is None or not key or not size or not is_usable(connected, address, size):
        return None
    view = view_at(address, size)
    try:
        lease = connected.leases.number()
        nbytes = connected.store.get_into(connected.keys.key(key), view, lease=lease)
    except (MoonpoolError, OSError):
        return None
    meta = decode(view[:nbytes])
    if meta is None:
        return None
    return tensor_of(meta, np.frombuffer(view[HEADER_BYTES:nbytes], np.uint8))


def meta_at(connected: Connected | None, address: int, size: int) -> Meta | None:
    """Return what the header in registered memory says; None if there is none."""
    if connected is None or size < HEADER_BYTES or not is_usable(connected, address, size):
        return None
    return decode(view_at(address, size))


def put_from(
    connected: Connected | None, key: str, address: int, size: int, *, replace: bool = False
) -> int:
    """Put a tensor of which header and elements lie in registered memory."""
    if connected is None or not key or meta_at(connected, address, size) is None:
        return INVALID

    kept = keeping(connected, [key], DEFAULT)[1] if replace else DEFAULT

    def attempt() -> int:
        return put_one(connected, key, address, size, kept)

    try:
        return replacing(connected, [key], attempt) if replace else attempt()
    except MoonpoolError as error:
        return code_of(error)


def _put_many_from(
    connected: Connected | None, keys: list[str], pointers: Any, sizes: Any, *, replace: bool
) -> list[int]:
    """Put tensors in registered memory; -600 for all if one is none."""
    codes = each_place(keys, pointers, sizes, lambda _, *at: _checked(connected, *at))
    if any(codes):
        return [INVALID] * len(keys)

    def one(key: str, address: int, size: int) -> int:
        return put_from(connected, key, address, size, replace=replace)

    return each_place(keys, pointers, sizes, one)


def _checked(connected: Connected | None, address: int, size: int) -> int:
    return INVALID if meta_at(connected, address, size) is None else OK


def _into_cuda(connected: Connected | None, key: str, tensor: Any) -> int:
    meta = meta_of(tensor)
    if meta is None or not tensor.is_cuda:
        return INVALID
    found = load(connected, key)
    if found is None or found[0].nbytes != meta.nbytes:
        return INVALID
    tensor.copy_(tensor_of(*found).view_as(tensor))
    return meta.nbytes
