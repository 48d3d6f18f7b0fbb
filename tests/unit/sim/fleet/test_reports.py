"""What is said of simulated runs: sharding by hand, what is near enough, what is calibrated."""

from __future__ import annotations

import pytest

from moonpool.errors import ConfigError
from moonpool.sim.fleet import seed
from moonpool.sim.fleet.master import Prices
from moonpool.sim.fleet.records import Records
from moonpool.sim.fleet.request import Request
from moonpool.sim.fleet.scale import Load
from moonpool.sim.fleet.scale_report import by_chain, sharded
from moonpool.sim.fleet.seed_report import met
from moonpool.sim.fleet.shape import split_of

PRICES = Prices({"match": 1e-4, "put_end": 1e-4}, {"match": 0.0, "put_end": 1e-3})


def load() -> Load:
    summary = Records().summary()
    messages = {"match": 1000.0, "put_end": 100.0}
    items = {"match": 200_000.0, "put_end": 300.0}
    return Load(12, summary, messages, items, 0.41, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0)


def test_one_master_has_all() -> None:
    # 0.1 s of lookups a second; 0.01 s of messages and 0.3 s of objects of puts.
    for how in (sharded, by_chain):
        assert how(load(), PRICES, 1) == pytest.approx((1100.0, 0.41))


def test_by_key_each_master_has_each_message() -> None:
    # Lookups go to all four; puts of three objects to three: 4,000 and 300 messages.
    messages, each = sharded(load(), PRICES, 4)
    assert messages == pytest.approx(4300.0)
    assert each == pytest.approx((0.4 + 0.03 + 0.3) / 4)


def test_by_chain_only_lookups_are_doubled() -> None:
    messages, each = by_chain(load(), PRICES, 4)
    assert messages == pytest.approx(2100.0)
    assert each == pytest.approx((0.2 + 0.01 + 0.3) / 4)


def test_what_is_near_enough() -> None:
    assert met("throughput_ratio", 4.7)
    assert not met("throughput_ratio", 4.8)
    assert met("hit_rate_pool", 0.941)
    assert not met("hit_rate_pool", 0.943)


def test_what_all_conversations_begin_with_is_the_baselines_hit_rate() -> None:
    sessions = seed.trace(1)
    turns = sum(len(each.turns) for each in sessions)
    mean = sum(each.input_tokens for each in sessions) / turns
    assert sessions[0].shared_tokens == pytest.approx(0.017 * mean, abs=1)


def test_splits() -> None:
    assert split_of("8") == (8, 0, 0)
    assert split_of("2p4D") == (0, 2, 4)
    for wrong in ("", "0", "2P", "P4D", "-1", "1P1D,2P2D"):
        with pytest.raises(ConfigError, match="split"):
            split_of(wrong)


def test_a_window_of_records() -> None:
    records = Records()
    for number in range(4):
        request = Request("s", number, [], 100, 11, arrived_s=float(number))
        request.local_tokens, request.pool_tokens, request.could_hit_tokens = 10, 20, 40
        request.first_s, request.end_s = number + 1.0, number + 3.0
        records.add(request)
    found = records.summary(1.0, 4.0)
    # Those that came at 1, 2 and 3; the answer that ended at 3 (of 0), before 4.
    assert found.requests == 3
    assert found.requests_s == pytest.approx(1 / 3)
    assert (found.local_hit_rate, found.pool_hit_rate) == pytest.approx((0.1, 0.2))
    assert found.ideal_hit_rate == pytest.approx(0.4)
    assert (found.ttft_s.p50, found.e2e_s.p50) == (1.0, 3.0)
    assert found.itl_s == pytest.approx(2.0 / 10)
    ended = records.summary(1.0, 4.0, ended_only=True)
    assert ended.requests == 1
