"""The arithmetic of ``bench e2e``, on cases that are worked out by hand."""

from __future__ import annotations

import pytest

from moonpool.bench.e2e.compare import ratio, warning
from moonpool.bench.e2e.counters import Hits, Page, grown, hits_of, parse
from moonpool.bench.e2e.record import UNFINISHED, Record
from moonpool.bench.e2e.summary import bands, miss_cost, spread, summarise


def _record(number: int = 0, **more: object) -> Record:
    record = Record(number, "s", number, 100, 3, intended_s=0.0)
    record.token_s, record.output_tokens, record.ended_s = [1.0, 1.5, 3.0], 3, 3.25
    for name, value in more.items():
        setattr(record, name, value)
    return record


def test_percentiles_are_by_nearest_rank() -> None:
    found = spread([float(n) for n in range(1, 101)])
    assert (found.p50, found.p90, found.p95, found.p99, found.max) == (50, 90, 95, 99, 100)
    assert (found.count, found.mean) == (100, 50.5)
    assert spread([7.0]).p99 == 7.0
    assert spread([]).p50 is None


def test_times_of_an_answer() -> None:
    record = _record(intended_s=0.5, sent_s=0.6)
    assert record.ttft_s == 0.5
    assert record.e2e_s == 2.75
    assert record.tpot_s == 1.0
    assert list(record.gaps_s) == [0.5, 1.5]
    assert _record(token_s=[1.0], output_tokens=1).tpot_s is None


def test_latency_counts_from_when_a_request_was_to_be_sent() -> None:
    """One a second, of which the first takes 10 s: nine wait behind it, and would look fast."""
    records = [_record(n, intended_s=float(n), sent_s=10.0 + n / 10) for n in range(1, 10)]
    for record in records:
        record.token_s, record.ended_s = [record.sent_s + 0.1], record.sent_s + 0.1
        record.output_tokens = 1
    found = summarise(records)
    # The first of them was due at 1 and answered at 10.2, the last at 9 and at 11.0.
    assert found.ttft_s.max == pytest.approx(9.2)
    assert found.ttft_s.p50 == pytest.approx(5.6)
    assert found.late_s.max == pytest.approx(9.1)


def test_rates_are_of_what_was_answered() -> None:
    bad = _record(1, error="http 503", ended_s=4.0, output_tokens=0, token_s=[])
    cut = _record(2, error=UNFINISHED, ended_s=5.0, output_tokens=1, token_s=[4.0])
    found = summarise([_record(0), bad, cut])
    assert (found.requests, found.answered, found.unfinished) == (3, 1, 1)
    assert found.failures == {"http 503": 1}
    assert found.wall_s == 5.0
    assert found.requests_per_s == 0.2
    assert found.prompt_tokens_per_s == 20.0
    assert found.output_tokens_per_s == pytest.approx(0.6)
    assert found.ttft_s.count == 1
    assert summarise([]).requests_per_s == 0.0


def test_a_request_of_each_band_of_hits() -> None:
    records = [_record(n, cached_tokens=n) for n in (0, 24, 25, 90, 100)]
    assert [each.requests for each in bands(records)] == [2, 1, 0, 0, 2]
    assert bands([_record(0)]) == ()


def test_what_a_miss_costs_is_found_again() -> None:
    """TTFT of 0.2 s and 2 ms a computed token, 0.1 ms a cached one."""
    records = []
    for n in range(20):
        cached = (n * 7) % 13 * 8
        record = _record(n, prompt_tokens=200 + 10 * n, cached_tokens=cached)
        record.ideal_tokens = cached + 10
        record.token_s = [0.2 + 0.002 * (record.prompt_tokens - cached) + 0.0001 * cached]
        records.append(record)
    found = miss_cost(records)
    assert found is not None
    assert found.base_s == pytest.approx(0.2)
    assert found.computed_s == pytest.approx(0.002)
    assert found.cached_s == pytest.approx(0.0001)
    assert found.miss_s == pytest.approx(0.0019)
    assert found.fitted == pytest.approx(1.0)
    assert found.lost_s == pytest.approx(20 * 10 * 0.0019)
    # Nothing can be told where every prompt is as long and as much of it cached.
    assert miss_cost([_record(n, cached_tokens=50) for n in range(20)]) is None
    assert miss_cost(records[:3]) is None


PAGE = """\
# TYPE vllm:prefix_cache_queries counter
vllm:prefix_cache_queries_total{engine="0"} 100.0
vllm:prefix_cache_queries_total{engine="1"} 20.0
vllm:prefix_cache_hits_total{engine="0"} 64.0
vllm:external_prefix_cache_hits_total{engine="0"} 16.0
vllm:prompt_tokens_by_source_total{source="local_compute"} 40.0
vllm:cache_config_info{block_size="32",engine="0"} 1.0
vllm:moonpool_loads_total{engine="0"} 3.0
vllm:request_success_total{finished_reason="stop"} 9.0
"""


def test_counters_of_all_engines_of_a_page_are_added() -> None:
    page = parse(PAGE, ("vllm:prefix_cache_", "vllm:prompt_tokens_by_source", "vllm:moonpool_"))
    assert page.block_tokens == 32
    assert page.counts == {
        "vllm:prefix_cache_queries_total": 120.0,
        "vllm:prefix_cache_hits_total": 64.0,
        "vllm:prompt_tokens_by_source_total{local_compute}": 40.0,
        "vllm:moonpool_loads_total": 3.0,
    }


def test_what_was_counted_before_and_what_a_restart_forgot_does_not_count() -> None:
    before, after = Page({"a": 3.0}), Page({"a": 5.0, "b": 1.0})
    assert grown(before, after) == {"a": 2.0, "b": 1.0}
    assert grown(after, before) is None
    assert grown(Page({"a": 9.0}), Page({"a": 1.0})) is None
    assert grown(None, after) is None


def test_hits_by_source() -> None:
    engine = {
        "vllm:prefix_cache_queries_total": 200.0,
        "vllm:prefix_cache_hits_total": 64.0,
        "vllm:external_prefix_cache_hits_total": 32.0,
    }
    records = [_record(0, cached_tokens=64, ideal_tokens=80), _record(1, cached_tokens=32)]
    found = hits_of([engine], records)
    assert (found.hbm, found.pool, found.recomputed) == (64.0, 32.0, 104.0)
    assert found.hit_rate == 0.48
    assert found.rate(found.pool) == 0.16
    assert found.answers_rate == 0.48
    assert found.ideal_rate == 0.4


def test_what_is_not_counted_is_unknown() -> None:
    records = [_record(0)]
    found = hits_of([{"vllm:prefix_cache_queries_total": 1.0}, None], records)
    assert found == Hits(None, None, None, None, 0, 0, 100)
    assert found.hit_rate is None
    assert found.recomputed is None
    # Without counters, what answers say is what there is.
    assert hits_of([{}], [_record(0, cached_tokens=25)]).hit_rate == 0.25


def test_how_many_times_better() -> None:
    assert ratio(3.0, 1.5, lower=True) == 2.0
    assert ratio(3.0, 1.5, lower=False) == 0.5
    assert ratio(3.0, None, lower=True) is None
    assert ratio(0.0, 1.0, lower=False) is None


def test_runs_of_other_requests_are_told_apart() -> None:
    run = {"workload": {"trace": "a", "requests": 3}, "options": {"mode": "open"}}
    other = {"workload": {"trace": "a", "requests": 4}, "options": {"mode": "closed"}}
    assert warning(run, run) == ""
    assert warning(run, other).endswith(": requests, mode")
