"""The comparison's arithmetic, by hand."""

from __future__ import annotations

import io
import json
import math

import pytest
from rich.console import Console

from moonpool.demo.compare import compare, first_difference, percentile, summarise
from moonpool.demo.engine import CacheCounters, parse_counters
from moonpool.demo.report import Report, table
from moonpool.workload.replay import Answer, Choice, Run


def _answer(session: str = "s", turn: int = 0, **changes: object) -> Answer:
    facts: dict[str, object] = {
        "session": session,
        "turn": turn,
        "prompt_tokens": 100,
        "could_hit_tokens": 64,
        "cached_tokens": 64,
        "choices": (Choice(1, -0.1, 2, -3.0), Choice(5, -0.7, 6, -0.7005)),
        "ttft_s": 0.2,
        "e2e_s": 1.0,
    }
    return Answer(**{**facts, **changes})  # type: ignore[arg-type]


def _run(*answers: Answer, wall_s: float = 2.0) -> Run:
    return Run(answers, wall_s)


@pytest.mark.parametrize(
    ("share", "expected"), [(0.5, 2.0), (0.51, 3.0), (0.99, 4.0), (1.0, 4.0), (0.0, 1.0)]
)
def test_percentile_is_the_nearest_rank(share: float, expected: float) -> None:
    assert percentile([4.0, 1.0, 3.0, 2.0], share) == expected


def test_percentile_of_nothing_is_no_number() -> None:
    assert math.isnan(percentile([], 0.5))


def test_summary() -> None:
    answers = [
        _answer(turn=0, ttft_s=0.2, could_hit_tokens=0, cached_tokens=0),
        _answer(turn=1, ttft_s=0.4, could_hit_tokens=64, cached_tokens=32),
        _answer(turn=2, ttft_s=0.3, could_hit_tokens=64, cached_tokens=96),
        _answer(turn=3, choices=(), error="HTTP 500"),
    ]
    counters = CacheCounters(queries=400, local_hits=40, pool_hits=60)
    found = summarise(_run(*answers), counters)
    assert (found.requests, found.errors) == (4, 1)
    assert found.prompt_tokens == 300
    assert found.output_tokens == 6
    assert found.hit_rate == pytest.approx(0.25)
    assert found.local_hit_rate == pytest.approx(0.10)
    assert found.pool_hit_rate == pytest.approx(0.15)
    assert found.could_hit_rate == pytest.approx(128 / 300)
    # What was cached beyond what could be known to be there is no credit.
    assert found.hit_of_possible == pytest.approx(96 / 128)
    assert found.ttft_p50_s == 0.3
    assert found.ttft_p99_s == 0.4
    assert found.output_tokens_per_s == 3.0


def test_a_run_without_answers_has_no_figures_and_does_not_fail() -> None:
    found = summarise(_run(_answer(error="x", choices=())), CacheCounters())
    assert found.hit_rate == 0.0
    assert math.isnan(found.ttft_p50_s)


def test_equal_answers_do_not_differ() -> None:
    assert first_difference(_answer(), _answer()) is None
    found = compare(_run(_answer()), _run(_answer()))
    assert found.identical == 1
    assert found.same


@pytest.mark.parametrize(("logprobs", "near"), [((-0.7, -0.7005), True), ((-0.7, -0.7011), False)])
def test_a_near_tie_is_two_candidates_that_changed_places(
    logprobs: tuple[float, float], near: bool
) -> None:
    better, worse = logprobs
    mine = _answer(choices=(Choice(1, -0.1, 2, -3.0), Choice(5, better, 6, worse)))
    theirs = _answer(choices=(Choice(1, -0.1, 2, -3.0), Choice(6, better, 5, worse)))
    found = first_difference(mine, theirs)
    assert found is not None
    assert (found.position, found.token, found.other_token) == (1, 5, 6)
    assert found.near_tie is near
    comparison = compare(_run(mine), _run(theirs))
    assert (comparison.identical, comparison.near_ties) == (0, int(near))
    assert comparison.same is near


def test_a_token_that_was_no_candidate_is_no_near_tie() -> None:
    mine = _answer(choices=(Choice(1, -0.7, 2, -0.7001),))
    theirs = _answer(choices=(Choice(3, -0.7, 1, -0.7001),))
    found = first_difference(mine, theirs)
    assert found is not None
    assert math.isinf(found.logprob_gap)
    assert not found.near_tie


def test_an_answer_that_is_shorter_differs() -> None:
    found = first_difference(_answer(), _answer(choices=(Choice(1, -0.1, 2, -3.0),)))
    assert found is not None
    assert not found.near_tie


def test_answers_of_one_run_only_are_missing() -> None:
    bad = _answer(turn=1, error="x", choices=())
    found = compare(_run(_answer(), _answer(turn=1)), _run(_answer(), bad))
    assert (found.identical, found.missing, found.same) == (1, 1, False)


def _report() -> Report:
    pool = summarise(_run(_answer(ttft_s=0.1)), CacheCounters(100, 10, 80))
    alone = summarise(_run(_answer(ttft_s=0.5)), CacheCounters(100, 20, 0))
    tie = compare(
        _run(_answer(), _answer(turn=1, choices=(Choice(5, -0.7, 6, -0.7005),))),
        _run(_answer(), _answer(turn=1, choices=(Choice(6, -0.7, 5, -0.7005),))),
    )
    return Report("a workload", pool, alone, tie, {"total": 1.0})


def test_json_has_the_promised_keys() -> None:
    found = json.loads(json.dumps(_report().as_json(), allow_nan=False))
    assert found["requests"] == 1
    assert found["outputs_identical"] == 1
    assert found["near_ties"] == 1
    assert found["differences"][0]["near_tie"] is True
    assert found["ttft_p50_ratio"] == pytest.approx(5.0)
    for run in ("pool", "baseline"):
        assert found[run].keys() >= {
            "hit_rate",
            "local_hit_rate",
            "pool_hit_rate",
            "ttft_p50_s",
            "ttft_p99_s",
            "e2e_p50_s",
            "output_tokens_per_s",
        }


def test_the_table_names_near_ties() -> None:
    console = Console(file=io.StringIO(), width=100)
    console.print(table(_report()))
    assert isinstance(console.file, io.StringIO)
    text = console.file.getvalue()
    assert "5.0x" in text
    assert "1 of 2" in text
    assert "s turn 1: token 0 is 5 or 6" in text
    assert "near tie" in text


def test_counters_come_from_vllms_metrics() -> None:
    page = (
        "# HELP vllm:prefix_cache_queries_total x\n"
        "# TYPE vllm:prefix_cache_queries_total counter\n"
        'vllm:prefix_cache_queries_total{engine="0"} 100.0\n'
        'vllm:prefix_cache_queries_total{engine="1"} 50.0\n'
        "# TYPE vllm:prefix_cache_hits_total counter\n"
        'vllm:prefix_cache_hits_total{engine="0"} 30.0\n'
        "# TYPE vllm:external_prefix_cache_hits_total counter\n"
        'vllm:external_prefix_cache_hits_total{engine="0"} 20.0\n'
        "# TYPE vllm:external_prefix_cache_hits_created gauge\n"
        'vllm:external_prefix_cache_hits_created{engine="0"} 1.7e9\n'
    )
    found = parse_counters(page)
    assert found == CacheCounters(queries=150, local_hits=30, pool_hits=20)
    assert found - CacheCounters(queries=50) == CacheCounters(100, 30, 20)
