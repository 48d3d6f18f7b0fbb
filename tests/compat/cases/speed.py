"""How fast calls are, from one process to another's segment on the same host."""

from __future__ import annotations

import os
import time
from collections.abc import Callable
from functools import partial
from statistics import median

import numpy as np

from tests.compat.cases.bed import Api

ROUNDS = 5
SMALL = 4096
KEYS = 5000


def timed(call: Callable[[], object]) -> float:
    began = time.perf_counter()
    call()
    return time.perf_counter() - began


def check(found: list[int], wanted: int) -> None:
    wrong = [code for code in found if code != wanted]
    assert not wrong, f"{len(wrong)} of {len(found)}: {wrong[:3]}"


def case_small(api: Api) -> dict[str, float]:
    """Medians of single calls, in microseconds."""
    value, memory, n = os.urandom(SMALL), api.memory(SMALL * 400), 400
    calls: dict[str, Callable[[int], object]] = {
        "put 4 KiB": lambda i: check([api.s.put(f"p{i}", value)], 0),
        "get 4 KiB": lambda i: check([len(api.s.get(f"p{i}"))], SMALL),
        "put_from 4 KiB": lambda i: check(
            [api.s.put_from(f"f{i}", memory.at + i * SMALL, SMALL)], 0
        ),
        "get_into 4 KiB": lambda i: check(
            [api.s.get_into(f"f{i}", memory.at + i * SMALL, SMALL)], SMALL
        ),
    }
    return {
        f"{name}, us": 1e6 * median(timed(partial(call, i)) for i in range(n))
        for name, call in calls.items()
    }


def case_large(api: Api, mebibytes: int) -> dict[str, float]:
    """GB/s of single calls, the medians of rounds."""
    size, count = mebibytes << 20, max(4, 64 // mebibytes)
    memory = api.memory(size * count)
    puts, gets = [], []

    def put(keys: list[str]) -> None:
        check([api.s.put_from(k, memory.at + i * size, size) for i, k in enumerate(keys)], 0)

    def get(keys: list[str]) -> None:
        check([api.s.get_into(k, memory.at + i * size, size) for i, k in enumerate(keys)], size)

    for _ in range(ROUNDS):
        keys = [api.key() for _ in range(count)]
        puts.append(size * count / timed(lambda: put(keys)) / 1e9)  # noqa: B023 - called at once
        gets.append(size * count / timed(lambda: get(keys)) / 1e9)  # noqa: B023
        api.s.remove_all(True)
    return {
        f"put_from {mebibytes} MiB, GB/s": median(puts),
        f"get_into {mebibytes} MiB, GB/s": median(gets),
    }


def case_lookups(api: Api) -> dict[str, float]:
    """Medians of lookups of 5,000 keys of 110 bytes, in milliseconds."""
    memory = api.memory(SMALL)
    keys = [f"vllm@model@tp_rank:0@{i:064x}".ljust(110, "-") for i in range(KEYS)]
    for i in range(0, KEYS, 250):
        part = keys[i : i + 250]
        n = len(part)
        check(api.s.batch_put_from(part, [memory.at] * n, [SMALL] * n), 0)
    absent = [f"{key}x" for key in keys]
    there = median(timed(lambda: check(api.s.batch_is_exist(keys), 1)) for _ in range(25))
    missing = median(timed(lambda: check(api.s.batch_is_exist(absent), 0)) for _ in range(25))
    return {"5,000 that are there, ms": 1e3 * there, "5,000 that are not, ms": 1e3 * missing}


def case_pieces(api: Api) -> dict[str, float]:
    """GB/s of a batch of 512 keys of 61 pieces of 36 KiB."""
    keys, pieces, size = 512, 61, 36 << 10
    memory = api.memory(pieces * size)
    names = [api.key() for _ in range(keys)]
    row = (np.arange(pieces) * size + memory.at).tolist()
    places, sizes = [row] * keys, [[size] * pieces] * keys
    nbytes = keys * pieces * size
    put = timed(lambda: check(api.s.batch_put_from_multi_buffers(names, places, sizes), 0))
    get = timed(
        lambda: check(api.s.batch_get_into_multi_buffers(names, places, sizes), pieces * size)
    )
    return {"512 x 61 x 36 KiB put, GB/s": nbytes / put / 1e9, "get, GB/s": nbytes / get / 1e9}
