"""Tenants: who may put, how much, and whose objects make room."""

from __future__ import annotations

import random
from typing import Any

import pytest

from moonpool.core import messages as m
from moonpool.core.keys import Key, pack
from moonpool.core.tenants import Tenants, namespace_of
from tests.unit.core.driver import PAGE, Driver, block


def key(tenant: str, name: str) -> Key:
    return pack(name.encode(), namespace_of(tenant))


def tenancy(pages: int = 16, **quotas: int) -> Driver:
    pool = Driver(tenants=True)
    pool.mount(pages=pages)
    for name, count in quotas.items():
        pool.state.tenants.register(name, count * PAGE, ())
    return pool


def charged(pool: Driver, name: str) -> int:
    quota = pool.state.tenants.named(name)
    assert quota is not None
    return quota.charged // PAGE


def test_without_them_anybody_may_put() -> None:
    pool = Driver()
    pool.mount()
    pool.put(key("a", "1"), key("default", "1"))


def test_only_those_registered_may_put_but_engines_may() -> None:
    pool = tenancy(a=4)
    codes = [g.code for g in pool.start(key("a", "1"), key("b", "1"), key("default", "1"))]
    assert codes == [0, -1701, -1701]
    pool.put(block(1))
    assert pool.exists(key("b", "1"), block(1)) == [0, 1]


def test_its_own_objects_make_room_and_no_others() -> None:
    pool = tenancy(a=3, b=3)
    pool.put(key("b", "old"))
    for number in range(5):
        pool.put(key("a", str(number)))
        pool.tick(0.1)
    assert pool.exists(*(key("a", str(n)) for n in range(5))) == [0, 0, 1, 1, 1]
    assert pool.exists(key("b", "old")) == [1]
    assert (charged(pool, "a"), charged(pool, "b")) == (3, 1)


def test_what_is_leased_or_pinned_for_good_stays_and_the_quota_holds() -> None:
    pool = tenancy(a=2)
    pool.put(key("a", "1"))
    pool.put(key("a", "2"), pinned=True)
    pool.get(key("a", "1"), lease_s=5.0)
    assert [g.code for g in pool.start(key("a", "3"))] == [-1700]
    pool.tick(5.0)
    pool.put(key("a", "3"))
    assert pool.exists(key("a", "1"), key("a", "2")) == [0, 1]
    assert pool.start(key("a", "large"), size=3 * PAGE)[0].code == -1700


def test_soft_pins_go_at_last() -> None:
    pool = tenancy(a=2)
    pool.put(key("a", "1"), soft_pin_s=60.0)
    pool.put(key("a", "2"))
    pool.put(key("a", "3"))
    assert pool.exists(key("a", "1"), key("a", "2")) == [1, 0]
    pool.get(key("a", "3"))
    pool.put(key("a", "4"))
    assert pool.exists(key("a", "1"), key("a", "3")) == [0, 1]


def test_puts_under_way_count_and_those_given_up_do_not() -> None:
    pool = tenancy(a=2)
    grants = pool.start(key("a", "1"), key("a", "2"))
    assert charged(pool, "a") == 2
    assert pool.start(key("a", "3"))[0].code == -1700
    assert pool.revoke(grants[0]) == [0]
    assert pool.end(grants[1]) == [0]
    assert charged(pool, "a") == 1
    pool.put(key("a", "3"))
    assert pool.remove(key("a", "3")) == [0]
    assert charged(pool, "a") == 1


def test_a_smaller_quota_makes_the_next_put_evict() -> None:
    pool = tenancy(a=4)
    for number in range(4):
        pool.put(key("a", str(number)))
    pool.state.tenants.register("a", 2 * PAGE, ())
    pool.put(key("a", "new"))
    assert charged(pool, "a") == 2
    assert pool.exists(key("a", "new")) == [1]


def test_what_is_there_already_is_charged_to_whom_it_belongs() -> None:
    pool = tenancy(a=4)
    pool.put(key("a", "1"))
    found = m.Found(key("b", "1"), b"", PAGE, PAGE, 7, 1 << 20, 5, 16 * PAGE)
    pool.mount("other", objects=[found])
    pool.state.tenants.register("b", PAGE, pool.state.index)
    assert (charged(pool, "a"), charged(pool, "b")) == (1, 1)


@pytest.mark.parametrize(
    ("wanted", "capacity", "effective"),
    [
        ({"a": 10, "b": 20}, 30, [10, 20]),
        ({"a": 10, "b": 20}, 15, [5, 10]),
        ({"a": 8_388_608, "b": 1 << 40}, 67_108_864, [512, 67_108_352]),
        ({"a": 1, "b": 1, "c": 1}, 2, [1, 1, 0]),
        ({"a": 5}, 0, [0]),
    ],
)
def test_where_all_want_more_than_there_is(
    wanted: dict[str, int], capacity: int, effective: list[int]
) -> None:
    tenants = Tenants(on=True)
    for name, nbytes in wanted.items():
        tenants.register(name, nbytes, ())
    tenants.scale(capacity)
    assert [each.effective for each in tenants.all()] == effective


@pytest.mark.parametrize("seed", range(6))
def test_random_operations_keep_the_books(seed: int) -> None:
    rng = random.Random(seed)
    pool = tenancy(pages=12, a=4, b=5, default=2)
    waiting: list[m.Grant] = []
    for step in range(200):
        names = [str(rng.randrange(8)) for _ in range(rng.randint(1, 3))]
        tenant = rng.choice(["a", "b", "default"])
        keys = [key(tenant, name) for name in names]
        act = rng.random()
        if act < 0.5:
            more: dict[str, Any] = {"pinned": rng.random() < 0.1}
            grants = [g for g in pool.start(*keys, **more) if g.code == 0]
            if rng.random() < 0.8:
                pool.end(*grants)
            else:
                waiting += grants
        elif act < 0.6 and waiting:
            pool.revoke(waiting.pop())
        elif act < 0.75:
            pool.get(*keys, lease=step, lease_s=1.0)
        elif act < 0.85:
            pool.remove(*keys, force=True)
        else:
            pool.tick(0.7)
        for quota in pool.state.tenants.all():
            assert quota.charged <= quota.effective
