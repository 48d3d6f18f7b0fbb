"""Engines for a benchmark: processes of this machine, or those of a real cluster."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import AsyncIterator, Coroutine, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any, Protocol

import aiohttp

from moonpool.bench.xypd_split import Split
from moonpool.config import RouterConfig
from moonpool.demo import engine, place
from moonpool.demo.engine import EngineOptions
from moonpool.demo.process import Child, StartError, Supervisor, until_ready
from moonpool.demo.stack import Pool, Stack
from moonpool.errors import ConfigError
from moonpool.router.build import front_of
from moonpool.router.front import Front
from moonpool.router.instance import BOTH, DECODE, PREFILL
from moonpool.router.service import listen, serving

START_S = 600.0
PROBE_S = 10.0
INFORMED_S, POLL_S = 5.0, 0.05
# With a small model a prompt of a few blocks is a long one.
BYPASS_TOKENS = 256


class Fleet(Protocol):
    """Who has the engines."""

    urls: list[str]

    def serving(self, split: Split, policy: str) -> contextlib.AbstractAsyncContextManager[str]:
        """Give the base URL of a router before the engines of a split; ``urls`` are theirs."""

    def check(self) -> None:
        """Raise StartError when an engine has ended by itself."""


@contextlib.asynccontextmanager
async def routed(config: RouterConfig) -> AsyncIterator[str]:
    """Serve a router of its own in this process; give its base URL."""
    sock = listen("port", "127.0.0.1", 0)
    front = front_of(config)
    async with serving(front, sock):
        await _informed(front)
        yield f"http://127.0.0.1:{sock.getsockname()[1]}"


async def _informed(front: Front) -> None:
    """Wait a moment for a router that wants to know what the engines' blocks are."""
    tokens = front.knowledge.tokens
    with contextlib.suppress(TimeoutError):
        async with asyncio.timeout(INFORMED_S):
            while tokens is not None and tokens.describe()["kind"] == "text":  # noqa: ASYNC110
                await asyncio.sleep(POLL_S)


@dataclass(slots=True)
class Given:
    """Engines that run already, somewhere; a split gets the first of each kind."""

    prefill: Sequence[str]
    decode: Sequence[str]
    instances: Sequence[str]
    settings: RouterConfig
    urls: list[str] = field(default_factory=list)

    def fits(self, split: Split) -> None:
        """Raise ConfigError for a split that needs more engines than are given."""
        for key, given, wanted in (
            ("prefill", self.prefill, split.prefill),
            ("decode", self.decode, split.decode),
            ("instance", self.instances, split.both),
        ):
            if len(given) < wanted:
                raise ConfigError(
                    f"configs: {split} needs {wanted} of --{key}; allowed: what {len(given)} can do"
                )

    @contextlib.asynccontextmanager
    async def serving(self, split: Split, policy: str) -> AsyncIterator[str]:
        """See Fleet."""
        self.fits(split)
        prefill, decode = tuple(self.prefill[: split.prefill]), tuple(self.decode[: split.decode])
        both = tuple(self.instances[: split.both])
        self.urls = [url.partition(" ")[0] for url in (*prefill, *decode, *both)]
        await self._check_all()
        settings = _settings(self.settings, policy, prefill, decode, both)
        async with routed(settings) as url:
            yield url

    async def model(self) -> str:
        """Return the name of the model that the first engine serves; raise StartError."""
        url = [*self.prefill, *self.decode, *self.instances][0].partition(" ")[0]
        try:
            timeout = aiohttp.ClientTimeout(total=PROBE_S)
            async with (
                aiohttp.ClientSession(timeout=timeout) as http,
                http.get(f"{url}/v1/models") as response,
            ):
                return str((await response.json())["data"][0]["id"])
        except (aiohttp.ClientError, TimeoutError, ValueError, LookupError, TypeError):
            raise StartError(f"{url} does not say at /v1/models what it serves") from None

    async def _check_all(self) -> None:
        async with aiohttp.ClientSession() as http:
            for url in self.urls:
                if not await engine.is_serving(http, url):
                    raise StartError(f"{url} does not answer /health")

    def check(self) -> None:
        """See Fleet."""


