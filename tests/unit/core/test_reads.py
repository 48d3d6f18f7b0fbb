"""Lookups and what they leave alone; locating, leasing, browsing, removing."""

from __future__ import annotations

import math
from collections import deque
from typing import Any

import numpy as np
import pytest

from moonpool.core import messages as m
from moonpool.core.keys import key_of, pack
from tests.unit.core.driver import NAMESPACE, PAGE, Driver, block, digests

A, B, C = key_of("a"), key_of("b"), key_of("c")


@pytest.fixture
def pool() -> Driver:
    driver = Driver()
    driver.mount()
    return driver


def fingerprint(pool: Driver) -> str:
    """Everything in the state but its clock and counters."""
    state = vars(pool.state).items()
    return describe({k: v for k, v in state if k not in ("now", "_clock", "counters")}, {})


def describe(value: Any, seen: dict[int, int]) -> str:
    """Spell a value out with all that it refers to, each object once."""
    if value is None or isinstance(value, (int, float, str, bytes, bytearray)):
        return repr(value)
    if isinstance(value, memoryview | np.ndarray):
        return repr(value.tobytes())
    if id(value) in seen:
        return f"#{seen[id(value)]}"
    seen[id(value)] = len(seen)
    if isinstance(value, dict):
        parts = [*value.keys(), *value.values()]
    elif isinstance(value, (list, tuple, set, deque)):
        parts = list(value)
    else:
        names = getattr(type(value), "__slots__", None) or vars(value)
        parts = [getattr(value, name) for name in names]
    return f"{type(value).__name__}({','.join(describe(each, seen) for each in parts)})"


def match(pool: Driver, *numbers: int, stride: int = 1, namespace: bytes = NAMESPACE) -> int:
    request = m.Match(namespace, digests(*numbers), 16, stride)
    return pool.expect(m.Matched, request).count


def test_match_counts_up_to_the_first_gap(pool: Driver) -> None:
    pool.put(*(block(i) for i in (0, 1, 2, 4)))
    assert match(pool, 0, 1, 2, 3, 4) == 3
    assert match(pool, 3, 0) == 0
    assert match(pool) == 0
    assert match(pool, 0, 1, namespace=b"M" * 16) == 0
    assert match(pool, 0, namespace=b"") == 0
    assert pool.count("match_hit_blocks") == 3


def test_match_with_a_stride(pool: Driver) -> None:
    pool.put(*(block(i) for i in (3, 7, 9, 15)))
    numbers = tuple(range(16))
    assert match(pool, *numbers, stride=4) == 10
    assert match(pool, *numbers[:8], stride=4) == 8
    assert match(pool, *numbers[:7], stride=4) == 4
    pool.put(block(10))
    assert match(pool, *numbers, stride=4) == 11
    assert match(pool, *numbers[:10], stride=4) == 10
    assert match(pool, *numbers[:3], stride=4) == 0
    assert match(pool, 3, stride=1 << 60) == 1


def test_match_does_not_count_what_is_in_progress(pool: Driver) -> None:
    pool.start(block(0))
    assert match(pool, 0) == 0


@pytest.mark.parametrize(
    "request_",
    [
        m.Match(NAMESPACE, b"x" * 17, 16),
        m.Match(NAMESPACE, b"x" * 16, 0),
        m.Match(NAMESPACE, b"x" * 16, -16),
        m.Match(NAMESPACE, b"", 1 << 70),
        m.Match(NAMESPACE, b"x" * 16, 16, 0),
        m.Match(NAMESPACE, b"x" * 16, 16, -1),
        m.Match(NAMESPACE, b"x" * (m.MATCH_DIGESTS_MAX + 1), 1),
        m.Get([A], 1, math.nan),
        m.Get([A], 1, math.inf),
        m.Get([A], 1, -0.5),
        m.Get([A], -1, 1.0),
        m.Hold([A], 1 << 64, 1.0),
        m.List(None, b"", 0, 0),
        m.List(None, b"", 0, -1),
        m.List(None, b"", -1, 1),
        m.List(None, b"", 0, 1 << 70),
        m.Hello(1, 1, "client", "p"),
    ],
)
def test_requests_that_cannot_be_served(pool: Driver, request_: Any) -> None:
    pool.put(A)
    before = fingerprint(pool)
    assert pool.expect(m.Failed, request_).code == -600
    assert fingerprint(pool) == before


def test_match_keys_and_exists(pool: Driver) -> None:
    pool.put(A, block(1))
    assert pool.expect(m.Matched, m.MatchKeys([A, block(1), B, A])).count == 2
    assert pool.exists(A, B, block(1), b"", b"\xff", b"\x10abc") == [1, 0, 1, 0, 0, 0]


