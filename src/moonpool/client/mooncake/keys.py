"""What moonpool's keys are called in a Mooncake cluster.

A key that people choose is its own name there, so both sides see the same objects; an engine's
block is ``namespace/digest`` in hexadecimal, and a name that is no text ``hex:`` and its bytes.
"""

from __future__ import annotations

from collections.abc import Iterable

from moonpool.core.keys import Key, pack, parse, split

HEX = "hex:"


def name_of(key: bytes) -> str:
    """Return the name of a packed key there."""
    namespace, name = split(key)
    if namespace:
        return f"{namespace.hex()}/{name.hex()}"
    try:
        text = name.decode()
    except UnicodeDecodeError:
        return HEX + name.hex()
    return HEX + name.hex() if text.startswith(HEX) else text


def names_of(keys: Iterable[bytes]) -> list[str]:
    """Return the names of packed keys there."""
    return [name_of(key) for key in keys]


def key_of_name(name: str) -> Key:
    """Return the packed key of a name there. Raises InvalidKeyError."""
    if name.startswith(HEX):
        try:
            return pack(bytes.fromhex(name.removeprefix(HEX)))
        except ValueError:
            pass
    return parse(name)
