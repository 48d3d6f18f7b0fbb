"""Pins: what is never evicted, up to a quota, and what is evicted last."""

from __future__ import annotations

from typing import Any

import pytest

from moonpool.core import messages as m
from moonpool.core.eviction import POLICIES
from moonpool.errors import PinQuotaError, error_for
from tests.unit.core.driver import PAGE, Driver, block

QUOTA = -1020


def make(**config: Any) -> Driver:
    pool = Driver(**{"hard_pin_share": 0.5, **config})
    pool.mount(pages=8, slots=9)
    return pool


def pin(pool: Driver, *keys: bytes, soft_s: float = 0.0) -> list[int]:
    return pool.expect(m.Codes, m.Pin(list(keys), soft_s)).codes


def unpin(pool: Driver, *keys: bytes) -> list[int]:
    return pool.expect(m.Codes, m.Unpin(list(keys))).codes


@pytest.mark.parametrize("policy", POLICIES)
def test_a_pinned_object_outlives_any_pressure_until_it_is_unpinned(policy: str) -> None:
    pool = make(eviction=policy)
    pool.put(*(block(i) for i in range(8)))
    assert pin(pool, block(1), block(3)) == [0, 0]
    for number in range(10, 40):
        pool.put(block(number))
    assert pool.exists(block(0), block(1), block(3)) == [0, 1, 1]
    info = pool.stat(block(1))
    assert info is not None
    assert info.pinned
    assert unpin(pool, block(1), block(3)) == [0, 0]
    for number in range(40, 80):
        pool.put(block(number))
    assert pool.exists(block(1), block(3)) == [0, 0]


def test_pins_end_at_their_quota_with_an_error_of_their_own() -> None:
    pool = make()
    pool.put(*(block(i) for i in range(8)))
    assert pin(pool, *(block(i) for i in range(6))) == [0, 0, 0, 0, QUOTA, QUOTA]
    assert pin(pool, block(0)) == [0]
    assert isinstance(error_for(QUOTA, ""), PinQuotaError)
    assert pool.count("pins_refused") == 2
    pool.remove(block(0))
    assert pin(pool, block(5)) == [0]
    (grant,) = pool.start(block(9), pinned=True)
    assert grant.code == QUOTA


def test_puts_in_progress_count_for_the_quota() -> None:
    pool = make()
    grants = pool.start(*(block(i) for i in range(5)), pinned=True)
    assert [grant.code for grant in grants] == [0, 0, 0, 0, QUOTA]
    pool.revoke(grants[0])
    (grant,) = pool.start(block(7), pinned=True)
    assert grant.code == 0
    assert pool.end(*grants[1:4], grant) == [0, 0, 0, 0]
    assert pool.state.pins.nbytes == 4 * PAGE
    pool.gone("node", "node")
    assert pool.state.pins.nbytes == 0


def test_soft_pins_go_when_nothing_else_is_left_and_end_with_time() -> None:
    pool = make()
    pool.put(*(block(i) for i in range(8)))
    assert pin(pool, *(block(i) for i in range(7)), soft_s=60.0) == [0] * 7
    pool.put(block(8))
    assert pool.exists(*(block(i) for i in range(9))) == [1] * 7 + [0, 1]
    assert pin(pool, block(8)) == [0]
    pool.put(block(9))
    assert sum(pool.exists(*(block(i) for i in range(7)))) == 6
    assert pool.exists(block(8)) == [1]


def test_a_soft_pin_that_becomes_hard_and_back() -> None:
    pool = make()
    pool.put(block(0))
    assert pin(pool, block(0), soft_s=-1.0) == [0]
    info = pool.stat(block(0))
    assert info is not None
    assert info.soft_pin_s == 1800.0
    assert pin(pool, block(0)) == [0]
    assert pin(pool, block(0), soft_s=5.0) == [0]
    info = pool.stat(block(0))
    assert info is not None
    assert (info.pinned, info.soft_pin_s) == (True, 0.0)
    pool.tick(10.0)
    assert unpin(pool, block(0)) == [0]
    assert unpin(pool, block(0)) == [0]
    info = pool.stat(block(0))
    assert info is not None
    assert not info.pinned


def test_what_cannot_be_pinned_is_said_item_by_item() -> None:
    pool = make()
    pool.start(block(1))
    assert pin(pool, block(0), block(1), b"") == [-704, -703, -600]
    assert unpin(pool, block(0)) == [-704]
    for wrong in (1e9, float("nan"), float("inf")):
        pool.expect(m.Failed, m.Pin([block(1)], wrong))
    pool.expect(m.Failed, m.Pin([block(1)] * 65_537))
