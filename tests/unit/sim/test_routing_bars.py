"""What is promised of ``prefix``, in simulation on real traces; a small part of the full run."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest

from moonpool.bench.routing import RoutingOptions, compare, measured
from moonpool.bench.routing_report import bars, markdown
from moonpool.sim.cluster import Cluster, simulate
from moonpool.sim.workload import read

TRACES = Path(__file__).resolve().parents[4] / "shared" / "traces"
POLICIES = ("round_robin", "session", "prefix")
pytestmark = pytest.mark.skipif(not TRACES.is_dir(), reason="the real traces are not here")


def test_prefix_keeps_its_promises() -> None:
    """At the levels that are 70 % of what prefix carries at most, alone and with a pool."""
    trace, levels = TRACES / "mooncake-fast25-synthetic.jsonl.gz", (3.1, 4.9)
    options = RoutingOptions((trace,), seeds=1, policies=POLICIES, levels=levels)
    results = compare(options)
    found = bars(results.rows)
    assert len(found) == 6
    assert [bar for bar in found if not bar.met] == []
    assert any(f"no pool, {levels[0]:g} " in bar.what for bar in found)
    assert not any("load" in bar.what for bar in found)
    assert f"| {trace.name.partition('.')[0]}, pool, {levels[1]:g} " in markdown(results.rows)


def test_agents_find_their_conversations_again() -> None:
    """62 agents are 70 % of what eight engines carry."""
    cluster = Cluster(warm_s=300.0, length_s=400.0)
    workload = read(TRACES / "claude-code-60.jsonl.gz", cluster.hardware.context_tokens)
    runs = {}
    for name in POLICIES:
        chosen = replace(cluster, policy=name)
        runs[name] = measured(chosen, workload, simulate(chosen, workload.traffic(62, 1)))
    prefix = runs["prefix"]
    assert runs["round_robin"].ttft_p50_s > 3 * prefix.ttft_p50_s
    assert runs["session"].ttft_p99_s > prefix.ttft_p99_s
    assert prefix.possible_hit_rate - prefix.hit_rate < 0.03


def test_a_run_is_the_same_every_time() -> None:
    cluster = Cluster(pool_tokens=1_000_000, warm_s=10.0, length_s=60.0)
    workload = read(TRACES / "claude-code-60.jsonl.gz", cluster.hardware.context_tokens)
    runs = [simulate(cluster, workload.traffic(30, seed)) for seed in (5, 5, 6)]
    firsts = [[job.first_s for job in run.every] for run in runs]
    assert firsts[0] == firsts[1] != firsts[2]
    assert all(job.end_s > job.first_s > job.arrived_s for job in runs[0].every)


def test_without_kv_events_it_goes_by_its_own_history() -> None:
    cluster = Cluster(warm_s=60.0, length_s=300.0)
    workload = read(TRACES / "claude-code-60.jsonl.gz", cluster.hardware.context_tokens)
    rates = []
    for changed in (cluster, replace(cluster, events=False)):
        jobs = simulate(changed, workload.traffic(40, 1)).jobs
        rates.append(sum(job.local_tokens for job in jobs) / sum(job.prompt_tokens for job in jobs))
    assert rates[1] > rates[0] - 0.05
