"""Counts: bounded, merged by addition, and on both of vLLM's ways out."""

from __future__ import annotations

import json
from types import ModuleType
from types import SimpleNamespace as Bag
from typing import Any

import pytest
from prometheus_client import REGISTRY, Counter, Gauge, Histogram
from prometheus_client.registry import CollectorRegistry

from moonpool.vllm import stats
from moonpool.vllm.stats import Tally


def test_counts_are_taken_once() -> None:
    tally = Tally()
    tally.count("loads")
    tally.count("loads", 2)
    tally.count("saves", 0)
    tally.set("pinned_blocks", 3)
    assert tally.take() == {"loads": 3, "pinned_blocks": 3}
    assert tally.take() == {}


def test_what_is_sent_does_not_grow_with_what_happened() -> None:
    """Weakness 33: no list of records in each step."""
    tally = Tally()
    for n in range(10_000):
        tally.observe("load_seconds", n / 1000)
        tally.count("loads")
    data = tally.take()
    assert len(json.dumps(data)) < 400
    assert sum(data["load_seconds"][:-1]) == 10_000


def test_merging_adds_counts_and_takes_the_newer_gauge() -> None:
    tally, other = Tally(), Tally()
    for one, value in ((tally, 0.003), (other, 0.3)):
        one.count("loads")
        one.observe("load_seconds", value)
        one.set("pinned_blocks", value)
    merged = stats.merge(tally.take(), other.take())
    assert merged["loads"] == 2
    assert merged["pinned_blocks"] == 0.3
    assert sum(merged["load_seconds"][:-1]) == 2
    assert merged["load_seconds"][-1] == pytest.approx(0.303)
    assert stats.summary(merged)["load_seconds_mean"] == pytest.approx(0.1515)


def test_everything_counted_is_described() -> None:
    names = {*stats.COUNTERS, *stats.GAUGES, *stats.HISTOGRAMS}
    assert len(names) == len(stats.COUNTERS) + len(stats.GAUGES) + len(stats.HISTOGRAMS)
    assert list(stats.BUCKETS_S) == sorted(stats.BUCKETS_S)


@pytest.fixture
def registry(monkeypatch: pytest.MonkeyPatch) -> CollectorRegistry:
    own = CollectorRegistry()
    monkeypatch.setattr(REGISTRY, "register", own.register)
    return own


def prom(connector: ModuleType) -> Any:
    types = {Gauge: Gauge, Counter: Counter, Histogram: Histogram}
    return connector.MoonpoolConnector.build_prom_metrics(
        Bag(kv_transfer_config=None), types, ["model_name", "engine"], {0: ["m", "0"]}
    )


def test_prometheus_shows_what_was_counted(
    connector: ModuleType, registry: CollectorRegistry
) -> None:
    """Weakness 30."""
    metrics = prom(connector)
    tally = Tally()
    tally.count("load_bytes", 4096)
    tally.set("pinned_blocks", 7)
    for seconds in (0.003, 0.003, 0.3):
        tally.observe("load_seconds", seconds)
    metrics.observe(tally.take(), 0)
    metrics.observe({"load_bytes": 1, "unknown": 1}, 0)
    metrics.observe({"load_bytes": 1}, 9)
    metrics.observe({}, 0)
    labels = {"model_name": "m", "engine": "0"}
    value = registry.get_sample_value
    assert value("vllm:moonpool_load_bytes_total", labels) == 4097
    assert value("vllm:moonpool_pinned_blocks", labels) == 7
    assert value("vllm:moonpool_load_seconds_count", labels) == 3
    assert value("vllm:moonpool_load_seconds_bucket", labels | {"le": "0.005"}) == 2
    assert value("vllm:moonpool_load_seconds_bucket", labels | {"le": "0.5"}) == 3
    assert value("vllm:moonpool_saves_total", labels) == 0


def test_a_single_observation_is_shown_exactly(
    connector: ModuleType, registry: CollectorRegistry
) -> None:
    metrics, tally = prom(connector), Tally()
    tally.observe("save_seconds", 0.0123)
    metrics.observe(tally.take(), 0)
    labels = {"model_name": "m", "engine": "0"}
    assert registry.get_sample_value("vllm:moonpool_save_seconds_sum", labels) == 0.0123


def test_the_log_line_and_multiconnector_take_the_same_counts(
    connector: ModuleType, registry: CollectorRegistry
) -> None:
    """A child with stats and no metrics, or the reverse, makes MultiConnector fail."""
    from vllm.distributed.kv_transfer.kv_connector.v1.multi_connector import (
        MultiKVConnectorPromMetrics,
        MultiKVConnectorStats,
    )

    cls = connector.MoonpoolConnector
    one = cls.build_kv_connector_stats({"loads": 1})
    assert cls.build_kv_connector_stats().is_empty()
    many = MultiKVConnectorStats()
    many["MoonpoolConnector"] = one
    more = MultiKVConnectorStats()
    more["MoonpoolConnector"] = cls.build_kv_connector_stats({"loads": 2})
    many.aggregate(more)
    assert many.reduce() == {"MoonpoolConnector": {"loads": 3}}
    metrics = MultiKVConnectorPromMetrics(
        Bag(kv_transfer_config=None),
        {Gauge: Gauge, Counter: Counter, Histogram: Histogram},
        ["model_name", "engine"],
        {0: ["m", "0"]},
        {"MoonpoolConnector": prom(connector)},
    )
    metrics.observe(many.to_dict(), 0)
    labels = {"model_name": "m", "engine": "0"}
    assert registry.get_sample_value("vllm:moonpool_loads_total", labels) == 3
    one.reset()
    assert one.is_empty()
