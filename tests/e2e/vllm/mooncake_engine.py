"""Runs inside a process of its own: a vLLM engine with a connector to a Mooncake store.

Reads a line of JSON for each batch of prompts, and answers with a line. The in-tree connector
records an event of CUDA before it saves; a CPU build of vLLM has none, and nothing to wait for.
"""

from __future__ import annotations

import json
import sys
from pathlib import Path
from typing import Any

import torch

from tests.e2e.vllm.driver import BLOCK, LOGPROBS

MARK = "@"
SETTINGS: dict[str, Any] = {
    "dtype": "float32",
    "block_size": BLOCK,
    "max_model_len": 1024,
    "max_num_batched_tokens": 128,
    "kv_cache_memory_bytes": 64 << 20,
    "enforce_eager": True,
    "skip_tokenizer_init": True,
    "disable_log_stats": False,
    "seed": 0,
}


class NoEvent:
    """What stands for torch.cuda.Event: on a CPU all work is done when it is submitted."""

    def __init__(self, *_: Any, **__: Any) -> None:
        """Take what the real one takes."""

    def record(self, *_: Any) -> None:
        """Nothing is queued."""

    def synchronize(self) -> None:
        """Nothing is waited for."""

    def query(self) -> bool:
        """Everything is done."""
        return True


def main(model: Path, transfer: dict[str, Any]) -> None:
    """Serve batches until the input ends. transfer: vLLM's ``kv_transfer_config``."""
    torch.cuda.Event = NoEvent
    from vllm import LLM

    llm = LLM(str(model), kv_transfer_config=transfer, **SETTINGS)
    say("ready")
    for line in sys.stdin:
        said = json.loads(line)
        if said["forget"]:
            assert llm.reset_prefix_cache()
        found = generate(llm, said["prompts"], said["tokens"])
        drain(llm)
        say(found)


def say(what: object) -> None:
    """Answer with a line."""
    print(MARK + json.dumps(what), flush=True)  # noqa: T201


def generate(llm: Any, prompts: list[list[int]], tokens: int) -> list[dict[str, Any]]:
    """Serve prompts; return for each what was cached, tokens and their logprobs."""
    from vllm import SamplingParams

    params = SamplingParams(
        temperature=0, max_tokens=tokens, logprobs=LOGPROBS, detokenize=False, ignore_eos=True
    )
    requests = [{"prompt_token_ids": each} for each in prompts]
    return [read(each) for each in llm.generate(requests, params, use_tqdm=False)]


def read(output: Any) -> dict[str, Any]:
    """Return what matters of an output."""
    return {
        "cached": output.num_cached_tokens,
        "tokens": list(output.outputs[0].token_ids),
        "logprobs": [
            sorted((int(t), float(one.logprob)) for t, one in step.items())
            for step in output.outputs[0].logprobs
        ],
    }


def drain(llm: Any) -> None:
    """Step until all saves have ended: an engine that is not asked for anything does not step."""
    core = llm.llm_engine.engine_core.engine_core
    for _ in range(2000):
        if not core.scheduler.has_requests() and not core.scheduler.has_finished_requests():
            pending = getattr(core.scheduler.connector, "has_pending_push_work", bool)
            if not pending():
                return
        core.step_fn()


if __name__ == "__main__":
    main(Path(sys.argv[1]), json.loads(sys.argv[2]))
