"""Tenants that are registered, and their quotas."""

from __future__ import annotations

from tests.compat.cases.bed import Api, eventually, same
from tests.compat.quotas import Quotas

MIB = 1 << 20


def case_the_page(api: Api, admin: str) -> None:
    quotas = Quotas(admin)
    same(quotas.ask(), (200, []))
    same((quotas.of("a"), quotas.delete("a")), ((404, -704), (404, -704)))
    same((quotas.ask("", "PUT"), quotas.ask("", "DELETE")), ((400, -600), (400, -600)))
    for wrong in (0, -1, "1", 1 << 63):
        same(quotas.put("a", wrong), (400, -600))
    code, said = quotas.put("b", 8 * MIB)
    wanted = {
        "tenant_id": "b",
        "requested_quota_bytes": 8 * MIB,
        "effective_quota_bytes": 8 * MIB,
        "charged_bytes": 0,
        "admission_closed": False,
        "over_quota": False,
        "has_explicit_policy": True,
    }
    same((code, said), (200, wanted))
    same((quotas.of("b"), quotas.ask()), ((200, wanted), (200, [wanted])))
    same(quotas.put("a", 1 << 50)[0], 200)
    _, both = quotas.ask()
    same([each["tenant_id"] for each in both], ["a", "b"])
    same([each["requested_quota_bytes"] for each in both], [1 << 50, 8 * MIB])
    assert both[1]["effective_quota_bytes"] <= 1
    same((quotas.delete("a"), quotas.delete("b")), ((200, None), (200, None)))
    same(quotas.ask(), (200, []))


def case_only_the_registered_put(api: Api, admin: str) -> None:
    quotas, guest, memory = Quotas(admin), api.another(tenant_id="guest"), api.memory(8)
    for each in (guest, api.s):
        same((each.put("k", b"1"), each.is_exist("k"), each.get("k")), (-1701, 0, b""))
    same(api.s.batch_put_from(["k"], [memory.at], [8]), [-1701])
    same(quotas.put("guest", MIB)[0], 200)
    same((guest.put("k", b"1"), guest.get("k"), api.s.is_exist("k")), (0, b"1", 0))
    same(quotas.delete("guest"), (409, -1702))
    same((guest.remove_all(True), quotas.delete("guest")), (1, (200, None)))
    same(guest.put("k", b"1"), -1701)


def case_its_own_objects_make_room(api: Api, admin: str) -> None:
    quotas, value = Quotas(admin), bytes(MIB)
    same((quotas.put("a", 8 * MIB)[0], quotas.put("b", 8 * MIB)[0]), (200, 200))
    one, other = api.another(tenant_id="a"), api.another(tenant_id="b")
    same(other.put("oldest", value), 0)
    same([one.put(f"k{i}", value) for i in range(20)], [0] * 20)
    same((other.get("oldest") == value, one.get("k19") == value), (True, True))
    assert 0 < quotas.of("a")[1]["charged_bytes"] <= 8 * MIB
    same(one.put("large", bytes(9 * MIB)), -1700)
    same((one.remove_all(True) > 0, quotas.of("a")[1]["charged_bytes"]), (True, 0))
    same((quotas.delete("a"), other.remove_all(True)), ((200, None), 1))
    same(quotas.delete("b"), (200, None))


def case_leases_are_kept_at_the_quota(api: Api, admin: str) -> None:
    quotas, value, names = Quotas(admin), bytes(MIB), [f"k{i}" for i in range(4)]
    same(quotas.put("a", 4 * MIB)[0], 200)
    one = api.another(tenant_id="a")
    same(one.put_batch(names, [value] * 4), 0)

    def full() -> bool:  # the leases may have ended before the put came
        return bool(one.batch_is_exist(names) == [1] * 4 and one.put("more", value) == -1700)

    eventually(full)
    eventually(lambda: one.put("more", value) == 0)
    assert one.remove_all(True) >= 1
    same(quotas.delete("a"), (200, None))
