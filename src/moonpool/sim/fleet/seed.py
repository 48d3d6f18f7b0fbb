"""The published runs of a pool for Kimi-K2.5 on GB200s, simulated.

vLLM's article of 2026-05-06 (vllm.ai/blog/2026-05-06-mooncake-store): NVFP4 weights, KV in FP8,
prefill on 4 GPUs (tensor parallel), decode on 8 (data parallel with expert parallel), 610 Codex
conversations on 12 GPUs with and without the pool, and a made workload on 12 to 60 GPUs, round
robin. What it publishes of its baseline is the hit rate, 1.7 %, "where only the system prompt is
cached": that is how many tokens are common to all conversations here. Nothing is taken from the
runs with the pool.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass, replace
from typing import Any

from moonpool.planner.machines import GPUS
from moonpool.planner.models import MODELS
from moonpool.sim.fleet.fleet import Fleet
from moonpool.sim.fleet.pool import PoolShape
from moonpool.sim.fleet.presets import hardware_of, nic_gb_s
from moonpool.sim.fleet.records import Summary
from moonpool.sim.fleet.shape import FleetShape, Group
from moonpool.sim.fleet.traffic import Conversations, Plan
from moonpool.workload.codex import codex
from moonpool.workload.session import Session
from moonpool.workload.workloads import scaling

GROUP_GPUS = 12
PREFILL_GPUS, DECODE_GPUS = 4, 8
SESSIONS = 75
"""On each 12 GPUs: published for the scaling runs. How many the Codex run had is not."""
BASELINE_HIT_RATE = 0.017
DECODE_STEP_S = 1 / 105
"""NVIDIA's Dynamo documentation gives about 105 tokens a second and user for Kimi-K2.5-NVFP4 on
GB200s, aggregated, without speculation ("Kimi-K2.5 Feature-Stack Benchmark")."""
POOL_GB_A_GPU = 100.0
"""The ``global_segment_size`` of a worker in the article's scripts (github.com/ivanium/vllm,
scripts/mooncake/mooncake_config_gb200_rack1_01.json)."""
NICS_A_HOST = 4
"""Of 400 Gbit/s, in a GB200 NVL72 compute tray with 4 GPUs."""
BLOCK_TOKENS = 64
OBJECT_BLOCKS = 4
PUBLISHED = {
    "throughput_ratio": 3.8,
    "ttft_p50_ratio": 46.0,
    "e2e_ratio": 8.6,
    "hit_rate_baseline": 0.017,
    "hit_rate_pool": 0.922,
}
PUBLISHED_SCALING_HIT_RATE = 0.95
TURNS_MEASURED = 29
GPU_COUNTS = (12, 24, 36, 48, 60)

Told = Callable[[str], None]


def shape_of(gpus: int, *, pool: bool, block_tokens: int = BLOCK_TOKENS) -> FleetShape:
    """Return as many groups of one engine that prefills and one that decodes as fit in GPUs."""
    model, gpu = MODELS["kimi-k2.5"], GPUS["gb200"]
    groups = gpus // GROUP_GPUS
    prefill = hardware_of(model, gpu, PREFILL_GPUS, "fp8")
    decode = hardware_of(model, gpu, DECODE_GPUS, "fp8", data_parallel=True, step_s=DECODE_STEP_S)
    return FleetShape(
        prefill=Group(groups, prefill, 1, PREFILL_GPUS),
        decode=Group(groups, replace(decode, sequences=1024), 2, DECODE_GPUS),
        pool=PoolShape(POOL_GB_A_GPU * 4, OBJECT_BLOCKS) if pool else None,
        block_tokens=block_tokens,
        nic_gb_s=nic_gb_s("400G", NICS_A_HOST),
        load_copies=PREFILL_GPUS,
        runs=True,
    )


@dataclass(frozen=True, slots=True)
class Pair:
    """One load with and without the pool."""

    sessions: int
    baseline: Summary
    pool: Summary

    def ratios(self) -> dict[str, float]:
        """Return what the article publishes."""
        base, pool = self.baseline, self.pool
        return {
            "throughput_ratio": pool.requests_s / base.requests_s,
            "ttft_p50_ratio": base.ttft_s.p50 / pool.ttft_s.p50,
            "e2e_ratio": base.e2e_s.p50 / pool.e2e_s.p50,
            "e2e_mean_ratio": base.e2e_s.mean / pool.e2e_s.mean,
            "hit_rate_baseline": base.hit_rate,
            "hit_rate_pool": pool.hit_rate,
        }


def trace(seed: int) -> list[Session]:
    """Return the Codex conversations, with as much in common as the baseline's hit rate says."""
    sessions = codex(0, seed)
    tokens = sum(each.input_tokens for each in sessions)
    turns = sum(len(each.turns) for each in sessions)
    shared = round(BASELINE_HIT_RATE * tokens / turns)
    return [replace(each, shared_tokens=shared) for each in sessions]