def test_lookups_change_nothing(pool: Driver) -> None:
    pool.put_chain(*(block(i) for i in range(8)))
    pool.put(A, B)
    pool.start(C)
    pool.get(A, lease=1, lease_s=5.0)
    pool.get(B, lease=2, lease_s=50.0)
    before = fingerprint(pool)
    # Even what is overdue by now is left to those that change something.
    pool.now += 40.0
    for request in (
        m.Match(NAMESPACE, digests(*range(8)), 16),
        m.Match(NAMESPACE, digests(*range(8)), 16, 4),
        m.MatchKeys([A, B, C]),
        m.Exists([A, B, C, b"\xff"]),
        m.Stat(A),
        m.Stat(C),
        m.List(None, b"", 0, 3),
        m.GetStatus(),
        m.GetSegments(),
    ):
        pool.ask(request)
    assert fingerprint(pool) == before
    pool.get(A, lease_s=0.0)
    assert fingerprint(pool) != before


def test_lookups_do_not_delay_eviction() -> None:
    pool = Driver()
    pool.mount(pages=4)
    pool.put(*(block(i) for i in range(4)))
    for _ in range(3):
        assert match(pool, 0) == 1
        pool.exists(block(0))
        pool.stat(block(0))
    pool.put(A)
    assert pool.exists(*(block(i) for i in range(4))) == [0, 1, 1, 1]
    pool.get(block(1), lease_s=0)
    pool.put(B)
    assert pool.exists(*(block(i) for i in range(4))) == [0, 1, 0, 1]


def test_get_tells_why_an_object_is_not_there(pool: Driver) -> None:
    pool.start(A)
    found = pool.get(A, B, b"", b"\x10abc")
    assert [each.code for each in found] == [-703, -704, -600, -600]
    assert [each.generation for each in found] == [0, 0, 0, 0]
    assert pool.status().leases == 0
    assert pool.count("get_misses") == 4


def test_leases_protect_until_they_end(pool: Driver) -> None:
    pool.put(A, B)
    pool.get(A, B, lease=5, lease_s=10.0)
    assert pool.remove(A) == [-706]
    pool.now += 9.9
    assert pool.remove(A) == [-706]
    pool.now += 0.2
    assert pool.remove(A) == [0]
    assert pool.count("leases_expired") == 1


def test_a_lease_grows_and_is_prolonged(pool: Driver) -> None:
    pool.put(A, B)
    pool.get(A, lease=5, lease_s=10.0)
    pool.now += 8.0
    pool.get(B, B, lease=5, lease_s=10.0)
    pool.now += 8.0
    assert pool.status().leases == 1
    assert pool.remove(A, B) == [-706, -706]
    pool.get(A, lease=5, lease_s=1.0)
    pool.now += 1.5
    assert pool.remove(A) == [-706]
    assert pool.ask(m.Release([5])) is None
    assert pool.remove(A, B) == [0, 0]


def test_leases_belong_to_their_peer(pool: Driver) -> None:
    pool.put(A)
    pool.get(A, lease=5, peer="p")
    pool.get(A, lease=5, peer="q")
    pool.ask(m.Release([5, 6, -1, 1 << 90]), "q")
    assert pool.remove(A) == [-706]
    pool.ask(m.Release([5]), "q")
    assert pool.remove(A) == [-706]
    pool.gone("p")
    assert pool.remove(A) == [0]


def test_a_lease_of_no_time_is_none(pool: Driver) -> None:
    pool.put(A)
    assert pool.get(A, lease_s=0.0)[0].code == 0
    assert pool.status().leases == 0


def test_leases_are_cut_to_the_longest() -> None:
    pool = Driver(lease_s_max=60.0)
    pool.mount()
    pool.put(A)
    pool.get(A, lease_s=1e300)
    pool.now += 61.0
    assert pool.remove(A) == [0]


def test_leases_are_bounded() -> None:
    pool = Driver(leases_per_peer_max=2, lease_objects_per_peer_max=3)
    pool.mount()
    pool.put(A, B)
    pool.get(A, lease=1)
    pool.get(A, lease=2)
    assert pool.expect(m.Failed, m.Get([A], 3, 1.0)).code == -600
    pool.get(B, lease=2)
    assert pool.expect(m.Failed, m.Hold([B], 1, 1.0)).code == -600
    assert pool.get(A, lease=1, peer="other")[0].code == 0


