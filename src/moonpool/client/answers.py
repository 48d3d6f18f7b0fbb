"""Checks of what the master answers: its messages are not trusted either."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Any, TypeVar

import numpy as np

from moonpool.errors import ProtocolError
from moonpool.transport.base import U64

CODE_MIN = -(1 << 31)
A = TypeVar("A")


def expect(kind: type[A], reply: object) -> A:
    """Return the reply if it is of the kind, or raise ProtocolError."""
    if type(reply) is not kind:
        raise ProtocolError(f"the master answered with {type(reply).__name__}, not {kind.__name__}")
    return reply


def sound(codes: Iterable[int]) -> None:
    """Raise ProtocolError for codes that are none: they are 0 or below, and few."""
    for code in codes:
        if not CODE_MIN <= code <= 0:
            raise ProtocolError(f"the master answered with the code {code}")


def words(numbers: Sequence[Any]) -> U64:
    """Return sizes and places as an array of the same shape, or raise ProtocolError for what no
    master says: they count from 0 and have 64 bits."""
    try:
        return np.array(numbers, np.uint64)
    except OverflowError:
        raise ProtocolError("the master answered with a size or place below 0") from None


def as_many(answers: Sequence[A], count: int) -> Sequence[A]:
    """Return the answers if there is one for each item, or raise ProtocolError."""
    if len(answers) != count:
        raise ProtocolError(f"the master answered {count} items with {len(answers)}")
    return answers
