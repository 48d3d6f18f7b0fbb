"""Leases that end by themselves."""

from __future__ import annotations

from tests.compat.cases.bed import Api, eventually, same


def case_a_lease_ends(api: Api) -> None:
    api.s.put("k", b"1")
    api.s.is_exist("k")
    same(api.s.remove("k"), -706)
    eventually(lambda: api.s.remove("k") == 0)


def case_cleared_after_its_lease(api: Api) -> None:
    api.s.put("k", b"1")
    api.s.get("k")
    same(api.s.batch_replica_clear(["k"]), [])
    eventually(lambda: api.s.batch_replica_clear(["k"]) == ["k"])
