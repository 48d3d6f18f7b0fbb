"""Keys as callers give them, and the name under which a process is known to the pool."""

from __future__ import annotations

import os
import secrets
from collections.abc import Iterable

from moonpool.core.keys import Key, key_of, readable, split
from moonpool.errors import InvalidArgumentError, InvalidKeyError
from moonpool.protocol.codec import PEER_CHARS_MAX

AnyKey = str | bytes
"""A name that a person chose, or a packed key."""


def packed(key: AnyKey) -> Key:
    """Return the packed key of a name (str) or of a packed key (bytes), or raise
    InvalidKeyError."""
    if isinstance(key, str):
        try:
            return key_of(key)
        except UnicodeEncodeError:
            raise InvalidKeyError("a key with a lone surrogate has no bytes") from None
    if isinstance(key, bytes):
        split(key)
        return Key(key)
    raise InvalidKeyError(f"a key is str or packed bytes, not {type(key).__name__}")


def all_packed(keys: Iterable[AnyKey]) -> list[bytes]:
    """Return the packed keys, or raise InvalidKeyError."""
    return [packed(key) for key in keys]


def shown(key: AnyKey) -> str:
    """Return what error messages call a key."""
    return key if isinstance(key, str) else readable(key)


def new_peer(name: str) -> str:
    """Return a name that no other process has: ``name``, the process and chance."""
    if not name.isprintable() or len(name) > PEER_CHARS_MAX - 32:
        raise InvalidArgumentError(
            f"a name of {len(name)} characters; {PEER_CHARS_MAX - 32} printable ones are allowed"
        )
    return f"{name or 'client'}-{os.getpid()}-{secrets.token_hex(8)}"
