"""How large the engines and the pool of a benchmark on this machine are."""

from __future__ import annotations

from moonpool.bench.xypd import XypdOptions
from moonpool.demo import engine, place
from moonpool.demo.engine import BLOCK_TOKENS, EngineOptions
from moonpool.demo.model import Shape, build_model
from moonpool.demo.workload import Workload

SERVED_NAME = "moonpool-bench"
SHAPE = Shape(layers=4, hidden=256, intermediate=704, heads=4, kv_heads=4, head_size=64)
SEQUENCES = 4
POOL_BYTES_MIN = 256 << 20
ROOM = 1.25


def engine_options(workload: Workload, kv_tokens: int = 0) -> EngineOptions:
    """Return the options of each engine; raise ConfigError where vLLM is not installed.

    kv_tokens: its KV cache; 0: room for every conversation to its end.
    """
    engine.require_vllm()
    least = 2 * (workload.context_tokens + BLOCK_TOKENS)
    tokens = max(kv_tokens or int(ROOM * workload.working_set_tokens), least)
    blocks = -(-tokens // BLOCK_TOKENS) + 1
    return EngineOptions(
        model=build_model(place.cache_dir() / "models", SHAPE),
        served_name=SERVED_NAME,
        kv_bytes=blocks * BLOCK_TOKENS * SHAPE.kv_bytes_per_token,
        context_tokens=workload.context_tokens + 1,
        sequences=SEQUENCES,
    )


def pool_bytes(workload: Workload, options: XypdOptions) -> int:
    """Return how large the pool is: room for every conversation of every case."""
    cases = len(list(options.cases()))
    exact = cases * workload.working_set_tokens * SHAPE.kv_bytes_per_token
    return max(POOL_BYTES_MIN, int(ROOM * exact))
