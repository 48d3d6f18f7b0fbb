"""Calls with random arguments, one after the other, each in the same small pool."""

from __future__ import annotations

import contextlib
import os
import random
from tempfile import TemporaryDirectory
from typing import Any

from tests.compat.cases.arguments import MEMORY, Call, outcome, real
from tests.compat.cases.bed import Api, Memory

KEYS = ["a", "b", "nosuch", "new", "new2", "ü", "a\0"]


def case_outcomes(api: Api, calls: list[Call]) -> list[Any]:
    """Return what came of each call."""
    memory = api.memory(MEMORY)
    with TemporaryDirectory() as folder, contextlib.chdir(folder):
        return [_outcome(api, memory, each) for each in calls]


def _outcome(api: Api, memory: Memory, call: Call) -> Any:
    api.s.batch_get_session_end(KEYS)
    api.s.batch_put_session_revoke(KEYS)
    api.s.remove_all(True)
    assert api.s.put_batch(["a", "b"], [b"0123456789", b"xyz"]) == 0
    api.s.batch_get_session_start(["a"])
    api.s.batch_put_session_start(["new"], [10])
    args = real(call["args"], memory.at, api.config)
    named = {name: real(value, memory.at, api.config) for name, value in call["named"].items()}
    try:
        found = getattr(api.s, call["method"])(*args, **named)
    except Exception as error:  # noqa: BLE001 - its type is what is asked for
        return type(error).__name__
    memory.check()
    return outcome(found, call["method"])


def case_wild_pointers(api: Api, seed: int) -> None:
    """Addresses and sizes that reach beyond registered memory: codes, and nothing is touched.
    Mooncake reads and writes there."""
    if api.real:
        return
    chance = random.Random(seed)
    memory = api.memory(4096)
    outside = Memory(api, 4096, register=False)
    for key in ("a", "b"):
        assert api.s.put(key, os.urandom(2000)) == 0
    before = outside[:]
    for _ in range(400):
        at, size = _wild(chance, memory, outside)
        for codes in _everything(api, at, size):
            assert codes, (at, size)
            assert all(code < 0 for code in codes), (codes, at - memory.at, size)
        memory.check()
        outside.check()
        assert outside[:] == before


def _wild(chance: random.Random, memory: Memory, outside: Memory) -> tuple[int, int]:
    end = memory.at + memory.nbytes
    places = (
        (0, 10),
        (1, 2000),
        (memory.at - 1, 2000),
        (memory.at - chance.randrange(1, 60), 4096),
        (end - chance.randrange(0, 1999), 2000),
        (memory.at, 4097),
        (memory.at, (1 << 64) - 1),
        (end, 2000),
        ((1 << 64) - 1, 2000),
        ((1 << 64) - 2000, 2000),
        (outside.at, 2000),
        (chance.randrange(1 << 64), 2000 + chance.randrange(1 << 40)),
    )
    return chance.choice(places)


def _everything(api: Api, at: int, size: int) -> list[list[int]]:
    s, key = api.s, api.key()
    return [
        [s.put_from(key, at, size), s.get_into("a", at, size), s.upsert_from("b", at, size)],
        s.batch_put_from([key], [at], [size]),
        s.batch_get_into(["a", "b"], [at, at], [size, size]),
        s.batch_upsert_from(["b"], [at], [size]),
        s.batch_put_from_multi_buffers([key], [[at]], [[size]]),
        s.batch_get_into_multi_buffers(["a"], [[at]], [[size]]),
        s.get_into_ranges([at], [["a"]], [[[0]]], [[[0]]], [[[size]]])[0][0],
        [s.put_from_with_metadata(key, at, at, size, 10), s.put_tensor_from(key, at, size)],
    ]
