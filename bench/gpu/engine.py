"""One vLLM engine in a process of its own, driven by JSON lines; started by rig.py.

In: ``{"op": "generate", "id": .., "prompt": [[seed, tokens], ..], "out": n}``, ``{"op": "reset"}``,
``{"op": "exit"}``. Out: one line for each, in the order in which they end. A prompt is the
concatenation of random runs of tokens, so that prompts can share prefixes without being sent.
"""

from __future__ import annotations

import asyncio
import json
import os
import sys
import time
from functools import lru_cache
from typing import Any

import numpy as np

LOWEST_TOKEN = 16


class Engine:
    """Answers requests; all times are seconds since the request came."""

    def __init__(self, options: dict[str, Any], answer: Any) -> None:
        from vllm.config import KVTransferConfig
        from vllm.engine.arg_utils import AsyncEngineArgs
        from vllm.v1.engine.async_llm import AsyncLLM

        self._answer = answer
        self._vocabulary = int(options.pop("vocabulary"))
        connector = options.pop("connector", None)
        if connector is not None:
            options["kv_transfer_config"] = KVTransferConfig(**connector)
        began = time.perf_counter()
        self._llm = AsyncLLM.from_engine_args(AsyncEngineArgs(**options))
        self._start_s = time.perf_counter() - began

    async def run(self, lines: asyncio.StreamReader) -> None:
        """Serve until ``exit`` or the end of the input."""
        await self._generate({"id": "warm", "prompt": [[1, 300]], "out": 4}, silent=True)
        self._answer({"ready_s": round(self._start_s, 1)})
        running: set[asyncio.Task[None]] = set()
        while line := await lines.readline():
            request = json.loads(line)
            if request["op"] == "exit":
                return
            work = self._reset if request["op"] == "reset" else self._generate
            task = asyncio.create_task(work(request))
            running.add(task)
            task.add_done_callback(running.discard)

    async def _reset(self, request: dict[str, Any]) -> None:
        done = await self._llm.reset_prefix_cache()
        self._answer({"id": request["id"], "reset": done is not False})

    async def _generate(self, request: dict[str, Any], silent: bool = False) -> None:
        from vllm import SamplingParams

        out, transfer = int(request["out"]), request.get("transfer")
        params = SamplingParams(
            max_tokens=out,
            min_tokens=out,
            temperature=0,
            detokenize=False,
            ignore_eos=True,
            extra_args={"kv_transfer_params": transfer} if transfer else None,
        )
        parts = [_run(int(seed), int(n), self._vocabulary) for seed, n in request["prompt"]]
        prompt = np.concatenate(parts).tolist()
        began = time.perf_counter()
        times: list[float] = []
        output: Any = None
        try:
            stream = self._llm.generate({"prompt_token_ids": prompt}, params, str(request["id"]))
            async for newest in stream:
                output = newest
                times.append(round(time.perf_counter() - began, 6))
        except Exception as error:  # noqa: BLE001 - the other requests go on
            self._answer({"id": request["id"], "error": repr(error)[:300]})
            return
        if not silent:
            self._answer(
                {
                    "id": request["id"],
                    "times": times,
                    "cached": output.num_cached_tokens,
                    "prompt": len(prompt),
                    "tokens": list(output.outputs[0].token_ids),
                    "params": output.kv_transfer_params,
                }
            )


@lru_cache(maxsize=65536)
def _run(seed: int, count: int, vocabulary: int) -> Any:
    random = np.random.default_rng(seed)
    return random.integers(LOWEST_TOKEN, vocabulary, count)


async def _main(options: dict[str, Any], out: Any) -> None:
    def answer(line: dict[str, Any]) -> None:
        out.write(json.dumps(line) + "\n")

    engine = Engine(options, answer)
    lines = asyncio.StreamReader(limit=1 << 24)
    loop = asyncio.get_running_loop()
    await loop.connect_read_pipe(lambda: asyncio.StreamReaderProtocol(lines), sys.stdin)
    await engine.run(lines)


if __name__ == "__main__":
    # vLLM and its children write to stdout: answers get a descriptor of their own.
    answers = os.fdopen(os.dup(1), "w", buffering=1)
    os.dup2(2, 1)
    asyncio.run(_main(json.loads(sys.argv[1]), answers))
    os._exit(0)
