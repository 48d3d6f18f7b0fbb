"""The whole stack, left running behind one OpenAI-compatible port."""

from __future__ import annotations

import asyncio
from pathlib import Path

from rich.console import Console

from moonpool.demo import engine, place
from moonpool.demo.engine import EngineOptions
from moonpool.demo.model import Shape, build_model
from moonpool.demo.stack import Stack, stack_on
from moonpool.demo.up_config import UpConfig
from moonpool.router.service import listen

WATCH_S = 1.0
MODEL_NAME = "moonpool-demo"


async def run_up(config: UpConfig, console: Console) -> None:
    """Start the stack and keep it until the task is cancelled or one of its processes ends.

    Raises ConfigError for a port that is taken, StartError for a process that ends by itself.
    """
    sock = listen("port", config.host, config.port)
    engine.require_vllm()
    url = f"http://{config.host}:{sock.getsockname()[1]}"
    with (
        place.directory(place.temporary_parent()) as run_dir,
        place.directory(place.segment_parent(config.pool_size)) as segments,
    ):
        async with stack_on(sock, run_dir) as stack:
            await _start(stack, config, segments, console)
            console.print(_ready_text(config, url), highlight=False, markup=False, soft_wrap=True)
            while True:
                await asyncio.sleep(WATCH_S)
                stack.check()


async def _start(stack: Stack, config: UpConfig, segments: Path, console: Console) -> None:
    options = EngineOptions(
        model=_model(config),
        served_name=_served_name(config),
        kv_bytes=config.engine_kv_size,
        context_tokens=config.context_tokens,
        sequences=config.sequences,
        dtype="auto" if config.model else "float32",
    )

    def say(text: str) -> None:
        console.print(text, highlight=False, markup=False, soft_wrap=True)

    say("starting master and node")
    pool = await stack.start_pool(config.pool_size, segments)
    say(f"starting {config.replicas} vLLM replicas (logs: {stack.logs})")
    await stack.start_replicas(options, config.replicas, pool)
    say(f"pool: MOONPOOL_MASTER={pool.master}  {pool.http_url}/metrics")


def _model(config: UpConfig) -> Path:
    if config.model:
        return Path(config.model).resolve()
    return build_model(place.cache_dir() / "models", Shape())


def _served_name(config: UpConfig) -> str:
    return Path(config.model).resolve().name if config.model else MODEL_NAME


def _ready_text(config: UpConfig, url: str) -> str:
    body = f'{{"model": "{_served_name(config)}", "prompt": "hello", "max_tokens": 16}}'
    return (
        f"ready: {url}/v1 (model {_served_name(config)}); Ctrl-C ends it\n"
        f"  curl {url}/v1/completions -H 'Content-Type: application/json' -d '{body}'"
    )
