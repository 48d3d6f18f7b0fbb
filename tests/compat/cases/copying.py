"""Calls that copy: put, get and their batches."""

from __future__ import annotations

import array

from tests.compat.cases.bed import Api, raises, same


def case_put_and_get(api: Api) -> None:
    key = api.key()
    same(api.s.put(key, b"value"), 0)
    same(api.s.get(key), b"value")


def case_other_buffers_are_values(api: Api) -> None:
    for value in (bytearray(b"abc"), memoryview(b"abc"), array.array("B", b"abc")):
        key = api.key()
        same(api.s.put(key, value), 0)
        same(api.s.get(key), b"abc")


def case_wrong_values_are_type_errors(api: Api) -> None:
    for value in ("text", 5, None, [1], 1.0):
        raises(TypeError, api.s.put, "k", value)
    for key in (5, None, ["k"], "\ud800"):
        raises(TypeError, api.s.put, key, b"v")
    raises(TypeError, lambda: api.s.put("k"))
    raises(TypeError, lambda: api.s.put("k", b"v", None))
    raises(TypeError, lambda: api.s.put("k", b"v", nosuch=1))
    raises(TypeError, lambda: api.s.put("k", b"v", api.config(), 5))
    raises(TypeError, lambda: api.s.put("k", b"v", key="k"))


def case_keywords_are_as_named(api: Api) -> None:
    same(api.s.put(key="named", value=b"v", config=api.config()), 0)
    same(api.s.get("named"), b"v")
    raises(TypeError, lambda: api.s.get(key="named"))
    raises(TypeError, lambda: api.s.is_exist(key="named"))
    raises(TypeError, lambda: api.s.get_size(key="named"))
    raises(TypeError, lambda: api.s.get())


def case_keys_may_be_bytes(api: Api) -> None:
    same(api.s.put(b"raw", b"v"), 0)
    same(api.s.get("raw"), b"v")
    same(api.s.get(b"raw"), b"v")


def case_keys_are_any_text(api: Api) -> None:
    for key in ("a\0b", "a/b", "schlüssel", "鍵", "k" * 4000, " "):
        same(api.s.put(key, b"v"), 0)
        same(api.s.get(key), b"v")
        same(api.s.is_exist(key), 1)
    same(api.s.is_exist("a"), 0)


def case_very_long_keys(api: Api) -> None:
    one, other = "k" * 100_000, "k" * 99_999 + "l"
    same(api.s.put(one, b"1"), 0)
    same(api.s.is_exist(other), 0)
    same(api.s.put(other, b"2"), 0)
    same((api.s.get(one), api.s.get(other)), (b"1", b"2"))


def case_nothing_is_no_key_and_no_value(api: Api) -> None:
    same(api.s.put("", b"v"), -600)
    same(api.s.put("k", b""), -600)
    same(api.s.get(""), b"")
    same(api.s.is_exist("k"), 0)


def case_a_taken_key_is_success_and_keeps_its_bytes(api: Api) -> None:
    key = api.key()
    same(api.s.put(key, b"first"), 0)
    same(api.s.put(key, b"second, longer"), 0)
    same(api.s.get(key), b"first")


def case_a_miss_is_no_bytes(api: Api) -> None:
    same(api.s.get("nosuch"), b"")
    same(api.s.get_batch(["nosuch"]), [b""])
    same(api.s.get_buffer("nosuch"), None)
    same(api.s.get_buffer(""), None)
    same(api.s.batch_get_buffer(["nosuch"]), [None])
    same(api.s.batch_get_buffer([]), [])


def case_values_larger_than_the_local_buffer(api: Api) -> None:
    same(api.s.put("big", bytes(20 << 20)), -600)
    same(api.s.put("fits", bytes(10 << 20)), 0)
    same(len(api.s.get("fits")), 10 << 20)


def case_no_local_buffer_no_copies(api: Api) -> None:
    store = api.another(local=0)
    same(store.put("b0", b"1"), -600)
    same(store.put_parts("b0", b"1"), -600)
    same(store.put_batch(["b0"], [b"1"]), -600)
    same(store.upsert("b0", b"1"), -600)
    same(api.s.put("b1", b"1"), 0)
    same(store.is_exist("b1"), 1)
    same(store.get("b1"), b"")
    same(store.get_batch(["b1"]), [b""])
    same(store.get_buffer("b1"), None)
    same(store.batch_get_buffer(["b1"]), [None])


