"""Groups: leased together, evicted together, or not at all."""

from __future__ import annotations

import random
from typing import Any

import pytest

from moonpool.core import messages as m
from moonpool.core.eviction import POLICIES
from moonpool.core.groups import GROUP_BYTES_MAX
from moonpool.core.keys import Key, key_of
from tests.unit.core.driver import Driver

A, B, C, D, E = (key_of(name) for name in "abcde")


def grouped(pool: Driver, group: bytes, *keys: bytes, **more: Any) -> None:
    pool.put(*keys, groups=[group] * len(keys), **more)


def test_a_lease_on_one_is_a_lease_on_all() -> None:
    pool = Driver()
    pool.mount()
    grouped(pool, b"g", A, B)
    pool.put(C)
    pool.get(A)
    assert pool.remove(B, C) == [-706, 0]
    pool.tick(10.0)
    assert pool.remove(B) == [0]


def test_one_that_joins_later_is_not_leased_yet_and_keeps_all_until_then() -> None:
    pool = Driver()
    pool.mount(pages=2)
    grouped(pool, b"g", A)
    pool.get(A, lease_s=5.0)
    grouped(pool, b"g", B)
    (refused,) = pool.start(C)
    assert (refused.code, pool.exists(A, B)) == (-200, [1, 1])
    pool.tick(5.0)
    pool.put(C)
    assert pool.exists(A, B, C) == [0, 0, 1]


@pytest.mark.parametrize("policy", POLICIES)
def test_all_go_at_once(policy: str) -> None:
    pool = Driver(eviction=policy)
    pool.mount(pages=4)
    grouped(pool, b"g", A, B, C)
    pool.put(D)
    pool.put(E)
    assert pool.exists(A, B, C, D, E) == [0, 0, 0, 1, 1]
    assert pool.count("evicted_objects") == 3


def test_the_use_of_one_is_the_use_of_all() -> None:
    pool = Driver()
    pool.mount(pages=4)
    grouped(pool, b"g", A, B)
    pool.put(C)
    pool.put(D)
    pool.get(A, lease_s=0.0)
    pool.put(E)
    assert pool.exists(A, B, C, D, E) == [1, 1, 0, 1, 1]


def test_a_hard_pin_on_one_keeps_all_until_it_ends() -> None:
    pool = Driver()
    pool.mount(pages=3)
    grouped(pool, b"g", A, pinned=True)
    grouped(pool, b"g", B)
    pool.put(C)
    pool.put(D)
    assert pool.exists(A, B, C, D) == [1, 1, 0, 1]
    assert pool.expect(m.Codes, m.Unpin([A])).codes == [0]
    pool.put(E)
    assert pool.exists(A, B, D, E) == [0, 0, 1, 1]


def test_soft_pins_on_some_only_delay_it() -> None:
    pool = Driver()
    pool.mount(pages=3)
    grouped(pool, b"g", A, soft_pin_s=60.0)
    grouped(pool, b"g", B)
    pool.put(C)
    pool.put(D)
    assert pool.exists(A, B, C, D) == [1, 1, 0, 1]
    pool.get(D)
    pool.put(E)
    assert pool.exists(A, B, D, E) == [0, 0, 1, 1]


def test_the_removal_of_what_kept_them_frees_the_others() -> None:
    pool = Driver()
    pool.mount(pages=2)
    grouped(pool, b"g", A)
    pool.get(A)
    grouped(pool, b"g", B)
    assert pool.start(C)[0].code == -200
    assert pool.remove(A, force=True) == [0]
    pool.put(C)
    pool.put(D)
    assert pool.exists(B, C, D) == [0, 1, 1]


def test_an_object_says_its_group_and_keeps_it() -> None:
    pool = Driver()
    pool.mount()
    grouped(pool, b"g", A)
    assert pool.start(A, groups=[b"h"])[0].code == -705
    found = pool.stat(A)
    assert found is not None
    assert found.group == b"g"


@pytest.mark.parametrize("groups", [[b"g"], [b"g"] * 3, [b"g", b"x" * (GROUP_BYTES_MAX + 1)]])
def test_what_does_not_fit_its_items_is_refused(groups: list[bytes]) -> None:
    pool = Driver()
    pool.mount()
    request = m.PutStart([m.PutItem(A, 1), m.PutItem(B, 1)], groups=groups)
    assert pool.expect(m.Failed, request).code == -600


@pytest.mark.parametrize("seed", range(8))
@pytest.mark.parametrize("policy", ["leaf-lru", "s3fifo"])
def test_random_operations_never_part_a_group(seed: int, policy: str) -> None:
    rng = random.Random(seed)
    pool = Driver(eviction=policy)
    pool.mount("one", pages=16)
    pool.mount("two", pages=16)
    groups: dict[bytes, list[Key]] = {}
    for step in range(150):
        act = rng.random()
        if act < 0.5:
            keys = [key_of(f"{step}-{i}") for i in range(rng.randint(1, 4))]
            group = rng.choice([b"", b"group-%d" % step])
            soft_s = rng.choice([0.0, 0.0, 5.0])
            grants = pool.start(*keys, soft_pin_s=soft_s, groups=[group] * len(keys))
            given = [grant for grant in grants if grant.code == 0]
            assert pool.end(*given) == [0] * len(given)
            if group and len(given) == len(keys):
                groups[group] = keys
        elif act < 0.8 and groups:
            keys = rng.choice(list(groups.values()))
            pool.get(rng.choice(keys), lease=step, lease_s=rng.choice([0.0, 1.0]))
        elif act < 0.9 and groups:
            group = rng.choice(list(groups))
            pool.remove(*groups.pop(group), force=True)
        else:
            pool.tick(rng.choice([0.1, 2.0]))
        for group, keys in list(groups.items()):
            there = pool.exists(*keys)
            assert len(set(there)) == 1
            if not there[0]:
                del groups[group]
