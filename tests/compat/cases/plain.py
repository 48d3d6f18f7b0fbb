"""Single calls, for tests that look at a pool from outside."""

from __future__ import annotations

from tests.compat.cases.bed import Api


def case_is_exist(api: Api, key: str) -> int:
    return int(api.s.is_exist(key))
