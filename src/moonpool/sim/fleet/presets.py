"""Rates of engines from the shapes of models and the peaks of machines, which the planner has."""

from __future__ import annotations

from moonpool.planner.machines import GPUS, LINKS, Gpu
from moonpool.planner.models import MODELS, Model
from moonpool.sim.hardware import Hardware

HBM_GB_S = {"a100": 2039.0, "h200": 4800.0, "gb200": 8000.0}
"""Of one GPU, as NVIDIA's data sheets of A100 80GB SXM, H200 SXM and GB200 NVL72 have it."""
HBM_SHARE = 0.67
"""What of that decoding has: fitted on one H200 (sim/hardware.py)."""
LAUNCH_S = 0.006
"""A step that computes next to nothing, with CUDA graphs."""
TOKENISE_S = 2.2e-6
"""A token's share of tokenising: 100,000 tokens took 220 ms (MiniMax-M2.5 on two MI300X)."""
WIDE_PARAMETERS = {"kimi-k2.5": 9.0e9, "deepseek-v3": 0.0}
"""Parameters at work in a token that are not quantised as the rest: NVIDIA's NVFP4 checkpoint of
Kimi keeps attention (61 x 101 million), shared experts (60 x 44 million) and the dense layer in 16
bits."""
LATENT = frozenset(WIDE_PARAMETERS)
"""Models of latent attention: all GPUs of a tensor-parallel engine have the same KV."""
SIXTEEN = 16


def hardware_of(
    model: Model,
    gpu: Gpu,
    gpus: int,
    dtype: str = "bf16",
    *,
    data_parallel: bool = False,
    step_s: float = 0.0,
) -> Hardware:
    """Return the rates of an engine of ``gpus``. Attention is computed in 16 bits, whatever the
    weights are. data_parallel: each GPU has the KV of its own sequences. step_s: a decode step
    without context, 0 to have it from reading all weights."""
    wide = WIDE_PARAMETERS.get(model.name, 0.0)
    narrow = model.parameters - wide
    read_gb_s = HBM_GB_S[gpu.name] * HBM_SHARE
    flops_16 = gpu.flops_s(SIXTEEN) * gpus
    linear = 2.0 * (narrow / (gpu.flops_s(model.bits) * gpus) + wide / flops_16)
    copies = gpus if model.name in LATENT and not data_parallel else 1
    kv_bytes = model.kv_bytes(dtype)
    free_gb = 0.9 * gpu.hbm_gb * gpus - model.weights_gb
    return Hardware(
        prefill_s=linear,
        attention_s=2.0 * model.layers * model.query_width / flops_16,
        step_s=step_s,
        launch_s=LAUNCH_S,
        weights_s=0.0 if step_s else model.weights_gb / (read_gb_s * gpus),
        kv_read_s=kv_bytes * copies / (read_gb_s * gpus * 1e9),
        overhead_s=0.005,
        tokenise_s=TOKENISE_S,
        hbm_tokens=max(0, int(free_gb * 1e9 / copies / kv_bytes)),
        kv_bytes=kv_bytes,
        local_gb_s=gpu.host_gb_s * gpus / copies,
        load_latency_s=0.004,
    )


def preset(model: str, gpu: str, gpus: int, dtype: str = "bf16") -> Hardware:
    """Return the rates of an engine by names of the planner's tables."""
    return hardware_of(MODELS[model], GPUS[gpu], gpus, dtype)


def nic_gb_s(link: str, count: int = 1) -> float:
    """Return what so many links of a name carry together."""
    found = LINKS[link]
    return found.gb_s * found.share * count
