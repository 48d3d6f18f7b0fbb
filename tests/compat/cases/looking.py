"""Lookups and removal."""

from __future__ import annotations

from tests.compat.cases.bed import Api, raises, same


def case_is_exist(api: Api) -> None:
    api.s.put("k", b"1")
    same((api.s.is_exist("k"), api.s.is_exist("nosuch"), api.s.is_exist("")), (1, 0, 0))
    same(api.s.batch_is_exist(["nosuch", "k", "", "k"]), [0, 1, 0, 1])
    same(api.s.batch_is_exist([]), [])
    same(api.s.batch_is_exist(("k",)), [1])
    raises(TypeError, lambda: api.s.is_exist(5))
    raises(TypeError, lambda: api.s.batch_is_exist("k"))
    raises(TypeError, lambda: api.s.batch_is_exist([5]))


def case_thousands_at_once(api: Api) -> None:
    keys = [f"many-{i}" for i in range(3000)]
    same(api.s.put_batch(keys[::2], [b"v"] * 1500), 0)
    same(api.s.batch_is_exist(keys), [1, 0] * 1500)


def case_get_size(api: Api) -> None:
    api.s.put("k", b"12345")
    same((api.s.get_size("k"), api.s.get_size("nosuch"), api.s.get_size("")), (5, -704, -704))
    raises(TypeError, lambda: api.s.get_size(None))


def case_remove(api: Api) -> None:
    api.s.put("k", b"1")
    same(api.s.remove("k"), 0)
    same((api.s.remove("k"), api.s.remove(""), api.s.is_exist("k")), (-704, -704, 0))
    raises(TypeError, lambda: api.s.remove(5))
    raises(TypeError, lambda: api.s.remove("k", "yes"))
    same(api.s.remove("k", None), -704)
    same(api.s.remove(key="k", force=1), -704)


def case_what_was_read_is_leased(api: Api) -> None:
    looks = (
        api.s.is_exist,
        api.s.get,
        api.s.get_size,
        api.s.get_buffer,
        api.s.get_replica_desc,
        lambda key: api.s.batch_is_exist([key]),
        lambda key: api.s.get_batch([key]),
    )
    for look in looks:
        key = api.key()
        api.s.put(key, b"1")
        look(key)
        same((api.s.remove(key), api.s.remove(key, True)), (-706, 0))


def case_what_was_put_is_not_leased(api: Api) -> None:
    api.s.put("k", b"1")
    api.s.put("k", b"2")
    same(api.s.remove("k"), 0)


def case_batch_remove(api: Api) -> None:
    for key in ("a", "b", "c"):
        api.s.put(key, b"1")
    api.s.is_exist("b")
    same(api.s.batch_remove(["a", "b", "nosuch", "", "a"]), [0, -706, -704, -704, -704])
    same(api.s.batch_remove(["b", "c"], True), [0, 0])
    same(api.s.batch_remove([]), [])
    raises(TypeError, lambda: api.s.batch_remove("a"))


def case_remove_by_regex(api: Api) -> None:
    for key in ("m1", "m2", "xm1", "other", "a.b", "a-b"):
        api.s.put(key, b"1")
    same(api.s.remove_by_regex("("), -600)
    same(api.s.remove_by_regex("^m[12]$"), 2)
    same(api.s.remove_by_regex("nosuch"), 0)
    same(api.s.remove_by_regex("m1"), 1)
    same(api.s.remove_by_regex(r"^a\.b$"), 1)
    api.s.is_exist("other")
    same(api.s.remove_by_regex("other"), 0)
    same(api.s.remove_by_regex("other", True), 1)
    same(api.s.remove_by_regex(""), 1)
    raises(TypeError, lambda: api.s.remove_by_regex(5))


def case_expressions_are_of_ecmascript(api: Api) -> None:
    api.s.put("key-1", b"1")
    for pattern in ("(?i)KEY", "(?P<a>k)", "(?<=k)e", "[", "*a", "a{2,1}", "\\"):
        same((pattern, api.s.remove_by_regex(pattern)), (pattern, -600))
    for pattern in ("(?=k)k", "[[:digit:]]", "\\d$", "(?:key)-1", "k.*1", "[^a]ey"):
        same((pattern, api.s.remove_by_regex(pattern)), (pattern, 1))
        api.s.put("key-1", b"1")


def case_remove_all(api: Api) -> None:
    for key in ("a", "b", "c"):
        api.s.put(key, b"1")
    api.s.is_exist("b")
    same(api.s.remove_all(), 2)
    same(api.s.remove_all(), 0)
    same(api.s.remove_all(force=True), 1)
    same(api.s.remove_all(True), 0)
    raises(TypeError, lambda: api.s.remove_all("yes"))


def case_replica_clear(api: Api) -> None:
    for key in ("c1", "c2"):
        api.s.put(key, b"1")
    api.s.is_exist("c2")
    same(api.s.batch_replica_clear(["c1", "c2", "nosuch", ""]), ["c1"])
    same(api.s.batch_is_exist(["c1", "c2"]), [0, 1])
    same(api.s.batch_replica_clear([]), [])
    api.s.put("c3", b"1")
    same(api.s.batch_replica_clear(["c3"], "nosuch"), [])
    same(api.s.is_exist("c3"), 1)
