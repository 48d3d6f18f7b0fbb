"""The whole stack, left running behind one OpenAI-compatible port."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

from rich.console import Console

from moonpool.config import RouterConfig
from moonpool.demo import engine, place
from moonpool.demo.engine import EngineOptions
from moonpool.demo.keeper import Keeper
from moonpool.demo.model import Shape, build_model
from moonpool.demo.stack import Stack, stack_on
from moonpool.demo.up_config import UpConfig
from moonpool.router.build import front_of
from moonpool.router.front import Front
from moonpool.router.service import listen

MODEL_NAME = "moonpool-demo"
BYPASS_TOKENS, DEMO_BYPASS_TOKENS = 2048, 256


async def run_up(config: UpConfig, console: Console) -> None:
    """Start the stack and keep it until the task is cancelled. What ends is started again.

    Raises ConfigError for a port that is taken, StartError where the pool, or each replica, ends
    again and again.
    """
    sock = listen("port", config.host, config.port)
    engine.require_vllm()
    url = f"http://{config.host}:{sock.getsockname()[1]}"
    with (
        place.directory(place.temporary_parent()) as run_dir,
        place.directory(place.segment_parent(config.pool_size)) as segments,
    ):

        def say(text: str) -> None:
            console.print(text, highlight=False, markup=False, soft_wrap=True)

        async with stack_on(sock, run_dir, _front(config)) as stack:
            await _start(stack, config, segments, say)
            say(_ready_text(config, url))
            keeper = Keeper(say)
            stack.keep_all(keeper)
            await keeper.run()


async def _start(
    stack: Stack, config: UpConfig, segments: Path, say: Callable[[str], None]
) -> None:
    options = EngineOptions(
        model=_model(config),
        served_name=_served_name(config),
        kv_bytes=config.engine_kv_size,
        context_tokens=config.context_tokens,
        sequences=config.sequences,
        dtype="auto" if config.model else "float32",
    )

    pool = None
    if not config.alone:
        say("starting master and node")
        pool = await stack.start_pool(config.pool_size, segments, config.disk(), config.eviction)
    count, about = config.replicas, f"{config.replicas} vLLM replicas"
    if config.prefill and pool is not None:
        count = config.prefill + config.decode
        stack.ask_pool(pool)
        about = f"{config.prefill} vLLM processes that prefill and {config.decode} that decode"
    say(f"starting {about} (logs: {stack.logs})")
    await stack.start_replicas(options, count, pool, config.prefill)
    if pool is not None:
        say(f"pool: MOONPOOL_MASTER={pool.master}  {pool.http_url}/metrics")


def _front(config: UpConfig) -> Front | None:
    if not config.prefill:
        return None
    # With the demonstration's model a prompt of a few blocks is a long one.
    bound = BYPASS_TOKENS if config.model else DEMO_BYPASS_TOKENS
    return front_of(RouterConfig(pd="pool", bypass_tokens=bound))


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
