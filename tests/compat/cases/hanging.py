"""Puts that do not end: when others get their key, and when their space."""

from __future__ import annotations

from typing import Any

from tests.compat.cases.bed import Api, eventually, same

LARGE = 40 << 20
"""Of a pool of 64 MiB: there is room for one."""


def begun(api: Api) -> Any:
    """Return a store that has begun to put; what another case began there may have to go first."""
    store = api.another()
    eventually(lambda: store.batch_put_session_start(["h"], [LARGE]) == [0])
    return store


def case_a_put_that_hangs(api: Api) -> None:
    hanging = begun(api)
    value = bytes(api.memory(16).bytes)

    def has_the_key() -> bool:
        return bool(api.s.put("h", value) == 0 and api.s.get("h") == value)

    eventually(has_the_key)
    assert hanging.batch_put_session_end(["h"]) != [0]
    same(api.s.get("h"), value)


def case_its_space(api: Api) -> None:
    hanging, memory = begun(api), api.memory(LARGE)
    eventually(lambda: api.s.put("h", b"1") == 0 and api.s.get("h") == b"1")

    def has_room() -> bool:
        return bool(api.s.put_from("large", memory.at, LARGE) == 0)

    if api.differs("release times", real=True, ours=False):
        eventually(has_room)
    same(has_room(), api.real)
    hanging.close()
    eventually(has_room)
