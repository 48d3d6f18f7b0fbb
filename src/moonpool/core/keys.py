"""Keys: a namespace and a name, in a packed form for the wire and a readable one for people.

A namespace is empty for keys that people choose, or the 16-byte fingerprint under which engines
with interchangeable KV bytes store their blocks; a block's name is the 16-byte digest of its
prefix. The packed form is one length byte, the namespace and the name.
"""

from __future__ import annotations

import hashlib
from typing import NewType

from moonpool.errors import InvalidKeyError

Key = NewType("Key", bytes)
"""A packed key: ``bytes([len(namespace)]) + namespace + name``."""

KEY_BYTES_MAX = 4096
"""The longest name, in bytes."""
NAMESPACE_BYTES_MAX = 64
DIGEST_BYTES = 16
"""Bytes of a namespace fingerprint and of a block digest."""


def pack(name: bytes, namespace: bytes = b"") -> Key:
    """Return the packed key; raise InvalidKeyError for an empty or overlong name."""
    if not name:
        raise InvalidKeyError("a key must not be empty")
    if len(name) > KEY_BYTES_MAX:
        raise InvalidKeyError(f"a key of {len(name)} bytes; {KEY_BYTES_MAX} bytes are allowed")
    if len(namespace) > NAMESPACE_BYTES_MAX:
        raise InvalidKeyError(
            f"a namespace of {len(namespace)} bytes; {NAMESPACE_BYTES_MAX} bytes are allowed"
        )
    return Key(bytes((len(namespace),)) + namespace + name)


def key_of(text: str) -> Key:
    """Return the packed key of a name that a person chose."""
    return pack(text.encode("utf-8", "surrogateescape"))


def split(key: bytes) -> tuple[bytes, bytes]:
    """Return (namespace, name); raise InvalidKeyError for bytes that are no packed key."""
    if not key or key[0] > NAMESPACE_BYTES_MAX or len(key) <= 1 + key[0]:
        raise InvalidKeyError("not a packed key")
    cut = 1 + key[0]
    if len(key) - cut > KEY_BYTES_MAX:
        raise InvalidKeyError(f"a key of {len(key) - cut} bytes; {KEY_BYTES_MAX} are allowed")
    return key[1:cut], key[cut:]


def readable(key: bytes) -> str:
    """Return the form people see: the name itself, or ``namespace/digest`` in hexadecimal."""
    namespace, name = split(key)
    if not namespace:
        return name.decode("utf-8", "backslashreplace")
    return f"{namespace.hex()}/{name.hex()}"


def parse(text: str) -> Key:
    """Return the packed key of a readable form; the inverse of ``readable``."""
    namespace, slash, digest = text.partition("/")
    if slash and len(namespace) == len(digest) == 2 * DIGEST_BYTES:
        try:
            return pack(bytes.fromhex(digest), bytes.fromhex(namespace))
        except ValueError:
            pass
    return key_of(text)


def fingerprint(*parts: str) -> bytes:
    """Return the 16-byte namespace of a sequence of facts; order and boundaries count."""
    digest = hashlib.sha256()
    for part in parts:
        encoded = part.encode()
        digest.update(len(encoded).to_bytes(8, "big") + encoded)
    return digest.digest()[:DIGEST_BYTES]
