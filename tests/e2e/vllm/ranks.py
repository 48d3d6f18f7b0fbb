"""Runs one model with one worker and with two, which share a pool:
``python -m tests.e2e.vllm.ranks MODEL OUTPUT`` writes one JSON of findings.
"""

from __future__ import annotations

import gc
import json
import os
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

from vllm import LLM

from moonpool.client.store import Store
from moonpool.core.keys import split
from tests.e2e.vllm.driver import BLOCK, OBJECT, SETTINGS, generate, prompt
from tests.e2e.vllm.logprobs import difference

SHARED, OWN = prompt(1, 300), prompt(2, 320)
WAIT_S = 60.0


class Engine:
    """An engine whose workers are processes; its scheduler is in this one."""

    def __init__(self, model: str, workers: int) -> None:
        extra: dict[str, Any] = {"object_tokens": OBJECT, "lookup_wait_ms": 5000}
        extra |= {"head_shards": 2, "master": os.environ["TEST_MASTER"]}
        transfer = {"kv_connector": "MoonpoolConnector", "kv_role": "kv_both"}
        options = {**SETTINGS, "tensor_parallel_size": workers}
        self.llm = LLM(
            model, kv_transfer_config={**transfer, "kv_connector_extra_config": extra}, **options
        )
        self._core = self.llm.llm_engine.engine_core.engine_core
        self.side = self._core.scheduler.connector._scheduler
        self._until(lambda: self.side._link.connected)

    def serve(self, tokens: list[int]) -> Any:
        """Return the answer; all is saved then, and the engine's own cache empty."""
        answer = generate(self.llm, [tokens], 4)[0]
        self._until(lambda: not self._core.scheduler.has_requests() and not self.side.pins.jobs)
        assert self.llm.reset_prefix_cache()
        return answer

    def serve_saved(self, tokens: list[int]) -> Any:
        """Return the answer once all whole blocks come from the pool: the workers join it in their
        own time, and what cannot be saved meanwhile is saved with a later request."""
        deadline, whole = time.monotonic() + WAIT_S, len(tokens) // BLOCK * BLOCK
        while (answer := self.serve(tokens))["cached"] < whole:
            assert time.monotonic() < deadline, "nothing comes from the pool"
        return answer

    def _until(self, condition: Callable[[], bool]) -> None:
        deadline = time.monotonic() + WAIT_S
        while not condition():
            assert time.monotonic() < deadline, "waited in vain"
            self._core.step_fn()
            time.sleep(0.001)

    def close(self) -> None:
        self.llm.llm_engine.engine_core.shutdown()
        del self.llm, self._core, self.side
        gc.collect()


def plain(model: str) -> list[Any]:
    """Return what vLLM without a connector answers, with one worker."""
    llm = LLM(model, **SETTINGS)
    answers = generate(llm, [SHARED, OWN], 4)
    llm.llm_engine.engine_core.shutdown()
    del llm
    gc.collect()
    return answers


def main(model: str, output: str) -> None:
    """Two workers store, load and lose a shard; then one worker loads what the two stored."""
    expected, own = plain(model)
    store = Store.connect(os.environ["TEST_MASTER"], name="probe")
    engine = Engine(model, 2)
    cold = engine.serve(SHARED)
    hot = engine.serve_saved(SHARED)
    keys = [one.key for one in store.list()]
    sizes = sorted(one.size for one in store.list())
    shards = sorted({split(key)[0] for key in keys})
    names = [{split(key)[1] for key in keys if split(key)[0] == space} for space in shards]
    # One shard of each object is gone: the object is not there any more.
    gone = store.remove_batch([key for key in keys if split(key)[0] == shards[1]], force=True)
    lost = engine.serve(SHARED)
    again = engine.serve_saved(SHARED)
    engine.close()
    other = Engine(model, 1)
    from_two = other.serve_saved(SHARED)
    other.serve(OWN)
    by_one = other.serve_saved(OWN)
    other.close()
    found = {
        "cached": [one["cached"] for one in (cold, hot, lost, again, from_two, by_one)],
        "difference": max(
            *(difference(expected, one) for one in (cold, hot, lost, again, from_two)),
            difference(own, by_one),
        ),
        "shards": len(shards),
        "alike": all(one == names[0] for one in names),
        "sizes": sizes,
        "gone": set(gone) == {0},
    }
    store.close()
    Path(output).write_text(json.dumps({"llama": found}))


if __name__ == "__main__":
    main(*sys.argv[1:3])
