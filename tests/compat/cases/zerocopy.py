"""Calls that are told addresses."""

from __future__ import annotations

from tests.compat.cases.bed import Api, raises, same


def case_register(api: Api) -> None:
    memory = api.memory(1 << 16)
    at, size = memory.at, memory.nbytes
    same(api.s.register_buffer(at, size), -600)
    same(api.s.register_buffer(at + 100, 100), -600)
    same(api.s.register_buffer(at + size - 100, 200), -600)
    same(api.s.register_buffer(at + size + 4096, 0), -600)
    same(api.s.register_buffer(0, 100), -600)
    same(api.s.unregister_buffer(at + 100), -600)
    same(api.s.unregister_buffer(at), 0)
    same(api.s.unregister_buffer(at), -600)
    same(api.s.register_buffer(at, size), 0)
    for wrong in (-1, 1 << 64, 1.0, "1", None):
        raises(TypeError, api.s.register_buffer, wrong, 5)
        raises(TypeError, api.s.register_buffer, at, wrong)


def case_put_from_and_get_into(api: Api) -> None:
    memory = api.memory(1 << 16)
    same(api.s.put_from("z", memory.at, 1000), 0)
    same(api.s.get("z"), memory[:1000])
    same(api.s.get_into("z", memory.at + 5000, 1000), 1000)
    same(memory[5000:6000], memory[:1000])
    before = memory[7000:9000]
    same(api.s.get_into("z", memory.at + 7000, 2000), 1000)
    same(memory[7000:9000], memory[:1000] + before[1000:])


def case_get_into_what_is_too_small(api: Api) -> None:
    memory = api.memory(4096)
    api.s.put("z", b"0123456789")
    before = memory[:4096]
    same(api.s.get_into("z", memory.at, 9), -600)
    same(api.s.get_into("z", memory.at, 0), -600)
    same(api.s.get_into("nosuch", memory.at, 100), -704)
    same(api.s.get_into("", memory.at, 100), -704)
    same(memory[:4096], before)
    same(api.s.batch_get_into(["z", "nosuch", ""], [memory.at] * 3, [9, 9, 9]), [-600, -704, -704])


def case_put_nothing(api: Api) -> None:
    memory = api.memory(4096)
    same(api.s.put_from("z", memory.at, 0), 0)
    same(api.s.is_exist("z"), 0)
    same(api.s.put_from("", memory.at, 10), -600)
    same(api.s.put_from("z", memory.at, 10), 0)
    same(api.s.put_from("z", memory.at + 10, 10), 0)
    same(api.s.get("z"), memory[:10])


def case_memory_that_is_not_registered(api: Api) -> None:
    memory = api.memory(4096, register=False)
    same(api.s.put_from("z", memory.at, 10), api.differs("unregistered", 0, -600))
    api.s.put("y", b"0123456789")
    same(api.s.get_into("y", memory.at, 10), api.differs("unregistered", 10, -600))


def case_batch_put_from(api: Api) -> None:
    memory = api.memory(4096)
    at = memory.at
    same(api.s.batch_put_from(["a", "b", ""], [at, at + 10, at], [10, 0, 5]), [0, -600, -600])
    same(api.s.get("a"), memory[:10])
    same(api.s.batch_put_from(["d", "d"], [at, at + 10], [10, 10]), [0, 0])
    assert api.s.get("d") in api.differs(
        "duplicate keys", (memory[:10], memory[10:20]), (memory[:10],)
    )
    same(api.s.batch_put_from(["e", "f"], [at], [10, 20]), [-600, -600])
    same(api.s.batch_put_from(["e", "f"], [at, at], [10]), [-600, -600])
    same(api.s.batch_put_from([], [], []), [])
    raises(TypeError, lambda: api.s.batch_put_from(["e"], at, [10]))
    raises(TypeError, lambda: api.s.batch_put_from(["e"], [at], [-1]))
    raises(TypeError, lambda: api.s.batch_put_from(["e"], [1.0], [10]))
    raises(TypeError, lambda: api.s.batch_put_from("e", [at], [10]))


def case_batch_get_into(api: Api) -> None:
    memory = api.memory(4096)
    at = memory.at
    api.s.put("a", b"0123456789")
    api.s.put("b", b"xyz")
    keys = ["a", "nosuch", "b", ""]
    same(
        api.s.batch_get_into(keys, [at, at + 100, at + 200, at + 300], [20] * 4),
        [10, -704, 3, -704],
    )
    same((memory[:10], memory[200:203]), (b"0123456789", b"xyz"))
    same(api.s.batch_get_into(["a", "b"], [at, at + 50], [5, 20]), [-600, 3])
    same(api.s.batch_get_into(["a", "b"], [at], [20]), [-600, -600])
    same(api.s.batch_get_into([], [], []), [])
    raises(TypeError, lambda: api.s.batch_get_into(["a"], [at], ["10"]))


def case_batch_get_into_of_one_key_twice(api: Api) -> None:
    memory = api.memory(4096)
    at = memory.at
    api.s.put("a", b"0123456789")
    stale = memory[100:110]
    same(api.s.batch_get_into(["a", "a"], [at, at + 100], [10, 10]), [10, 10])
    same(memory[:10], api.differs("duplicate keys", memory[:10], b"0123456789"))
    same(memory[100:110], api.differs("duplicate keys", memory[100:110], b"0123456789"))
    if not api.real:
        assert stale != memory[100:110]


