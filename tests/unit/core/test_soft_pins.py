"""Soft pins: others go first, and only for a time."""

from __future__ import annotations

import pytest

from moonpool.core import messages as m
from moonpool.core.keys import key_of
from moonpool.core.settings import MasterConfig
from moonpool.errors import ConfigError
from tests.unit.core.driver import Driver

A, B, C, D = (key_of(name) for name in "abcd")


def test_others_go_first_whatever_was_used_last() -> None:
    pool = Driver()
    pool.mount(pages=2)
    pool.put(A, soft_pin_s=60.0)
    pool.put(B)
    pool.put(C)
    pool.put(D)
    assert pool.exists(A, B, C, D) == [1, 0, 0, 1]


def test_a_soft_pin_ends_after_its_time() -> None:
    pool = Driver()
    pool.mount(pages=2)
    pool.put(A, soft_pin_s=60.0)
    pool.put(B)
    pool.now += 60.0
    pool.ask(m.Tick(), "")
    pool.put(C)
    assert pool.exists(A, B, C) == [0, 1, 1]


def test_where_nothing_else_is_left_soft_pinned_objects_go_too() -> None:
    pool = Driver()
    pool.mount(pages=2)
    pool.put(A, B, soft_pin_s=-1.0)
    pool.get(A, lease_s=0.0)
    pool.put(C)
    assert pool.exists(A, B, C) == [1, 0, 1]
    assert pool.count("soft_pins_given_up") == 2


def test_a_master_may_keep_soft_pinned_objects_from_eviction() -> None:
    pool = Driver(evict_soft_pinned=False)
    pool.mount(pages=2)
    pool.put(A, B, soft_pin_s=60.0)
    (grant,) = pool.start(C)
    assert grant.code == -200
    pool.now += 60.0
    pool.ask(m.Tick(), "")
    pool.put(C)
    assert pool.exists(C) == [1]


def test_a_lease_holds_a_soft_pinned_object_too() -> None:
    pool = Driver()
    pool.mount(pages=2)
    pool.put(A, B, soft_pin_s=60.0)
    pool.get(A, lease=1, lease_s=10.0)
    pool.put(C)
    assert pool.exists(A, B, C) == [1, 0, 1]
    (info,) = pool.expect(m.Listed, m.Stat(A)).objects
    assert (info.pinned, info.soft_pin_s) == (False, 60.0)


def test_the_master_says_how_long_a_soft_pin_lasts() -> None:
    pool = Driver(soft_pin_s=5.0, soft_pin_s_max=50.0)
    pool.mount(pages=4)
    pool.put(A, soft_pin_s=-1.0)
    (info,) = pool.expect(m.Listed, m.Stat(A)).objects
    assert info.soft_pin_s == 5.0
    for wrong in (50.1, float("nan"), float("inf")):
        failed = pool.expect(m.Failed, m.PutStart([m.PutItem(B, 1)], soft_pin_s=wrong))
        assert failed.code == -600
    with pytest.raises(ConfigError, match="soft_pin_s"):
        MasterConfig(soft_pin_s=2.0, soft_pin_s_max=1.0)


def test_a_removed_object_is_no_longer_soft_pinned() -> None:
    pool = Driver()
    pool.mount(pages=2)
    pool.put(A, soft_pin_s=60.0)
    pool.ask(m.Remove([A], force=True))
    pool.put(A)
    pool.put(B)
    pool.put(C)
    assert pool.exists(A, B, C) == [0, 1, 1]
