"""Changing good input a little: bytes, trees of values, and words at known places."""

from __future__ import annotations

import copy
import random
from collections.abc import Sequence
from typing import Any

WORDS = (0, 1, 7, 255, 256, 4095, 4096, 65_535, 1 << 31, (1 << 32) - 1, 1 << 32, (1 << 63) - 1,
         1 << 63, (1 << 64) - 4096, (1 << 64) - 1)  # fmt: skip
VALUES: tuple[Any, ...] = (
    0, 1, -1, 2**31, 2**32, 2**53, 2**63 - 1, 2**64 - 1, -(2**63), 1e308, 5e-324, -0.0,
    float("nan"), float("inf"), float("-inf"), None, True, False, "", "x" * 5000, "9" * 5000, "²",
    "\0", "é", "../../x", b"", b"\xff" * 300, b"\x80", b"\x40" + b"n" * 64, [], [[[]]], [0] * 300,
    {}, {"a": 1}, {"": None},
)  # fmt: skip


def bytes_of(chance: random.Random, raw: bytes, times: int = 4) -> bytes:
    """Return bytes with some of them changed, moved, doubled, cut off or added."""
    found = bytearray(raw)
    for _ in range(chance.randrange(1, times)):
        at = chance.randrange(len(found) + 1)
        way = chance.randrange(8)
        if way == 0:
            found[at:at] = chance.randbytes(chance.randrange(1, 9))
        elif way == 1:
            del found[at : at + chance.randrange(1, 9)]
        elif way == 2:
            word = chance.choice(WORDS).to_bytes(8, "little")[: chance.choice((1, 2, 4, 8))]
            found[at : at + len(word)] = word
        elif way == 3:
            other = chance.randrange(len(found) + 1)
            found[at:at] = found[other : other + chance.randrange(1, 64)]
        elif way == 4 and chance.random() < 0.3:
            del found[at:]
        elif at < len(found):
            found[at] ^= 1 << chance.randrange(8) if way < 7 else chance.randrange(1, 256)
    return bytes(found)


def noise(chance: random.Random, most: int = 200) -> bytes:
    """Return bytes without any sense."""
    return chance.randbytes(chance.randrange(most))


def tree(chance: random.Random, good: Any, values: Sequence[Any] = VALUES, times: int = 3) -> Any:
    """Return a copy of nested lists and objects with some values changed, left out or doubled."""
    holder = [copy.deepcopy(good)]
    for _ in range(chance.randrange(1, times + 1)):
        _change(chance, holder, values)
    return holder[0]


def _change(chance: random.Random, holder: Any, values: Sequence[Any]) -> None:
    where, at = _place(chance, holder)
    value = where[at]
    way = chance.randrange(7)
    if way == 0 and len(where) > 1:
        del where[at]
    elif way == 1 and isinstance(where, list) and where is not holder:
        where.insert(at, copy.deepcopy(value))
    elif way == 2 and isinstance(value, int) and not isinstance(value, bool):
        moved = value + chance.choice((-1, 1, -value * 2, value, 1 << 32))
        where[at] = min(max(moved, -(2**63)), 2**64 - 1)
    elif way == 3 and isinstance(value, bytes | str) and value:
        cut: Any = chance.randrange(len(value))
        where[at] = value[:cut] if chance.random() < 0.5 else value[cut:] * 3
    else:
        # More often than not one of the same type: a decoder lets it through to what is behind.
        like = [each for each in values if type(each) is type(value)]
        where[at] = copy.deepcopy(chance.choice(like if like and way < 6 else values))


def _place(chance: random.Random, holder: Any) -> tuple[Any, Any]:
    """Return a list or object somewhere inside, and a place in it."""
    where, at = holder, 0
    while True:
        inner = where[at]
        if not (isinstance(inner, list | dict) and inner) or (
            where is not holder and chance.random() < 0.25
        ):
            return where, at
        where = inner
        at = chance.choice([*inner]) if isinstance(inner, dict) else chance.randrange(len(inner))
