"""The demonstration: the same conversations with the pool and without it, on the same replicas."""

from __future__ import annotations

import time
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path

from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeElapsedColumn

from moonpool.demo import engine, place
from moonpool.demo.compare import compare, summarise
from moonpool.demo.engine import BLOCK_TOKENS, CacheCounters, EngineOptions
from moonpool.demo.model import BYTE_TOKENS, Shape, build_model
from moonpool.demo.process import StartError
from moonpool.demo.report import Report
from moonpool.demo.stack import Pool, Stack, stack_on
from moonpool.demo.workload import Workload
from moonpool.router.service import listen
from moonpool.workload.replay import ReplayOptions, Run, TurnKey, replay
from moonpool.workload.session import Session, Turn

SERVED_NAME = "moonpool-demo"
REPLICAS = 2
WORKING_SET_TO_ENGINE = 4.6
"""How many times one engine's KV cache the conversations are. With 24 agents of 38,000 tokens on
GPUs that keep 24 GiB each for KV, it is as much."""
RUNNING_MAX = 2
POOL_TO_WORKING_SET = 1.25
POOL_BYTES_MIN = 256 << 20
WARM_UP_TOKENS = 40


@dataclass(frozen=True, slots=True)
class DemoOptions:
    """What to run. Sizes of 0 follow from the workload. ``cache_dir`` keeps the model. mooncake:
    the mooncake_master of a cluster that is the pool, in place of one that is started."""

    cache_dir: Path = field(default_factory=place.cache_dir)
    shape: Shape = field(default_factory=Shape)
    pool_bytes: int = 0
    engine_kv_tokens: int = 0
    mooncake: str = ""