def case_multi_buffers(api: Api) -> None:
    memory = api.memory(4096)
    at = memory.at
    keys, places, sizes = ["m1", "m2"], [[at, at + 10], [at + 20]], [[5, 6], [7]]
    same(api.s.batch_put_from_multi_buffers(keys, places, sizes), [0, 0])
    same(api.s.get("m1"), memory[:5] + memory[10:16])
    same(api.s.get("m2"), memory[20:27])
    same(api.s.batch_put_from_multi_buffers(keys, places, sizes), [0, 0])
    back = [[at + 100, at + 200], [at + 300], [at]]
    found = api.s.batch_get_into_multi_buffers(["m1", "m2", "nosuch"], back, [[5, 6], [7], [1]])
    same(found, [11, 7, -704])
    same(
        memory[100:105] + memory[200:206] + memory[300:307],
        memory[:5] + memory[10:16] + memory[20:27],
    )


def case_multi_buffers_of_other_sizes_than_the_object(api: Api) -> None:
    memory = api.memory(4096)
    at = memory.at
    api.s.put("m", b"0123456789")
    same(api.s.batch_get_into_multi_buffers(["m"], [[at, at + 10]], [[5, 4]]), [-600])
    same(api.s.batch_get_into_multi_buffers(["m"], [[at, at + 10]], [[5, 20]]), [-800])
    same(api.s.batch_get_into_multi_buffers(["m"], [[at, at + 10]], [[5, 5]]), [10])
    same(api.s.batch_get_into_multi_buffers(["m"], [[at, at + 20]], [[10, 0]]), [10])


def case_multi_buffers_that_do_not_match(api: Api) -> None:
    memory = api.memory(4096)
    at = memory.at
    put, get = api.s.batch_put_from_multi_buffers, api.s.batch_get_into_multi_buffers
    same(put(["e1"], [[]], [[]]), [-600])
    same(put(["e2"], [[at, at + 9]], [[0, 5]]), [0])
    same(api.s.get("e2"), memory[9:14])
    same(put(["e3"], [[at, at]], [[5]]), [-600])
    same(put(["e4", "e5"], [[at, at]], [[5, 5]]), [-600, -600])
    same(put([], [], []), [])
    same(put(["d", "d"], [[at], [at + 9]], [[5], [5]]), [0, 0])
    assert api.s.get("d") in api.differs(
        "duplicate keys", (memory[:5], memory[9:14]), (memory[:5],)
    )
    api.s.put("m", b"0123456789")
    same(get(["m", "m"], [[at]], [[10]]), [-600, -600])
    same(get([], [], []), [])
    same(get(["m"], [[at, at + 20]], [[10]]), api.differs("more pointers than sizes", [10], [-600]))
    raises(TypeError, lambda: put(["e"], [at], [5]))
    raises(TypeError, lambda: put(["e"], [[at]], [[-5]]))
    raises(TypeError, lambda: get(["e"], [["x"]], [[5]]))
    raises(TypeError, lambda: get(["e"], [[at]], [[5]], "yes"))


def case_many_pieces(api: Api) -> None:
    memory = api.memory(4 << 20)
    count, pieces, size = 16, 61, 2048
    places = [[memory.at + (i * pieces + j) * size for j in range(pieces)] for i in range(count)]
    sizes = [[size] * pieces for _ in range(count)]
    keys = [api.key() for _ in range(count)]
    same(api.s.batch_put_from_multi_buffers(keys, places, sizes), [0] * count)
    back = [[p + (2 << 20) for p in row] for row in places]
    same(api.s.batch_get_into_multi_buffers(keys, back, sizes), [size * pieces] * count)
    used = count * pieces * size
    same(memory[2 << 20 : (2 << 20) + used], memory[:used])


def case_upsert_from(api: Api) -> None:
    memory = api.memory(4096)
    at = memory.at
    same(api.s.upsert_from("u", at, 10), 0)
    same(api.s.upsert_from("u", at + 10, 10), 0)
    same(api.s.get("u"), memory[10:20])
    same(api.s.upsert_from("u", at, 20), 0)
    same(api.s.get("u"), memory[:20])
    same(api.s.upsert_from("u", at, 0), 0)
    same(api.s.get_size("u"), 20)
    same(api.s.batch_upsert_from(["u", "v"], [at, at], [5, 5]), [0, 0])
    same(api.s.get("u"), memory[:5])
    same(api.s.batch_upsert_from(["u"], [at, at], [5, 5]), [-600])
    same(api.s.batch_upsert_from([], [], []), [])


def case_metadata_in_front(api: Api) -> None:
    memory = api.memory(4096)
    at = memory.at
    same(api.s.put_from_with_metadata("m", at, at + 500, 100, 20), 0)
    same(api.s.get("m"), memory[500:520] + memory[:100])
    same(api.s.put_from_with_metadata("m", at, at + 500, 100, 20), 0)
    same(api.s.put_from_with_metadata("n", at, 0, 100, 0), 0)
    same(api.s.get_size("n"), 100)
    same(api.s.put_from_with_metadata("o", at, 0, 0, 0), 0)
    same(api.s.is_exist("o"), 0)
    same(
        api.s.put_from_with_metadata("", at, at + 500, 10, 10),
        api.differs("positive codes", 600, -600),
    )
