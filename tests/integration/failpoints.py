"""Processes that kill themselves at a named point.

    python -m tests.integration.failpoints POINT ROLE ...

A point is ``module:Class.function[Request]@before#3``: the third call (in which an argument is of
that request's type, if one is named), before or after it was carried out. What follows are the role
and its keys, or ``client`` and an address: then objects are put until the end, and each key is
printed before (``try``) and after (``done``) its put.
"""

from __future__ import annotations

import functools
import importlib
import itertools
import os
import re
import runpy
import signal
import sys
from typing import Any

_POINT = re.compile(r"([\w.]+):([\w.]+)(?:\[(\w+)\])?@(before|after)#(\d+)")
BATCH = 10
SIZES = (100, 5000, 70_000, 300_000)


def value_of(key: str) -> bytes:
    """Return the bytes of a key."""
    size = SIZES[int(key.rpartition("-")[2]) % len(SIZES)]
    return (key.encode() * (size // len(key) + 1))[:size]


def arm(point: str) -> None:
    """Have this process die at a point."""
    match = _POINT.fullmatch(point)
    assert match is not None, point
    module, path, kind, when, count = match.groups()
    *outer, name = path.split(".")
    holder: Any = importlib.import_module(module)
    for part in outer:
        holder = getattr(holder, part)
    inner, calls = getattr(holder, name), itertools.count(1)

    @functools.wraps(inner)
    def deadly(*arguments: Any, **options: Any) -> Any:
        wanted = kind is None or any(type(each).__name__ == kind for each in arguments)
        dies = wanted and next(calls) == int(count)
        if dies and when == "before":
            os.kill(os.getpid(), signal.SIGKILL)
        result = inner(*arguments, **options)
        if dies:
            os.kill(os.getpid(), signal.SIGKILL)
        return result

    setattr(holder, name, deadly)


def put_on(address: str, way: str, name: str) -> None:
    """Put objects for a while."""
    from moonpool import MoonpoolError, Store

    with Store.connect(address, transports=(way,), timeout_s=2.0, put_timeout_s=2.0) as store:
        for first in range(0, 10 * BATCH, BATCH):
            keys = [f"{name}-{number:07d}" for number in range(first, first + BATCH)]
            print("try", *keys, flush=True)  # noqa: T201
            try:
                codes = store.put_batch(keys, [value_of(key) for key in keys])
            except MoonpoolError:
                return  # whoever died is away for longer than this client would wait
            good = [key for key, code in zip(keys, codes, strict=True) if code == 0]
            print("done", *good, flush=True)  # noqa: T201
            if not good:
                return


def main(point: str, role: str, *words: str) -> None:
    """Arm the point and be a process of that role."""
    if point != "none":
        arm(point)
    if role == "client":
        put_on(*words)
        return
    sys.argv = [f"moonpool.{role}", *words]
    runpy.run_module(f"moonpool.{role}", run_name="__main__", alter_sys=True)


if __name__ == "__main__":
    main(*sys.argv[1:])