def run_pair(sessions: int = SESSIONS, seed: int = 1) -> Pair:
    """Run the Codex load without and with the pool."""
    base, pool = (_codex(sessions, seed, pool=pool) for pool in (False, True))
    return Pair(sessions, base, pool)


def _codex(sessions: int, seed: int, *, pool: bool) -> Summary:
    traffic = Conversations(trace(seed), BLOCK_TOKENS, Plan(sessions, seed=seed))
    records = Fleet(shape_of(GROUP_GPUS, pool=pool)).run(traffic)
    return records.summary(traffic.drained_s * 0.1, traffic.drained_s)


def run_scaling(gpus: int, seed: int = 1) -> Summary:
    """Run the made workload with the pool, each conversation once."""
    agents = SESSIONS * gpus // GROUP_GPUS
    traffic = Conversations(scaling(agents, seed), BLOCK_TOKENS, Plan(agents, seed=seed))
    records = Fleet(shape_of(gpus, pool=True)).run(traffic)
    # While all of them are at work: the first are ready when the last are not yet.
    ends = float(records.column("arrived_s")[records.column("turn") == TURNS_MEASURED].min())
    return records.summary(Plan(agents).begin_s, ends)


@dataclass(frozen=True, slots=True)
class SeedFigures:
    """All of it: the load at several numbers of sessions, and the scaling run by GPUs."""

    pairs: list[Pair]
    scaling: dict[int, Summary]

    @property
    def pair(self) -> Pair:
        """The load at the published number of sessions."""
        return next(each for each in self.pairs if each.sessions == SESSIONS)

    def plain(self) -> dict[str, Any]:
        """Return it as JSON has it."""
        return {
            "published": PUBLISHED,
            "calibrated": CALIBRATED,
            "pairs": [
                {
                    "sessions": each.sessions,
                    "ratios": each.ratios(),
                    "baseline": asdict(each.baseline),
                    "pool": asdict(each.pool),
                }
                for each in self.pairs
            ],
            "scaling": {str(gpus): asdict(each) for gpus, each in self.scaling.items()},
        }


CALIBRATED = {
    "tokens common to all conversations": "from the baseline's hit rate, 1.7 % of the mean prompt",
}
ASSUMED = {
    "sessions": "75, as in the article's scaling runs on the same 12 GPUs; not published for Codex",
    "prefill": "shapes and peaks of the planner's tables; half of the peak (not measured)",
    "decode step": "105 tokens a second and user (NVIDIA, another engine, GB200)",
    "network": "four 400 Gbit/s a host, 85 % of it had; each prefill GPU loads its own copy",
    "pool": "100 GB a GPU, as in the article's scripts",
    "master": "measured prices of moonpool's own",
}


def figures(
    sessions: Sequence[int] = (SESSIONS,),
    gpu_counts: Sequence[int] = GPU_COUNTS,
    seed: int = 1,
    told: Told = lambda text: None,
) -> SeedFigures:
    """Run all of it; ``told`` of each run."""
    pairs = []
    for count in sorted({*sessions, SESSIONS}):
        pairs.append(run_pair(count, seed))
        told(f"{count} sessions: throughput x{pairs[-1].ratios()['throughput_ratio']:.2f}")
    scaled = {}
    for gpus in gpu_counts:
        scaled[gpus] = run_scaling(gpus, seed)
        told(f"{gpus} GPUs: {scaled[gpus].requests_s:.2f} requests/s")
    return SeedFigures(pairs, scaled)
