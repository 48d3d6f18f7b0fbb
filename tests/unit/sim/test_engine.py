"""The model of an engine: its times are those of its rates, its cache that of vLLM."""

from __future__ import annotations

from dataclasses import replace

import pytest

from moonpool.sim.engine import Engine
from moonpool.sim.events import Clock
from moonpool.sim.hardware import H200_8B, Hardware
from moonpool.sim.job import Job
from moonpool.sim.pool import PoolModel

BLOCK = 256


def _job(prompt: int, output: int = 1, first: int = 0) -> Job:
    return Job("s", list(range(first, first + prompt // BLOCK)), prompt, output)


def _serve(jobs: list[tuple[float, Job]], hardware: Hardware = H200_8B, **more: object) -> Engine:
    clock = Clock()
    engine = Engine(clock, hardware, BLOCK, **more)  # type: ignore[arg-type]
    for at, job in jobs:
        job.arrived_s = at
        clock.at(at, lambda job=job: engine.submit(job))  # type: ignore[misc]
    clock.run(1e6)
    assert all(job.end_s >= job.first_s >= 0 for _, job in jobs)
    return engine


@pytest.mark.parametrize(("tokens", "seconds"), [(32_000, 1.18), (64_000, 3.23), (120_000, 8.97)])
def test_prefill_takes_what_was_measured(tokens: int, seconds: float) -> None:
    job = _job(tokens)
    _serve([(0.0, job)])
    assert job.ttft_s == pytest.approx(seconds, rel=0.15)


def test_what_is_in_hbm_is_not_computed_again() -> None:
    first, second = _job(32_000), _job(32_512)
    _serve([(0.0, first), (10.0, second)])
    assert second.local_tokens == 32_000
    assert second.ttft_s == pytest.approx(0.048, rel=0.35)


def test_a_prompt_behind_another_shares_what_that_one_computes() -> None:
    first, second = _job(8_000), _job(16_000)
    _serve([(0.0, first), (0.01, second)])
    assert second.local_tokens == 8_000 // BLOCK * BLOCK


def test_decoding_takes_its_steps_whenever_others_arrive() -> None:
    alone, beside = _job(1_000, 100), _job(1_000, 100)
    _serve([(0.0, alone)])
    _serve([(0.0, beside), (0.5, _job(100, 1, 900))])
    step_s = H200_8B.step_s + 1_050 * H200_8B.kv_read_s
    assert alone.end_s - alone.first_s == pytest.approx(99 * step_s, rel=0.01)
    # The other prompt makes one step longer, no more.
    assert 0 < beside.end_s - alone.end_s < 0.01


def test_the_least_recently_used_goes_and_heads_stay_longest() -> None:
    small = replace(H200_8B, hbm_tokens=100 * BLOCK)
    gone: list[int] = []
    _serve(
        [(0.0, _job(60 * BLOCK)), (10.0, _job(60 * BLOCK, 1, 1000))],
        small,
        changed=lambda came, keys: None if came else gone.extend(keys),
    )
    # Two blocks hold the answers' tokens.
    assert gone == list(range(59, 59 - len(gone), -1))
    assert 20 <= len(gone) <= 22


def test_a_full_cache_makes_the_next_wait() -> None:
    small = replace(H200_8B, hbm_tokens=100 * BLOCK)
    first, second = _job(60 * BLOCK, 200), _job(60 * BLOCK, 1, 1000)
    _serve([(0.0, first), (0.1, second)], small)
    assert second.first_s > first.end_s


def test_the_pool_saves_computing_and_costs_loading() -> None:
    pool = PoolModel(2, 10_000, H200_8B)
    first, near, far = _job(64_000), _job(64_000), _job(64_000)
    _serve([(0.0, first)], pool=pool)
    _serve([(0.0, near)], pool=pool, host=0)
    _serve([(0.0, far)], pool=pool, host=1)
    nbytes = 64_000 * H200_8B.kv_bytes
    assert near.pool_tokens == far.pool_tokens == 63_999
    assert near.ttft_s == pytest.approx(nbytes / 43e9 + 0.05, rel=0.1)
    assert far.ttft_s == pytest.approx(nbytes / 12e9 + 0.05, rel=0.1)


def test_the_pool_forgets_leaves_first() -> None:
    pool = PoolModel(1, 100, H200_8B)
    pool.put(list(range(80)), 0)
    pool.put(list(range(1000, 1040)), 0)
    assert pool.match(list(range(80))) == 60
    assert pool.match(list(range(1000, 1040))) == 40
