"""Runs inside a process of its own: a real vLLM engine, stepped by hand, and a pool with faults."""

from __future__ import annotations

import contextlib
import os
import time
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any

os.environ |= {
    "VLLM_ENABLE_V1_MULTIPROCESSING": "0",
    "VLLM_CPU_OMP_THREADS_BIND": "nobind",
    "VLLM_HOST_IP": "127.0.0.1",
    "VLLM_LOGGING_LEVEL": os.environ.get("VLLM_LOGGING_LEVEL", "WARNING"),
    "VLLM_NO_USAGE_STATS": "1",
    "HF_HUB_OFFLINE": "1",
    "OMP_NUM_THREADS": "1",
    "TORCHDYNAMO_DISABLE": "1",
}

import numpy as np
from vllm import LLM, SamplingParams
from vllm.distributed.kv_transfer import get_kv_transfer_group

from moonpool.client.store import Store
from moonpool.vllm import pools

BLOCK = 32
OBJECT = 64
LOGPROBS = 5


class Faulty:
    """A store that can be told to fail; everything else is the store's."""

    def __init__(self, store: Store) -> None:
        self.store = store
        self.fail: Callable[[int], int | None] | None = None
        self.hold_gets = False
        self.gets: list[list[bytes]] = []
        self.put_delay_s = 0.0

    def __getattr__(self, name: str) -> Any:
        return getattr(self.store, name)

    def get_pieces(self, keys: Sequence[bytes], pieces: Any, **options: Any) -> Any:
        while self.hold_gets:
            time.sleep(0.001)
        self.gets.append(list(keys))
        codes = self.store.get_pieces(keys, pieces, **options)
        if self.fail is not None:
            spoiled = [self.fail(at) for at in range(len(keys))]
            for at, code in enumerate(spoiled):
                if code:
                    codes[at] = code
                    _scribble(pieces, at)
        return codes

    def put_pieces(self, keys: Sequence[bytes], pieces: Any, **options: Any) -> Any:
        time.sleep(self.put_delay_s)
        return self.store.put_pieces(keys, pieces, **options)

    def register_memory(self, address: int, nbytes: int) -> None:
        self.store.register_memory(address, nbytes)

    def close(self) -> None:
        """Both sides of a connector share this store."""


def _scribble(pieces: Any, at: int) -> None:
    """Leave garbage where the object should be, as a broken transfer does."""
    import ctypes

    for piece in range(*pieces.starts[at : at + 2]):
        ctypes.memset(int(pieces.addresses[piece]), 0x7F, int(pieces.lengths[piece]))


SETTINGS: dict[str, Any] = {
    "dtype": "float32",
    "block_size": BLOCK,
    "max_model_len": 1024,
    "max_num_batched_tokens": 128,
    "max_num_seqs": 8,
    "kv_cache_memory_bytes": 64 << 20,
    "enforce_eager": True,
    "skip_tokenizer_init": True,
    "enable_chunked_prefill": True,
    "disable_log_stats": False,
    "seed": 0,
}


class Engine:
    """A vLLM engine whose connector uses ``store``; None: the pool that ``transfer`` names."""

    def __init__(self, model: Path, store: Any, **options: Any) -> None:
        if store is not None:
            self.pool = Faulty(store)
            pools.open_pool = lambda *_: self.pool
        transfer = options.pop("transfer", None) or {
            "kv_connector": "MoonpoolConnector",
            "kv_role": "kv_both",
            "kv_connector_extra_config": {"object_tokens": OBJECT, "lookup_wait_ms": 2000},
        }
        self.llm = LLM(str(model), kv_transfer_config=transfer, **{**SETTINGS, **options})
        self.core = self.llm.llm_engine.engine_core.engine_core
        self.scheduler = self.core.scheduler
        self.connector = self.scheduler.connector
        children = getattr(self.connector, "_connectors", [self.connector])
        self.side = children[0]._scheduler
        self.free_blocks = self.scheduler.kv_cache_manager.block_pool.get_num_free_blocks()
        workers = getattr(group := get_kv_transfer_group(), "_connectors", [group])
        self.worker = workers[0]._worker
        self.wait_for(self.connected)

    def wait_for(self, condition: Callable[[], bool], timeout_s: float = 20.0) -> None:
        deadline = time.monotonic() + timeout_s
        while not condition():
            assert time.monotonic() < deadline, "waited in vain"
            self.core.step_fn()
            time.sleep(0.001)

    def settle(self) -> None:
        """Step until nothing is in progress; every block must be free again."""
        self.wait_for(lambda: not self.scheduler.has_requests() and self.side.pins.jobs == 0)
        assert self.side._loads.loading == 0
        assert self.scheduler.kv_cache_manager.block_pool.get_num_free_blocks() == self.free_blocks

    def forget(self) -> None:
        """Empty the engine's own prefix cache, not the pool."""
        self.settle()
        assert self.llm.reset_prefix_cache()

    def run(self, prompts: list[list[int]], tokens: int = 4, **extra: Any) -> list[dict[str, Any]]:
        """Serve prompts; return for each what was cached, tokens and their logprobs."""
        return generate(self.llm, prompts, tokens, **extra)

    @contextlib.contextmanager
    def faults(self, fail: Callable[[int], int | None]) -> Iterator[None]:
        self.pool.fail = fail
        try:
            yield
        finally:
            self.pool.fail = None
            # Other scenarios must not meet the memory of these failures.
            self.side._failed.clear()

    @contextlib.contextmanager
    def held(self) -> Iterator[None]:
        """Loads make no progress meanwhile."""
        self.pool.hold_gets = True
        try:
            yield
        finally:
            self.pool.hold_gets = False

    def connected(self) -> bool:
        """Whether both sides use the pool now."""
        return self.side._link.get() is not None and self.worker.runner.link.get() is not None


def greedy(tokens: int) -> SamplingParams:
    return SamplingParams(
        temperature=0, max_tokens=tokens, logprobs=LOGPROBS, detokenize=False, ignore_eos=True
    )


def generate(llm: LLM, prompts: list[list[int]], tokens: int, **extra: Any) -> list[dict[str, Any]]:
    """Serve prompts with an engine; return for each what was cached, tokens and logprobs."""
    requests = [{"prompt_token_ids": prompt, **extra} for prompt in prompts]
    return [read(one) for one in llm.generate(requests, greedy(tokens), use_tqdm=False)]


def read(output: Any) -> dict[str, Any]:
    return {
        "cached": output.num_cached_tokens,
        "tokens": list(output.outputs[0].token_ids),
        "logprobs": [
            sorted((int(t), float(one.logprob)) for t, one in step.items())
            for step in output.outputs[0].logprobs
        ],
    }


def prompt(seed: int, length: int) -> list[int]:
    return [int(t) for t in np.random.default_rng(seed).integers(32, 127, length)]
