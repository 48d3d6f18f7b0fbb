"""Bytes that follow from a key, so that a reader can tell right from wrong on its own."""

import hashlib

import numpy as np

MIB = 1 << 20
NONCES = 3
_SPREAD = 4 * MIB
BASE = np.random.Generator(np.random.PCG64(20240607)).bytes(_SPREAD + 20 * MIB)
_EDGES = (1, 2, 4095, 4096, 4097, 65535, 65537, MIB + 1)


def _number(text: str) -> int:
    return int.from_bytes(hashlib.blake2b(text.encode(), digest_size=8).digest(), "little")


def size_of(key: str, nonce: int = 0) -> int:
    """Return the size of a key's value: edge cases and everything in between, 1 B to 1 MiB."""
    number = _number(f"size {key} {nonce}")
    if number % 4 == 0:
        return _EDGES[(number >> 8) % len(_EDGES)]
    return 1 + (number >> 8) % (1 << (8 + number % 13))


def value_of(key: str, nonce: int = 0, size: int | None = None) -> bytes:
    """Return the value number ``nonce`` of a key; its first byte is the nonce."""
    size = size_of(key, nonce) if size is None else size
    start = _number(f"start {key} {nonce}") % _SPREAD
    return bytes([nonce]) + BASE[start : start + size - 1]


def fault_in(key: str, data: bytes | bytearray | memoryview, size: int | None = None) -> str:
    """Return "" if the bytes are one of the key's values, else what is wrong with them."""
    data = bytes(data)
    if not data:
        return f"{key!r}: no bytes at all"
    if data[0] >= NONCES:
        return f"{key!r}: first byte {data[0]} was never written"
    wanted = value_of(key, data[0], size)
    if data == wanted:
        return ""
    if len(data) != len(wanted):
        return f"{key!r}: {len(data)} bytes for {len(wanted)} of nonce {data[0]}"
    bad = next(i for i, (a, b) in enumerate(zip(data, wanted, strict=True)) if a != b)
    return f"{key!r}: differs from byte {bad} of {len(data)} on, nonce {data[0]}"
