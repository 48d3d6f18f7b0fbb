"""Byte ranges of objects into several buffers."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import numpy as np

from moonpool.compat.base import Base
from moonpool.compat.casting import Parameter, call, list_of, numbers, ragged_rows, texts
from moonpool.compat.codes import INVALID, NOT_FOUND, code_of
from moonpool.compat.connected import Connected
from moonpool.compat.moving import is_usable, view_at
from moonpool.compat.sessions import Reading
from moonpool.errors import MoonpoolError
from moonpool.transport.base import U64

Answers = list[list[list[int]]]
_OFFSETS = list_of(ragged_rows)


class Ranges(Base):
    """The call that reads ranges."""

    @call(
        Parameter("buffer_ptrs", numbers),
        Parameter("all_keys", list_of(texts)),
        Parameter("all_dst_offsets", _OFFSETS),
        Parameter("all_src_offsets", _OFFSETS),
        Parameter("all_sizes", _OFFSETS),
    )
    def get_into_ranges(
        self, pointers: U64, all_keys: list[list[str]], to: Any, fro: Any, sizes: Any
    ) -> Answers:
        """Copy ranges of objects to offsets in registered buffers: for each buffer, for each of its
        keys, each range. Return the bytes or a code for each range, in the same shape."""
        connected = self._connected
        shape = [len(buffer) for buffer in all_keys]
        if connected is None or not (
            len(pointers) == len(shape)
            and all([len(buffer) for buffer in lists] == shape for lists in (to, fro, sizes))
        ):
            return _refused(len(pointers), to)
        objects: dict[str, Reading | int] = {}
        return [
            [
                list(_ranges(connected, objects, pointer, key, *columns))
                for key, *columns in zip(keys, *rows, strict=True)
            ]
            for pointer, keys, *rows in zip(
                pointers.tolist(), all_keys, to, fro, sizes, strict=True
            )
        ]


def _refused(buffers: int, to: Any) -> Answers:
    shape = [[len(offsets) for offsets in rows] for rows in to] or [[1]]
    shape += [shape[-1]] * (buffers - len(shape))
    return [[[INVALID] * count for count in rows] for rows in shape]


def _ranges(
    connected: Connected,
    objects: dict[str, Reading | int],
    pointer: int,
    key: str,
    to: list[int],
    fro: list[int],
    sizes: list[int],
) -> Iterator[int]:
    if not len(to) == len(fro) == len(sizes):
        yield from [INVALID] * len(to)
        return
    found = _located(connected, objects, key)
    for target, source, size in zip(to, fro, sizes, strict=True):
        if isinstance(found, int):
            yield found
        elif source + size > found.size or not is_usable(connected, pointer + target, size):
            yield INVALID
        else:
            yield _copied(connected, found, pointer + target, source, size)


def _copied(connected: Connected, found: Reading, target: int, source: int, size: int) -> int:
    if not size:
        return 0
    try:
        content = found.loaded(connected)
    except MoonpoolError as error:
        return code_of(error)
    np.frombuffer(view_at(target, size), np.uint8)[:] = content[source : source + size]
    return size


def _located(connected: Connected, objects: dict[str, Reading | int], name: str) -> Reading | int:
    if name not in objects:
        objects[name] = _locate(connected, name) if name else NOT_FOUND
    return objects[name]


def _locate(connected: Connected, name: str) -> Reading | int:
    key, leases = connected.keys.key(name), connected.leases
    try:
        where = connected.store.looking.locate([key], leases.number(), leases.ttl_s)[0]
        if where.retry_after_s:
            return Reading(key, connected.store.size(key))
    except MoonpoolError as error:
        return code_of(error)
    return Reading(key, where.size) if where.generation else where.code or NOT_FOUND
