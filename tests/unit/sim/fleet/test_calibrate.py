"""Rates that are fitted to what known rates give are those."""

from __future__ import annotations

from dataclasses import replace

import pytest

from moonpool.errors import ConfigError
from moonpool.sim.fleet.calibrate import Endpoint, Measured, fitted
from moonpool.sim.fleet.h200 import rates, replay, ttfts
from moonpool.sim.fleet.presets import preset
from moonpool.sim.hardware import Hardware

TRUE = Hardware(
    prefill_s=2e-4,
    attention_s=6e-9,
    step_s=0.008,
    sequence_s=0.003,
    kv_read_s=2e-7,
    overhead_s=0.01,
    kv_bytes=16_384,
    batch_tokens=512,
    local_gb_s=1.5,
    load_latency_s=0.012,
)
FITTED = (
    *("prefill_s", "attention_s", "step_s", "sequence_s", "kv_read_s"),
    *("overhead_s", "local_gb_s", "load_latency_s"),
)


def measured() -> Measured:
    lengths = (128, 512, 1024, 2048, 3072)

    def cold(n: int) -> float:
        chunks = -(-n // TRUE.batch_tokens)
        return TRUE.overhead_s + TRUE.step_s * chunks + TRUE.prefill(0, n)

    def load(n: int) -> float:
        return TRUE.load_latency_s + n * TRUE.kv_bytes / TRUE.local_gb_s / 1e9

    def step(count: int, n: int) -> float:
        return TRUE.step_s + count * (TRUE.sequence_s + n * TRUE.kv_read_s)

    return Measured(
        {n: cold(n) for n in lengths},
        dict.fromkeys(lengths, 0.02),
        {n: 0.02 + load(n) for n in lengths},
        {(1, 128): step(1, 128), (1, 3072): step(1, 3072), (4, 128): step(4, 128)},
    )


def test_known_rates_come_back() -> None:
    base = replace(Hardware(), kv_bytes=TRUE.kv_bytes, batch_tokens=TRUE.batch_tokens)
    found = fitted(measured(), base)
    for name in FITTED:
        assert getattr(found, name) == pytest.approx(getattr(TRUE, name), rel=0.01), name


def test_nothing_is_ever_negative() -> None:
    noisy = Measured({100: 0.5, 200: 0.4, 400: 0.3}, {}, {}, {(1, 100): 0.02, (1, 400): 0.01,
                     (4, 100): 0.005})  # fmt: skip
    found = fitted(noisy, Hardware())
    assert min(found.prefill_s, found.attention_s, found.kv_read_s, found.sequence_s) >= 0
    assert found.step_s > 0


def test_what_is_no_url_is_refused() -> None:
    with pytest.raises(ConfigError, match="endpoint"):
        Endpoint("https://somewhere")


def test_kv_and_room_are_those_of_the_geometry() -> None:
    llama = preset("llama-3.1-8b", "h200", 1)
    assert llama.kv_bytes == 2 * 32 * 8 * 128 * 2
    # 90 % of 141 GB less 16.1 GB of weights.
    assert llama.hbm_tokens == int((0.9 * 141 - 16.1) * 1e9 / llama.kv_bytes)
    kimi = preset("kimi-k2.5", "gb200", 4, "fp8")
    assert kimi.kv_bytes == 61 * (512 + 64)
    # Each of the four GPUs has all of it.
    assert kimi.hbm_tokens == int((0.9 * 4 * 186 - 595) / 4 * 1e9 / kimi.kv_bytes)


def test_it_gives_what_was_measured_on_h200s() -> None:
    for hardware in rates().values():
        for each in ttfts(hardware):
            # Hits in HBM of very long prompts took longer than 512 tokens take to compute.
            assert abs(each.off) < (0.20 if "HBM" not in each.name else 0.40), each
        rows, _ = replay(hardware)
        hits = next(each for each in rows if each.name == "hit rate")
        assert abs(hits.simulated - hits.measured) < 0.01
        assert next(each for each in rows if "turns" in each.name).off == pytest.approx(0, abs=0.1)
