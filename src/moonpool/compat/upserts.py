"""Puts that replace what is there. Objects are immutable here: the old one goes, a new one comes,
and between the two there is none."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import numpy as np

from moonpool.compat.base import Base
from moonpool.compat.casting import Parameter, buffer, call, list_of, text
from moonpool.compat.codes import INVALID, NOT_FOUND, OK
from moonpool.compat.connected import Connected
from moonpool.compat.copying import CONFIG, joined, put_value
from moonpool.compat.moving import flat, put_one, put_pieces, usable
from moonpool.compat.replicate import DEFAULT, ReplicateConfig, for_nothing, refused, regrouped
from moonpool.compat.zerocopy import KEY, KEYS, POINTER, POINTERS, SIZE, SIZES
from moonpool.errors import MoonpoolError
from moonpool.transport.base import U64

TRIES = 8


class Upserts(Base):
    """The calls that replace."""

    @call(KEY, Parameter("value", buffer), CONFIG)
    def upsert(self, key: str, value: memoryview, config: ReplicateConfig) -> int:
        """Put an object in place of one that may be there; return 0 or a code."""
        connected = self._connected
        if connected is None:
            return INVALID
        return _upsert_value(connected, key, value, config)

    def upsert_parts(self, key: Any, *parts: Any, config: Any = DEFAULT) -> int:
        """Do that with an object that consists of parts; nothing if they are all empty."""
        whole = joined("upsert_parts", key, parts, config)
        connected = self._connected
        if connected is None:
            return INVALID
        if not whole:
            return for_nothing(config)
        return _upsert_value(connected, text(key), whole, config)

    @call(KEYS, Parameter("values", list_of(buffer)), CONFIG)
    def upsert_batch(
        self, keys: list[str], values: list[memoryview], config: ReplicateConfig
    ) -> int:
        """Do that with each of several; return 0 or the first code."""
        connected = self._connected
        if connected is None or len(keys) != len(values):
            return INVALID
        code = refused(config, len(keys)) if keys else for_nothing(config)
        if code or not all(keys) or any(not value.nbytes for value in values):
            return code or INVALID
        groups = config.group_ids or [None] * len(keys)
        ones = [config if each is None else regrouped(config, [each]) for each in groups]
        each = zip(keys, values, ones, strict=True)
        codes = [_upsert_value(connected, k, v, one) for k, v, one in each]
        return next((code for code in codes if code), OK)

    @call(KEY, POINTER, SIZE, CONFIG)
    def upsert_from(self, key: str, buffer_ptr: int, size: int, config: ReplicateConfig) -> int:
        """Do that from registered memory. Nothing is done with size 0."""
        connected = self._connected
        if connected is None:
            return INVALID
        if not size:
            return for_nothing(config)
        return _upsert_from(connected, [key], flat([buffer_ptr], [size]), config)[0]

    @call(KEYS, POINTERS, SIZES, CONFIG)
    def batch_upsert_from(
        self, keys: list[str], pointers: U64, sizes: U64, config: ReplicateConfig
    ) -> list[int]:
        """Do that for each of several; return 0 or a code for each."""
        connected = self._connected
        if connected is None or not len(keys) == len(pointers) == len(sizes):
            return [INVALID] * len(keys)
        return _upsert_from(connected, keys, flat(pointers, sizes), config)


def replacing(connected: Connected, keys: Sequence[str], put: Callable[[], int]) -> int:
    """Call a put of keys, none of them empty, until no older objects are in its way."""
    names = connected.keys.keys(keys)
    code = OK
    for _ in range(TRIES):
        removed = connected.store.remove_batch(names, True)
        code = put()
        if code or all(each in (OK, NOT_FOUND) for each in removed):
            break
    return code


def keeping(
    connected: Connected, keys: Sequence[str], config: ReplicateConfig
) -> tuple[list[int], ReplicateConfig]:
    """Return a code for each key, -600 where it would leave its group, and the config with the
    groups that they have."""
    old = [_group_of(connected, key) if key else None for key in keys]
    asked = config.group_ids
    if asked is None:
        groups = [each or "" for each in old]
        return [OK] * len(keys), regrouped(config, groups) if any(groups) else config
    each = zip(old, asked, strict=True)
    return [OK if have in (None, group) else INVALID for have, group in each], config


def _group_of(connected: Connected, key: str) -> str | None:
    """Return the name of an object's group, None if there is no such object."""
    try:
        return connected.keys.group_name(connected.store.stat(connected.keys.key(key)).group)
    except MoonpoolError:
        return None


def _upsert_value(
    connected: Connected, key: str, value: memoryview | bytes, config: ReplicateConfig
) -> int:
    code = refused(config, 1)
    size = memoryview(value).nbytes
    if code or not key or not size or size > connected.setup.local_buffer_size:
        return code or INVALID
    codes, kept = keeping(connected, [key], config)
    if codes[0]:
        return codes[0]
    return replacing(connected, [key], lambda: put_value(connected, key, value, kept))


def _upsert_from(
    connected: Connected, keys: list[str], pieces: Any, config: ReplicateConfig
) -> list[int]:
    code = refused(config, len(keys))
    if code or not keys:
        return [code] * len(keys)
    refusals, kept = keeping(connected, keys, config)
    fine = usable(connected, pieces) & (pieces.sizes() > 0) & (np.array(refusals) == OK)
    going = [key for key, is_fine in zip(keys, fine.tolist(), strict=True) if key and is_fine]
    codes = [INVALID] * len(keys)

    def put() -> int:
        codes[:] = put_pieces(connected, keys, pieces, kept)
        return OK

    if len(keys) == 1 and going:
        address, size = int(pieces.addresses[0]), int(pieces.lengths[0])
        return [
            replacing(connected, going, lambda: put_one(connected, keys[0], address, size, kept))
        ]
    replacing(connected, going, put)
    return [refusal or code for refusal, code in zip(refusals, codes, strict=True)]
