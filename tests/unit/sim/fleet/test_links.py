"""Links: what is shared is shared equally, to the last byte."""

from __future__ import annotations

import pytest

from moonpool.sim.events import Clock
from moonpool.sim.fleet.links import Backlog, FairLink, all_of
from moonpool.sim.fleet.master import ROUND_TRIP_S, MasterModel, Prices


def test_two_transfers_share_a_link_from_when_the_second_comes() -> None:
    clock = Clock()
    ended: dict[str, float] = {}
    link = FairLink(clock, 1e-9)  # one byte a second
    link.send(10, lambda: ended.update(first=clock.now_s))
    clock.at(4.0, lambda: link.send(3, lambda: ended.update(second=clock.now_s)))
    clock.run(100.0)
    # Alone for 4 s: 6 bytes are left. Both at half the rate: the second ends at 4 + 6, when the
    # first has had 3 more; its last 3 it has for itself.
    assert ended == {"second": pytest.approx(10.0), "first": pytest.approx(13.0)}
    assert link.total_bytes == 13


def test_equal_transfers_end_together() -> None:
    clock, ended = Clock(), []
    link = FairLink(clock, 1e-9)
    for _ in range(3):
        link.send(5, lambda: ended.append(clock.now_s))
    clock.run(100.0)
    assert ended == [pytest.approx(15.0)] * 3


def test_nothing_takes_no_time() -> None:
    clock, ended = Clock(), []
    FairLink(clock, 1.0).send(0, lambda: ended.append(clock.now_s))
    clock.run(1.0)
    assert ended == [0.0]


def test_small_transfers_end_one_after_the_other() -> None:
    way = Backlog(1e-9)
    assert way.send(0.0, 2) == 2.0
    assert way.send(1.0, 3) == 5.0
    assert way.send(9.0, 1) == 10.0


def test_all_of_waits_for_the_last() -> None:
    called: list[int] = []
    one = all_of(3, lambda: called.append(1))
    one()
    one()
    assert not called
    one()
    assert called == [1]


def test_the_master_serves_in_turn() -> None:
    prices = Prices({"match": 2.0, "get": 1.0}, {"match": 0.5, "get": 0.25})
    master = MasterModel(prices)
    assert master.ask(0.0, "match", 4) == pytest.approx(4.0 + ROUND_TRIP_S)
    assert master.ask(1.0, "get", 4) == pytest.approx(6.0 + ROUND_TRIP_S)
    assert master.busy_s == pytest.approx(6.0)
    assert master.messages == {"match": 1, "get": 1}


def test_shards_divide_the_objects_and_repeat_the_message() -> None:
    prices = Prices({"get": 1.0}, {"get": 1.0})
    assert MasterModel(prices, 1).ask(0.0, "get", 8) == pytest.approx(9.0 + ROUND_TRIP_S)
    # Each of four masters has a message and two objects.
    assert MasterModel(prices, 4).ask(0.0, "get", 8) == pytest.approx(3.0 + ROUND_TRIP_S)