def _settings(
    base: RouterConfig,
    policy: str,
    prefill: Sequence[str],
    decode: Sequence[str],
    both: Sequence[str],
) -> RouterConfig:
    # Prompts are token ids: no router needs a tokenizer, whose import would hold up the load.
    return replace(
        base,
        tokenizer="instance",
        policy=policy,
        prefill=tuple(prefill),
        decode=tuple(decode),
        backends=tuple(both),
    )


class Local:
    """Engines on this machine, started when a split needs them and kept for those after it.

    A split of one kind never uses engines of another; those that are not needed are idle.
    """

    def __init__(
        self, supervisor: Supervisor, run_dir: Path, options: EngineOptions, pool: Pool | None
    ) -> None:
        self.urls: list[str] = []
        self._supervisor, self._run_dir = supervisor, run_dir
        self._options, self._pool = options, pool
        self._engines: dict[str, list[tuple[Child, str]]] = {PREFILL: [], DECODE: [], BOTH: []}

    @contextlib.asynccontextmanager
    async def serving(self, split: Split, policy: str) -> AsyncIterator[str]:
        """See Fleet."""
        wanted = {PREFILL: split.prefill, DECODE: split.decode, BOTH: split.both}
        if self._pool is None and split.prefill:
            raise ConfigError(f"configs: {split} hands prompts over through the pool; allowed: "
                              "numbers of engines")  # fmt: skip
        await self._grow(wanted)
        urls = {
            role: tuple(url for _, url in self._engines[role][:count])
            for role, count in wanted.items()
        }
        self.urls = [*urls[PREFILL], *urls[DECODE], *urls[BOTH]]
        base = RouterConfig(
            master=self._pool.master if self._pool else "",
            pd="pool",
            bypass_tokens=BYPASS_TOKENS,
            kv_events=False,
        )
        settings = _settings(base, policy, urls[PREFILL], urls[DECODE], urls[BOTH])
        async with routed(settings) as url:
            yield url

    def check(self) -> None:
        """See Fleet."""
        self._supervisor.check()

    async def _grow(self, wanted: dict[str, int]) -> None:
        new: list[tuple[Child, str]] = []
        for role, count in wanted.items():
            missing = max(0, count - len(self._engines[role]))
            for port in place.free_ports(missing) if missing else ():
                new.append((self._start(port, role), f"http://127.0.0.1:{port}"))
                self._engines[role].append(new[-1])
        async with aiohttp.ClientSession() as http:
            # Each checks whether its own child lives, so the first that ends is told.
            await _together([_serves(http, child, url) for child, url in new])

    def _start(self, port: int, role: str) -> Child:
        temporary = self._run_dir / f"tmp-{port}"
        temporary.mkdir()
        pool = self._pool
        return self._supervisor.start(
            f"vllm-{role}-{port}",
            engine.command(self._options, port, pool=pool is not None, role=role),
            {
                **engine.clean_environment(),
                **engine.environment(temporary, pool.master if pool else None),
            },
        )


async def _together(waits: Sequence[Coroutine[Any, Any, None]]) -> None:
    try:
        async with asyncio.TaskGroup() as group:
            for wait in waits:
                group.create_task(wait)
    except ExceptionGroup as errors:
        raise errors.exceptions[0] from None


async def _serves(http: aiohttp.ClientSession, child: Child, url: str) -> None:
    await until_ready(child, lambda: engine.is_serving(http, url), START_S)


@contextlib.asynccontextmanager
async def local(options: EngineOptions, pool_bytes: int) -> AsyncIterator[Local]:
    """Give engines of this machine, with a pool of so many bytes or, for 0, without; end all of
    it afterwards. Raises StartError, in one line, for what does not come up."""
    with place.directory(place.temporary_parent()) as run_dir, contextlib.ExitStack() as stack:
        async with aiohttp.ClientSession() as http, Supervisor(run_dir) as supervisor:
            pool = None
            if pool_bytes:
                segments = stack.enter_context(place.directory(place.segment_parent(pool_bytes)))
                services = Stack(run_dir, supervisor, http, Front())
                pool = await services.start_pool(pool_bytes, segments)
            try:
                yield Local(supervisor, run_dir, options, pool)
            except StartError as error:
                raise StartError(str(error).partition("\n")[0].rstrip(":")) from None