def kv_tokens(workload: Workload, options: DemoOptions) -> int:
    """Return how many tokens of KV each engine keeps: a fraction of the working set, and room
    for the requests that run at the same time."""
    if options.engine_kv_tokens:
        return options.engine_kv_tokens
    share = int(workload.working_set_tokens / WORKING_SET_TO_ENGINE)
    needed = max(share, RUNNING_MAX * (workload.context_tokens + BLOCK_TOKENS))
    # One more block than that: vLLM keeps one for itself.
    return (-(-needed // BLOCK_TOKENS) + 1) * BLOCK_TOKENS


def pool_bytes(workload: Workload, options: DemoOptions) -> int:
    """Return how much memory the pool gets: enough for every conversation to its end."""
    if options.pool_bytes:
        return options.pool_bytes
    exact = workload.working_set_tokens * options.shape.kv_bytes_per_token
    return max(POOL_BYTES_MIN, int(exact * POOL_TO_WORKING_SET))


async def run_demo(workload: Workload, options: DemoOptions, console: Console) -> Report:
    """Run the comparison; whatever it started has ended when it returns or raises."""
    demo = _Demo(workload, options, console)
    with place.directory(place.temporary_parent()) as run_dir:
        return await demo.run(run_dir)


class _Demo:
    def __init__(self, workload: Workload, options: DemoOptions, console: Console) -> None:
        self._workload = workload
        self._options = options
        self._console = console
        self._seconds: dict[str, float] = {}

    async def run(self, run_dir: Path) -> Report:
        self._say(self._workload.about)
        with self._timed("model"):
            model = build_model(self._options.cache_dir / "models", self._options.shape)
        options = self._engine_options(model)
        sock = listen("port", "127.0.0.1", 0)
        self._url = f"http://127.0.0.1:{sock.getsockname()[1]}"
        async with stack_on(sock, run_dir) as stack:
            with_pool, pool_counters = await self._run_with_pool(stack, options)
            forced = {answer.key: answer.tokens for answer in with_pool.answers}
            alone, counters = await self._measure(stack, options, None, forced)
        return Report(
            workload=self._workload.about,
            pool=summarise(with_pool, pool_counters),
            baseline=summarise(alone, counters),
            comparison=compare(with_pool, alone),
            seconds=self._seconds,
        )

    def _engine_options(self, model: Path) -> EngineOptions:
        shape, tokens = self._options.shape, kv_tokens(self._workload, self._options)
        working_set = self._workload.working_set_tokens
        self._say(
            f"model: {shape.layers} layers, hidden {shape.hidden}, float32, "
            f"{shape.kv_bytes_per_token >> 10} KiB of KV a token; {REPLICAS} replicas of one "
            f"thread, each keeping {tokens:,} tokens of KV ({working_set / tokens:.1f} times as "
            f"much is in use); pool {self._pool_bytes() / 2**30:.1f} GiB"
        )
        return EngineOptions(
            model=model,
            served_name=SERVED_NAME,
            kv_bytes=tokens * shape.kv_bytes_per_token,
            context_tokens=self._workload.context_tokens + 1,
            sequences=RUNNING_MAX,
        )

    def _pool_bytes(self) -> int:
        return pool_bytes(self._workload, self._options)

    async def _run_with_pool(
        self, stack: Stack, options: EngineOptions
    ) -> tuple[Run, CacheCounters]:
        if self._options.mooncake:
            self._say(f"the pool is the Mooncake cluster of {self._options.mooncake}")
            cluster = Pool(self._options.mooncake, "", (), "mooncake")
            return await self._measure(stack, options, cluster, None)
        with place.directory(place.segment_parent(self._pool_bytes())) as segments:
            with self._timed("services_start", "starting master and node"):
                pool = await stack.start_pool(self._pool_bytes(), segments)
            try:
                return await self._measure(stack, options, pool, None)
            finally:
                await stack.stop_pool(pool)

    async def _measure(
        self,
        stack: Stack,
        options: EngineOptions,
        pool: Pool | None,
        forced: Mapping[TurnKey, list[int]] | None,
    ) -> tuple[Run, CacheCounters]:
        """Start replicas, replay, stop them; return the answers and what the caches counted."""
        name = "with the pool" if pool else "vLLM alone"
        key = "pool" if pool else "baseline"
        with self._timed(f"{key}_start", f"starting {REPLICAS} vLLM replicas, {name}"):
            await stack.start_replicas(options, REPLICAS, pool)
        try:
            await self._warm_up(stack)
            before = await engine.cache_counters(stack.http, stack.replica_urls)
            with self._timed(f"{key}_replay"):
                run = await self._replay(name, forced)
            stack.check()
            after = await engine.cache_counters(stack.http, stack.replica_urls)
            return run, after - before
        finally:
            await stack.stop_replicas()

    async def _warm_up(self, stack: Stack) -> None:
        """Let each replica answer once, so that what happens only once is not measured."""
        session = Session("warm-up", "warm-up", 1, (Turn(WARM_UP_TOKENS, 4),))
        for url in stack.replica_urls:
            run = await replay(url, [session], self._replay_options())
            for answer in run.answers:
                if answer.error:
                    raise StartError(f"{url} does not answer: {answer.error}")

    async def _replay(self, name: str, forced: Mapping[TurnKey, list[int]] | None) -> Run:
        columns = (TextColumn("{task.description}"), BarColumn(), MofNCompleteColumn())
        with Progress(*columns, TimeElapsedColumn(), console=self._console) as progress:
            bar = progress.add_task(f"replaying, {name}", total=self._workload.requests)
            return await replay(
                self._url,
                self._workload.sessions,
                self._replay_options(),
                forced=forced,
                on_answer=lambda answer: progress.advance(bar),
            )

    def _replay_options(self) -> ReplayOptions:
        return ReplayOptions(
            model=SERVED_NAME,
            vocabulary=BYTE_TOKENS,
            block_tokens=BLOCK_TOKENS,
            concurrency=len(self._workload.sessions),
            start_spacing_s=self._workload.start_spacing_s,
        )

    @contextmanager
    def _timed(self, key: str, what: str = "") -> Iterator[None]:
        began = time.monotonic()
        if what:
            self._say(what)
        yield
        self._seconds[key] = round(time.monotonic() - began, 1)

    def _say(self, text: str) -> None:
        self._console.print(text, highlight=False, markup=False, soft_wrap=True)
