"""What the connector adds to a step of vLLM's scheduler: ``python -m bench.step [--requests N]``.

The scheduler's half alone, with requests as vLLM's, a pool that answers at once, and no model: so
many requests decode, each with so many tokens in the KV cache. Prints one JSON line: microseconds
of ``build_connector_meta``'s work in a step (p50, p99), of ``get_num_new_matched_tokens`` for one
request that arrives with the whole prompt in the pool (p50, p99), and how many jobs were made.
"""

from __future__ import annotations

import argparse
import gc
import json
import os
import sys
import time
from collections.abc import Callable, Sequence
from types import SimpleNamespace
from typing import Any

import numpy as np

from moonpool.vllm import settings
from moonpool.vllm.jobs import SaveDone
from moonpool.vllm.link import Link
from moonpool.vllm.namespace import Namespace
from moonpool.vllm.parts import Keyspace, Part, windowed
from moonpool.vllm.scheduler import SchedulerSide

OBJECT = 256
WARM_STEPS = 64


class _Pool:
    """A pool that has nothing, or all that it is asked for."""

    awaits = keeps = False

    def __init__(self) -> None:
        self.full = False

    def match_digests(self, _space: bytes, digests: bytes, *_: Any) -> int:
        return len(digests) // 16 if self.full else 0

    def prefetch(self, *_: Any) -> int:
        return 0

    def hold(self, *_: Any) -> None:
        return None

    def release(self, *_: Any) -> None:
        return None

    def register_memory(self, *_: Any) -> None:
        return None

    def close(self) -> None:
        return None


class _Blocks:
    """vLLM's block pool, as far as saves use it."""

    def __init__(self, count: int) -> None:
        self.num_gpu_blocks = count
        self.blocks = range(count)

    def touch(self, _blocks: Sequence[int]) -> None:
        return None

    def free_blocks(self, _blocks: Any) -> None:
        return None


def _request(name: str, tokens: int, block: int) -> Any:
    digests = os.urandom(32 * (tokens // block))
    hashes = [digests[at : at + 32] for at in range(0, len(digests), 32)]
    return SimpleNamespace(
        request_id=name,
        block_hashes=hashes,
        num_tokens=tokens,
        num_prompt_tokens=tokens,
        num_computed_tokens=tokens,
        num_preemptions=0,
        skip_reading_prefix_cache=False,
        kv_transfer_params=None,
    )


class Bench:
    """The scheduler's half with requests that decode."""

    def __init__(self, requests: int, tokens: int, block: int, parts: tuple[Part, ...]) -> None:
        chosen = settings.read({"lookup_wait_ms": 1000, "object_tokens": OBJECT}, "kv_both", {})
        self._pool, self._block = _Pool(), block
        self._link = Link(lambda: self._pool, "bench")  # type: ignore[arg-type,return-value]
        self._link.start()
        while self._link.get() is None:
            time.sleep(0.001)
        self.side = SchedulerSide(
            chosen, Namespace("bench", ()), block, self._link, keyspace=Keyspace(parts)
        )
        per_request = tokens // block + 64
        self.side.pins.bind(_Blocks(requests * per_request), 16)
        self.side.worker_is("LHNC")
        groups = sum(part.width for part in parts)
        # Not all of them complete an object in the same step.
        self._requests = [_request(f"r{n}", tokens + n % OBJECT, block) for n in range(requests)]
        self._tables = {
            one.request_id: [list(range(1, per_request))] * groups for one in self._requests
        }
        self._scheduled = {one.request_id: 1 for one in self._requests}
        self._tokens, self.jobs = tokens, 0

    def start(self) -> None:
        """All requests arrive and have computed their prompts."""
        for one in self._requests:
            self.side.on_new_request(one)
            self.side.matched_tokens(one, 0)

    def step(self) -> float:
        """One step in which each request computes a token; return its seconds."""
        tables = SimpleNamespace(get_block_ids=self._tables.get)
        began = time.perf_counter()
        self.side.take_loads()
        self.side.take_cancels()
        self.side.plan_saves(self._scheduled, tables)
        saves = self.side.take_saves()
        took = time.perf_counter() - began
        self.jobs += len(saves)
        self.side.ended([], [SaveDone(job.job_id, (0,) * len(job.counts)) for job in saves])
        for one in self._requests:
            one.num_computed_tokens += 1
            one.num_tokens += 1
            if one.num_computed_tokens % self._block == 0:
                one.block_hashes.append(os.urandom(32))
        return took

    def arrival(self, number: int) -> float:
        """A request arrives whose prompt is in the pool; return the seconds of the question."""
        self._pool.full = True
        one = _request(f"new{number}", self._tokens, self._block)
        one.num_computed_tokens = 0
        self.side.on_new_request(one)
        time.sleep(0.005)
        began = time.perf_counter()
        tokens = self.side.matched_tokens(one, 0)
        took = time.perf_counter() - began
        assert tokens, "the lookup was not answered"
        self.side.finished(one, [[]])
        return took

    def close(self) -> None:
        self.side.shutdown()


def measure(run: Callable[[int], float], count: int) -> dict[str, float]:
    """Return the percentiles of so many runs, in microseconds."""
    took = np.array([run(number) for number in range(count)]) * 1e6
    p50, p99 = np.percentile(took, [50, 99])
    return {"p50_us": round(float(p50), 1), "p99_us": round(float(p99), 1)}


def main() -> None:
    """Measure and print."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--requests", type=int, default=1000)
    parser.add_argument("--tokens", type=int, default=32_768)
    parser.add_argument("--block", type=int, default=16)
    parser.add_argument("--steps", type=int, default=1000)
    parser.add_argument("--window", type=int, default=0, help="layers with such a window beside")
    args = parser.parse_args()
    parts: tuple[Part, ...] = (Part(),)
    if args.window:
        parts += (windowed(args.window, args.block, number=1, groups=(1,), layers=((),)),)
    bench = Bench(args.requests, args.tokens, args.block, parts)
    bench.start()
    # vLLM's engine freezes what it has made before it serves, as this does.
    gc.collect()
    gc.freeze()
    for _ in range(WARM_STEPS):
        bench.step()
    found = {
        "requests": args.requests,
        "tokens": args.tokens,
        "step": measure(lambda _: bench.step(), args.steps),
        "jobs": bench.jobs,
        "match": measure(bench.arrival, 200),
    }
    bench.close()
    sys.stdout.write(json.dumps(found) + "\n")


if __name__ == "__main__":
    main()
