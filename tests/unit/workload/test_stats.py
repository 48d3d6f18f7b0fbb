"""Figures of traces, by hand and against the published moments."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from moonpool.workload.stats import Stats, stats_of
from moonpool.workload.traces import read_trace
from moonpool.workload.workloads import WORKLOADS, groups_of
from tests.unit.workload.test_traces import _trace


def _stats(tmp_path: Path, *lines: dict[str, Any]) -> Stats:
    path = tmp_path / "trace.jsonl"
    path.write_text("".join(json.dumps(line) + "\n" for line in lines))
    return stats_of(read_trace(path))


def _line(time_ms: int, input_length: int, *ids: int) -> dict[str, Any]:
    return {
        "timestamp": time_ms,
        "input_length": input_length,
        "output_length": 10,
        "hash_ids": [*ids],
    }


def test_figures_by_hand(tmp_path: Path) -> None:
    found = _stats(
        tmp_path,
        _line(0, 1024, 1, 2),
        _line(1_000, 600, 3, 4),
        _line(5_000, 1_600, 1, 2, 5, 6),
        _line(7_000, 1_600, 1, 2, 5, 6),
    )
    assert (found.requests, found.sessions, found.duration_s) == (4, 2, 7.0)
    assert (found.input_tokens, found.output_tokens) == (4_824, 40)
    # Two blocks of the third, all of the fourth.
    assert found.hit_tokens == 1_024 + 1_600
    assert found.distinct_tokens == 6 * 512
    assert found.growth.count == 2
    assert found.growth.max == 576
    assert found.pause_s.max == 5.0
    assert [row[:2] for row in found.by_turn] == [(1, 2), (2, 1), (3, 1)]
    sizes = dict(found.curve)
    # In a pool of one block only the first one of the last prompt is left.
    assert sizes[512] == pytest.approx(512 / 4_824)
    assert sizes[6 * 512] == pytest.approx(6 * 512 / 4_824)


def test_a_trace_of_lengths_alone_says_nothing_of_hits(tmp_path: Path) -> None:
    path = tmp_path / "trace.csv"
    path.write_text("TIMESTAMP,ContextTokens,GeneratedTokens\n2023-11-16 18:17:03,48,10\n")
    found = stats_of(read_trace(path))
    assert (found.hit_rate, found.curve, found.input_tokens) == (None, [], 48)


@pytest.mark.parametrize(
    ("name", "hit_tokens", "distinct"),
    [
        ("claude-code-60.jsonl.gz", 480_363_392, 282_573),
        ("mooncake-fast25-conversation.jsonl.gz", 54_098_411, 182_790),
        ("mooncake-fast25-synthetic.jsonl.gz", 39_852_661, 43_924),
    ],
)
def test_real_traces(name: str, hit_tokens: int, distinct: int) -> None:
    """Hits as counted by brute force, one request after the other, in sets."""
    found = stats_of(read_trace(_trace(name)))
    assert found.hit_tokens == hit_tokens
    assert found.distinct_tokens == distinct * found.block_tokens
    # A pool that holds everything hits what is possible, less what a request's last block lacks.
    assert found.curve[-1][1] == pytest.approx(found.hit_tokens / found.input_tokens, abs=0.002)
    rates = [rate for _, rate in found.curve]
    assert rates == sorted(rates)


def test_codex_is_within_three_percent_of_each_published_moment() -> None:
    found = stats_of(groups_of(WORKLOADS["codex"](0, 5), 5))
    sessions = WORKLOADS["codex"](0, 5)
    lasts = [session.turns[-1].input_tokens for session in sessions]
    published = {
        "conversations": (found.sessions, 610),
        "turns": (found.turns.mean, 33),
        "first": (found.by_turn[0][2].mean, 12_000),
        "last": (sum(lasts) / len(lasts), 80_000),
        "ratio": (found.input_to_output, 131),
        "growth": (found.growth.mean, 2_242),
        "pause p50": (found.pause_s.p50, 5.2),
        "pause p99": (found.pause_s.p99, 81.4),
        "hit rate": (found.hit_rate, 0.942),
    }
    for name, (value, wanted) in published.items():
        assert value == pytest.approx(wanted, rel=0.03), name
    assert max(lasts) > 180_000


def test_the_scaling_workload_is_the_published_one() -> None:
    sessions = WORKLOADS["scaling"](0, 1)
    assert len(sessions) == 75
    assert {len(session.turns) for session in sessions} == {30}
    first, second, *_, last = sessions[0].turns
    assert (first.input_tokens, first.output_tokens) == (30_000, 900)
    assert second.input_tokens == 30_000 + 900 + 2_048
    assert last.input_tokens == 30_000 + 29 * 2_948
    assert stats_of(groups_of(sessions, 1)).hit_rate == pytest.approx(0.956, abs=0.001)


def test_forks_share_their_parents_prompt() -> None:
    found = stats_of(groups_of(WORKLOADS["forks"](1, 1), 1))
    assert found.sessions == 44
    assert found.hit_tokens > 43 * 39_000


@pytest.mark.parametrize("name", WORKLOADS)
def test_the_same_seed_gives_the_same_workload(name: str) -> None:
    def shapes(seed: int) -> list[tuple[int, int, float]]:
        made = WORKLOADS[name](3, seed)
        return [(t.input_tokens, t.output_tokens, t.gap_s) for each in made for t in each.turns]

    assert shapes(1) == shapes(1)
    assert name == "scaling" or shapes(1) != shapes(2)
