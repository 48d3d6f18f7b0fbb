"""An engine in a process of its own that publishes KV events: ``python -m
tests.e2e.vllm.publisher MODEL FOLDER``. Each line of JSON on its standard input is a prompt's ids;
it answers on standard output with how many of them it had cached."""

from __future__ import annotations

import json
import os
import sys
from pathlib import Path

os.environ |= {
    "VLLM_ENABLE_V1_MULTIPROCESSING": "0",
    "VLLM_CPU_OMP_THREADS_BIND": "nobind",
    "VLLM_HOST_IP": "127.0.0.1",
    "VLLM_LOGGING_LEVEL": "WARNING",
    "VLLM_NO_USAGE_STATS": "1",
    "HF_HUB_OFFLINE": "1",
    "OMP_NUM_THREADS": "1",
    "TORCHDYNAMO_DISABLE": "1",
}

BLOCK, BLOCKS = 32, 24


def endpoints(folder: Path) -> tuple[str, str]:
    """Return where it publishes, and where it replays."""
    return f"ipc://{folder}/events", f"ipc://{folder}/replay"


def main(model: str, folder: Path) -> None:
    """Serve prompts until standard input ends."""
    from vllm import LLM, SamplingParams
    from vllm.config import KVEventsConfig

    said = os.fdopen(os.dup(1), "w", buffering=1)
    os.dup2(2, 1)
    publisher, replay = endpoints(folder)
    llm = LLM(
        model,
        dtype="float32",
        block_size=BLOCK,
        num_gpu_blocks_override=BLOCKS,
        kv_cache_memory_bytes=16 << 20,
        max_model_len=512,
        max_num_seqs=2,
        enforce_eager=True,
        kv_events_config=KVEventsConfig(
            enable_kv_cache_events=True, endpoint=publisher, replay_endpoint=replay
        ),
    )
    said.write("ready\n")
    for line in sys.stdin:
        prompts = [{"prompt_token_ids": json.loads(line)}]
        (done,) = llm.generate(prompts, SamplingParams(max_tokens=1), use_tqdm=False)
        said.write(f"{done.num_cached_tokens}\n")


if __name__ == "__main__":
    main(sys.argv[1], Path(sys.argv[2]))
