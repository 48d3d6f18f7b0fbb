"""Checks of what the master answers: its messages are not trusted either."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TypeVar

from moonpool.errors import ProtocolError

A = TypeVar("A")


def expect(kind: type[A], reply: object) -> A:
    """Return the reply if it is of the kind, or raise ProtocolError."""
    if type(reply) is not kind:
        raise ProtocolError(f"the master answered with {type(reply).__name__}, not {kind.__name__}")
    return reply


def as_many(answers: Sequence[A], count: int) -> Sequence[A]:
    """Return the answers if there is one for each item, or raise ProtocolError."""
    if len(answers) != count:
        raise ProtocolError(f"the master answered {count} items with {len(answers)}")
    return answers