def case_parts_are_joined(api: Api) -> None:
    same(api.s.put_parts("p1", b"123", b"", bytearray(b"4")), 0)
    same(api.s.get("p1"), b"1234")
    same(api.s.put_parts("p1", b"other"), 0)
    same(api.s.get("p1"), b"1234")
    same(api.s.put_parts("p2", b"1", config=api.config()), 0)
    same(api.s.put_parts("p3"), 0)
    same(api.s.put_parts("p4", b"", b""), 0)
    same(api.s.batch_is_exist(["p2", "p3", "p4"]), [1, 0, 0])
    raises(TypeError, lambda: api.s.put_parts("p5", "text"))
    raises(TypeError, lambda: api.s.put_parts(5, b"1"))


def case_put_batch(api: Api) -> None:
    same(api.s.put_batch(["b1", "b2"], [b"1", b"22"]), 0)
    same(api.s.get_batch(["b1", "b2"]), [b"1", b"22"])
    same(api.s.put_batch(["b1", "b2"], [b"x", b"y"]), 0)
    same(api.s.get_batch(["b1", "b2"]), [b"1", b"22"])
    same(api.s.put_batch([], []), 0)
    same(api.s.put_batch(["b3"], [b"1", b"2"]), -600)
    same(api.s.put_batch(["b3", "b4"], [b"1"]), -600)
    same(api.s.is_exist("b3"), 0)
    raises(TypeError, lambda: api.s.put_batch("b5", [b"1"]))
    raises(TypeError, lambda: api.s.put_batch(["b5"], b"1"))
    raises(TypeError, lambda: api.s.put_batch(["b5"], ["1"]))


def case_put_batch_with_one_that_is_wrong(api: Api) -> None:
    same(api.s.put_batch(["w1", ""], [b"1", b"2"]), -600)
    same(api.s.get("w1"), b"1")
    same(api.s.put_batch(["w2", "w3"], [b"1", b""]), -600)
    same(api.s.get("w2"), b"")


def case_put_batch_of_one_key_twice(api: Api) -> None:
    same(api.s.put_batch(["d", "d"], [b"1", b"2"]), 0)
    same(api.s.get("d"), b"1")


def case_get_batch(api: Api) -> None:
    api.s.put("g1", b"1")
    api.s.put("g2", b"2")
    same(api.s.get_batch(["g2", "nosuch", "", "g1", "g2"]), [b"2", b"", b"", b"1", b"2"])
    same(api.s.get_batch([]), [b""])
    same(api.s.get_batch(("g1",)), [b"1"])
    raises(TypeError, lambda: api.s.get_batch("g1"))
    raises(TypeError, lambda: api.s.get_batch([1]))
    raises(TypeError, lambda: api.s.get_batch(None))


def case_get_buffer(api: Api) -> None:
    api.s.put("h", b"hello")
    found = api.s.get_buffer("h")
    same((found.size(), len(found), bytes(memoryview(found))), (5, 5, b"hello"))
    same((memoryview(found).format, memoryview(found).readonly, bool(found)), ("b", False, True))
    assert found.ptr() > 0
    api.s.remove("h", True)
    same(bytes(memoryview(found)), b"hello")
    api.s.put("i", b"there")
    first, second = api.s.batch_get_buffer(["i", "nosuch"])
    same((bytes(memoryview(first)), second), (b"there", None))


def case_upsert(api: Api) -> None:
    for value in (b"123", b"456", b"longer", b"s"):
        same(api.s.upsert("u", value), 0)
        same(api.s.get("u"), value)
    same(api.s.upsert("u", b""), -600)
    same(api.s.upsert("", b"1"), -600)
    same(api.s.get("u"), b"s")
    raises(TypeError, lambda: api.s.upsert("u", "text"))


def case_upsert_parts_and_batch(api: Api) -> None:
    same(api.s.upsert_parts("u1", b"123", b"4"), 0)
    same(api.s.upsert_parts("u1", b"5"), 0)
    same(api.s.get("u1"), b"5")
    same(api.s.upsert_parts("u2"), 0)
    same(api.s.upsert_batch(["u3", "u4"], [b"1", b"2"]), 0)
    same(api.s.upsert_batch(["u3", "u4"], [b"3", b"4"]), 0)
    same(api.s.get_batch(["u3", "u4"]), [b"3", b"4"])
    same(api.s.upsert_batch(["u5"], [b"1", b"2"]), -600)
    same(api.s.upsert_batch([], []), 0)
