"""Putting and getting objects as Python's bytes."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np

from moonpool.client.memory import view_of
from moonpool.compat.base import Base, wishes_of
from moonpool.compat.buffers import BufferHandle, handle_of
from moonpool.compat.casting import Parameter, buffer, call, list_of, refusal, text, texts
from moonpool.compat.codes import INVALID, OK, code_of, put_code
from moonpool.compat.connected import Connected
from moonpool.compat.replicate import (
    DEFAULT,
    ReplicateConfig,
    for_nothing,
    refused,
    replicate_config,
)
from moonpool.errors import AlreadyExistsError, MoonpoolError

CONFIG = Parameter("config", replicate_config, DEFAULT)


class Copying(Base):
    """The calls that copy."""

    @call(Parameter("key", text), Parameter("value", buffer), CONFIG)
    def put(self, key: str, value: memoryview, config: ReplicateConfig) -> int:
        """Put an object; a key that is taken is success, and the bytes there are kept. Returns 0 or
        a code."""
        return self._put(key, value, config)

    def put_parts(self, key: Any, *parts: Any, config: Any = DEFAULT) -> int:
        """Put one object that consists of parts; nothing is put if they are all empty."""
        whole = joined("put_parts", key, parts, config)
        return self._put(text(key), whole, config) if whole else for_nothing(config)

    @call(Parameter("keys", texts), Parameter("values", list_of(buffer)), CONFIG)
    def put_batch(self, keys: list[str], values: list[memoryview], config: ReplicateConfig) -> int:
        """Put objects; return 0 or the first code."""
        connected = self._connected
        if connected is None or len(keys) != len(values):
            return INVALID
        code = refused(config, len(keys)) if keys else for_nothing(config)
        # Mooncake copies all values to its own memory first, and an empty one ends that.
        if code or any(not value.nbytes for value in values):
            return code or INVALID
        wishes = wishes_of(connected, config, keys)
        codes = [_put_one(connected, k, v, wishes) for k, v in zip(keys, values, strict=True)]
        return next((code for code in codes if code), OK)

    def _put(self, key: str, value: memoryview | bytes, config: ReplicateConfig) -> int:
        connected = self._connected
        return INVALID if connected is None else put_value(connected, key, value, config)

    @call(Parameter("arg0", text))
    def get(self, key: str) -> bytes:
        """Return an object's bytes, b"" if they cannot be had for whatever reason."""
        connected = self._connected
        if connected is None or not key:
            return b""
        return _get_one(connected, key)

    @call(Parameter("arg0", texts))
    def get_batch(self, keys: list[str]) -> list[bytes]:
        """Return the bytes of each object, b"" for those that cannot be had; [b""] for no keys."""
        connected = self._connected
        if not keys:
            return [b""]
        if connected is None:
            return [b""] * len(keys)
        return [_get_one(connected, key) if key else b"" for key in keys]

    @call(Parameter("arg0", text))
    def get_buffer(self, key: str) -> BufferHandle | None:
        """Return memory with an object's bytes, None if they cannot be had."""
        return _get_buffer(self._connected, key)

    @call(Parameter("arg0", texts))
    def batch_get_buffer(self, keys: list[str]) -> list[BufferHandle | None]:
        """Return memory with the bytes of each object, None for those that cannot be had."""
        return [_get_buffer(self._connected, key) for key in keys]


def joined(name: str, key: Any, parts: Sequence[Any], config: Any) -> bytes:
    """Return all parts together. Raises TypeError for what is none."""
    try:
        text(key)
        replicate_config(config)
    except TypeError:
        raise TypeError(refusal(name, (Parameter("key", text), CONFIG))) from None
    return b"".join(bytes(memoryview(part)) for part in parts)


def put_value(
    connected: Connected, key: str, value: memoryview | bytes, config: ReplicateConfig
) -> int:
    """Put an object; return 0 or a code."""
    if config is DEFAULT:
        return _put_one(connected, key, value, None)
    code = refused(config, 1)
    if code:
        return code
    try:
        return _put_one(connected, key, value, wishes_of(connected, config, [key]))
    except MoonpoolError as error:
        return code_of(error)


def _put_one(connected: Connected, key: str, value: Any, wishes: Any) -> int:
    view = view_of(value)
    if not key or not view.nbytes or view.nbytes > connected.setup.local_buffer_size:
        return INVALID
    try:
        connected.store.put(connected.keys.key(key), view, wishes=wishes)
    except AlreadyExistsError:
        return OK
    except (MoonpoolError, OSError) as error:
        return put_code(code_of(error))
    return OK


def _get_one(connected: Connected, key: str) -> bytes:
    if not connected.setup.local_buffer_size:
        return b""
    leases = connected.leases
    try:
        return connected.store.get(connected.keys.key(key), lease=leases.number())
    except (MoonpoolError, OSError):
        return b""


def _get_buffer(connected: Connected | None, key: str) -> BufferHandle | None:
    if connected is None or not key or not connected.setup.local_buffer_size:
        return None
    found = np.frombuffer(_get_one(connected, key), np.uint8)
    return handle_of(found.copy()) if found.size else None
