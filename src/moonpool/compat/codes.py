"""The numbers that the Mooncake API answers with, and how moonpool's errors become them."""

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import Any, ParamSpec, TypeVar

from moonpool.errors import MoonpoolError

OK = 0
INTERNAL = -1
NO_SPACE = -200
INVALID = -600
ILLEGAL_CLIENT = -601
INVALID_WRITE = -700
NOT_READY = -703
NOT_FOUND = -704
EXISTS = -705
LEASED = -706
REPLICA_EXISTS = -711
TRANSFER = -800
RPC = -900
TASK_NOT_FOUND = -1400

P = ParamSpec("P")
R = TypeVar("R")


def code_of(error: Exception) -> int:
    """Return the code of whatever went wrong: never an exception for callers that know none."""
    return error.code if isinstance(error, MoonpoolError) else INTERNAL


def or_code(call: Callable[P, int]) -> Callable[P, int]:
    """Let a call return an error's code."""

    @functools.wraps(call)
    def coded(*args: P.args, **named: P.kwargs) -> int:
        try:
            return call(*args, **named)
        except (MoonpoolError, OSError) as error:
            return code_of(error)

    return coded


def put_code(code: int) -> int:
    """Return what a put answers: a key that is taken is success, and what is larger than every
    segment has no room (its key and size were found right before)."""
    if code == EXISTS:
        return OK
    return NO_SPACE if code == INVALID else code


def ignore(_: Any) -> None:
    """Drop a result."""