def test_hold_takes_the_leading_keys(pool: Driver) -> None:
    pool.put(A, C)
    assert pool.expect(m.Matched, m.Hold([A, B, C], 1, 5.0)).count == 1
    assert pool.remove(A, C) == [-706, 0]


def test_remove(pool: Driver) -> None:
    (grant,) = pool.put(A)
    pool.start(B)
    assert pool.remove(A, A, B, C, b"") == [0, -704, -703, -704, -600]
    assert pool.take_pushes() == [
        ("node", m.DropSlots(1, [grant.slots[0].index], [grant.generation]))
    ]
    assert pool.remove(B, force=True) == [-703]


def test_remove_by_force_while_leased(pool: Driver) -> None:
    pool.put(A)
    pool.get(A, lease=1)
    assert pool.remove(A, force=True) == [0]
    pool.put(A)
    assert pool.remove(A) == [0]
    pool.put(A)
    pool.ask(m.Release([1]))
    assert pool.stat(A) is not None


def test_remove_all(pool: Driver) -> None:
    pool.put_chain(block(0), block(1))
    pool.put(key_of("x1"), key_of("x2"), key_of("y"))
    pool.get(key_of("x1"))
    assert pool.expect(m.Matched, m.RemoveAll(b"\x00x")).count == 1
    assert pool.expect(m.Matched, m.RemoveAll(b"\x00x", force=True)).count == 1
    assert pool.expect(m.Matched, m.RemoveAll(b"\x10")).count == 2
    assert pool.expect(m.Matched, m.RemoveAll()).count == 1
    assert pool.status().objects == 0
    assert pool.status().segments[0].used_bytes == 0


def test_list_goes_page_by_page(pool: Driver) -> None:
    pool.put(*(key_of(f"k{i}") for i in range(7)), block(1))
    pool.remove(key_of("k2"))
    names: list[bytes] = []
    after = 0
    while True:
        page = pool.expect(m.Listed, m.List(b"", b"k", after, 2))
        names += [each.key for each in page.objects]
        after = page.next
        if not after:
            break
        pool.exists(A)
    assert names == [key_of(f"k{i}") for i in (0, 1, 3, 4, 5, 6)]
    everything = pool.expect(m.Listed, m.List(None, b"", 0, 100))
    assert len(everything.objects) == 7
    assert everything.next == 0
    assert len(pool.expect(m.Listed, m.List(NAMESPACE, b"", 0, 100)).objects) == 1


def test_one_page_looks_at_a_bounded_number_of_objects() -> None:
    pool = Driver(list_scan_max=3)
    pool.mount()
    pool.put(*(key_of(f"x{i}") for i in range(5)), A)
    page = pool.expect(m.Listed, m.List(None, b"a", 0, 10))
    assert page.objects == []
    page = pool.expect(m.Listed, m.List(None, b"a", page.next, 10))
    assert [each.key for each in page.objects] == [A]
    assert page.next == 0


def test_stat(pool: Driver) -> None:
    pool.put(A, size=10, pinned=True)
    pool.put(B, C, parent=A)
    pool.now += 5.0
    pool.get(A, lease=1)
    pool.now += 2.0
    info = pool.stat(A)
    assert info is not None
    assert (info.size, info.children, info.leases, info.pinned) == (10, 2, 1, True)
    assert (info.created_s_ago, info.used_s_ago) == pytest.approx((7.0, 2.0), abs=1e-4)
    assert info.segments == ["node/s0"]
    child = pool.stat(B)
    assert child is not None
    assert child.parent == A
    pool.start(block(9))
    unfinished = pool.stat(block(9))
    assert unfinished is not None
    assert not unfinished.complete
    assert pool.stat(key_of("none")) is None
    assert pool.stat(b"") is None


def test_status(pool: Driver) -> None:
    pool.put(A, size=PAGE + 1)
    pool.start(B, peer="q")
    pool.get(A)
    pool.now += 1.5
    status = pool.status()
    assert (status.epoch, status.objects, status.puts_in_progress) == (1, 1, 1)
    assert (status.leases, status.clients) == (1, 2)
    assert status.segments[0].used_bytes == 3 * PAGE
    assert status.segments[0].objects == 1
    assert status.uptime_s == 1.5
    assert status.counters["put_bytes"] == PAGE + 1


def test_names_that_only_look_alike(pool: Driver) -> None:
    pool.put(pack(b"bc", b"a"))
    assert pool.exists(pack(b"c", b"ab"), pack(b"abc"), pack(b"bc", b"a")) == [0, 0, 1]
