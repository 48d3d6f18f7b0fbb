"""Sessions and ranges: parts of objects."""

from __future__ import annotations

from tests.compat.cases.bed import Api, raises, same


def case_reading_in_parts(api: Api) -> None:
    memory = api.memory(4096)
    at = memory.at
    api.s.put("r", b"hello" * 10)
    same(api.s.batch_get_session_start(["r", "nosuch", "", "r"]), [0, -704, -704, 0])
    read = api.s.batch_get_into_multi_buffer_ranges
    same(read(["r", "nosuch"], [[at, at + 100], [at]], [[5, 5], [5]], [[0, 41], [0]]), [10, -600])
    same((memory[:5], memory[100:105]), (b"hello", b"elloh"[:5]))
    same(read(["r"], [[at]], [[10]], [[45]]), [-600])
    same(read(["r"], [[at]], [[10, 5]], [[45]]), [-600])
    same(read(["r", "t"], [[at]], [[10]], [[0]]), [-600, -600])
    same(read([], [], [], []), [])
    same(read(["r"], [[]], [[]], [[]]), [0])
    same(api.s.batch_get_session_end(["r", "nosuch"]), 0)
    same(api.s.batch_get_session_end(["r"]), 0)
    same(read(["r"], [[at]], [[5]], [[0]]), [-600])
    same((api.s.batch_get_session_start([]), api.s.batch_get_session_end([])), ([], 0))
    raises(TypeError, lambda: read(["r"], [at], [[5]], [[0]]))
    raises(TypeError, lambda: api.s.batch_get_session_start("r"))


def case_writing_in_parts(api: Api) -> None:
    memory = api.memory(4096)
    at = memory.at
    write = api.s.batch_put_from_multi_buffer_ranges
    api.s.put("r", b"1")
    start = api.s.batch_put_session_start
    same(start(["p1", "r", "", "p2", "p3"], [100, 5, 5, 0, 50]), [0, -705, -600, -600, 0])
    same(start(["x", "y"], [100]), [-600, -600])
    same(start(["d", "d"], [100, 100]), [0, -705])
    same((api.s.is_exist("p1"), api.s.get("p1"), api.s.get_size("p1")), (0, b"", -703))
    same(
        (api.s.remove("p1"), api.s.get_into("p1", at, 100), api.s.put("p1", b"2")), (-703, -703, 0)
    )
    found = write(
        ["p1", "nosuch", "p3"],
        [[at, at + 50], [at], [at]],
        [[50, 50], [5], [60]],
        [[0, 50], [0], [0]],
    )
    same(found, [100, -600, -600])
    same(write(["p1"], [[at]], [[60]], [[50]]), [-600])
    same(write(["p1"], [[at]], [[60, 1]], [[50]]), [-600])
    same(write(["p1", "p3"], [[at]], [[60]], [[50]]), [-600, -600])
    same(api.s.batch_put_session_end(["p1", "nosuch", "r"]), [0, -600, -600])
    same((api.s.get("p1"), api.s.is_exist("p1")), (memory[:100], 1))
    same(api.s.batch_put_session_end(["p1"]), [-600])
    same(api.s.batch_put_session_revoke(["p3", "p1", "nosuch", "d"]), [0, -600, -600, 0])
    same(api.s.batch_put_session_end(["p3"]), [-600])
    same(api.s.batch_is_exist(["p3", "d"]), [0, 0])
    same(api.s.put("p3", b"3"), 0)
    same(api.s.get("p3"), b"3")
    nothing = (start([], []), api.s.batch_put_session_end([]), api.s.batch_put_session_revoke([]))
    same((*nothing, write([], [], [], [])), ([], [], [], []))


def case_a_session_begun_twice(api: Api) -> None:
    same(api.s.batch_put_session_start(["p"], [100]), [0])
    same(api.s.batch_put_session_start(["p"], [100]), [-600])
    same(api.s.batch_put_session_revoke(["p"]), [0])


def case_ranges(api: Api) -> None:
    memory = api.memory(4096)
    at, read = memory.at, api.s.get_into_ranges
    api.s.put("u", bytes(range(100)))
    api.s.put("m", b"0123456789")
    same(read([at], [["u"]], [[[0]]], [[[5]]], [[[10]]]), [[[10]]])
    same(memory[:10], bytes(range(5, 15)))
    found = read(
        [at, at + 1000],
        [["u", "nosuch"], ["m"]],
        [[[0, 20], [40]], [[0]]],
        [[[5, 95], [0]], [[0]]],
        [[[10, 10], [5]], [[10]]],
    )
    same(found, [[[10, -600], [-704]], [[10]]])
    same(memory[1000:1010], b"0123456789")
    same(read([at], [["u"]], [[[0]]], [[[5]]], [[[0]]]), [[[0]]])
    same(read([at], [["u"]], [[[4091]]], [[[5]]], [[[10]]]), [[[-600]]])
    same(read([0], [["u"]], [[[0]]], [[[5]]], [[[10]]]), [[[-600]]])
    same(read([], [], [], [], []), [])
    raises(TypeError, lambda: read(at, [["u"]], [[[0]]], [[[5]]], [[[10]]]))
    raises(TypeError, lambda: read([at], ["u"], [[[0]]], [[[5]]], [[[10]]]))
    raises(TypeError, lambda: read([at], [["u"]], [[0]], [[[5]]], [[[10]]]))


def case_ranges_that_do_not_match(api: Api) -> None:
    memory = api.memory(4096)
    at, read = memory.at, api.s.get_into_ranges
    api.s.put("u", bytes(range(100)))
    same(read([at], [["u"]], [[[0]]], [[[5, 6]]], [[[10]]]), [[[-600]]])
    same(read([at, at], [["u"]], [[[0]]], [[[5]]], [[[10]]]), [[[-600]], [[-600]]])
