"""The whole stack on this machine: master, node, vLLM replicas, and a front before them."""

from __future__ import annotations

import asyncio
import contextlib
import functools
import json
import socket
import sys
from collections.abc import AsyncIterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import aiohttp

from moonpool.demo import engine, place
from moonpool.demo.engine import EngineOptions
from moonpool.demo.keeper import Keeper, Kept
from moonpool.demo.process import Child, Supervisor, until_ready
from moonpool.router.front import Front
from moonpool.router.instance import BOTH, DECODE, PREFILL
from moonpool.router.members import Named
from moonpool.router.pool import StorePool
from moonpool.router.service import serving

SERVICE_START_TIMEOUT_S = 30.0


@dataclass(frozen=True, slots=True)
class Pool:
    """A running master and node; or, without children, a Mooncake cluster that runs already."""

    master: str
    http_url: str
    children: tuple[Child, ...]
    engine: str = "moonpool"


class Stack:
    """Starts and stops the parts; all that it started ends with its context.

    ``front`` answers from the beginning, and with 503 while no replica is up.
    """

    def __init__(
        self, run_dir: Path, supervisor: Supervisor, http: aiohttp.ClientSession, front: Front
    ) -> None:
        self.front = front
        self.http = http
        self._run_dir = run_dir
        self._supervisor = supervisor
        self._members: list[Named] = []
        self._replicas: list[Child] = []
        self._asking: asyncio.Task[None] | None = None

    @property
    def replica_urls(self) -> list[str]:
        """The base URLs of the replicas that are up."""
        return [each.url for each in self._members]

    @property
    def logs(self) -> Path:
        """The directory of the processes' logs."""
        return self._run_dir

    def ask_pool(self, pool: Pool) -> None:
        """Let the front ask the pool what it has of prompts, for as long as the stack lasts."""
        view = StorePool(pool.master)
        self.front.knowledge.pool = view
        self._asking = asyncio.create_task(view.run())

    async def close(self) -> None:
        """End what runs in this process. Idempotent."""
        if self._asking is not None:
            self._asking.cancel()
            with contextlib.suppress(asyncio.CancelledError):
                await self._asking

    def check(self) -> None:
        """Raise StartError when a process of the stack has ended by itself."""
        self._supervisor.check()

    async def start_pool(
        self,
        pool_bytes: int,
        segments: Path,
        disk: Mapping[str, Any] | None = None,
        eviction: str = "",
    ) -> Pool:
        """Start a master and a node that gives ``pool_bytes`` to the pool. disk: the node's keys
        for its disk, if it is to have one. eviction: the master's policy, if not the default."""
        base = {"host": "127.0.0.1", "port": 0}
        policy = {"eviction": eviction} if eviction else {}
        ready = await self._start_service("master", {**base, **policy, "http_port": 0})
        address = f"127.0.0.1:{ready['port']}"
        await self._start_service(
            "node",
            {
                **base,
                "master": address,
                "size": pool_bytes,
                "segment_dir": str(segments),
                **(disk or {}),
            },
        )
        node = self._supervisor.children[-1]
        node.grace_s += float((disk or {}).get("ssd_save_s", 0.0))
        http_url = f"http://127.0.0.1:{ready['http_port']}"
        return Pool(address, http_url, tuple(self._supervisor.children[-2:]))

    async def _start_service(self, role: str, settings: dict[str, Any]) -> dict[str, Any]:
        """Start ``moonpool <role>`` and return what it says of itself once it serves."""
        settings = {**settings, "ready_file": str(self._run_dir / f"{role}.ready")}
        config = self._run_dir / f"{role}.json"
        config.write_text(json.dumps(settings))
        command = [sys.executable, "-m", "moonpool.cli", role, "--config", str(config)]
        child = self._supervisor.start(role, command, engine.clean_environment())
        said = await self._until_told(child)
        # Where it is started again, it is where others look for it.
        ports = {key: said[key] for key in ("port", "http_port") if key in settings}
        config.write_text(json.dumps({**settings, **ports}))
        return said

    async def _until_told(self, child: Child) -> dict[str, Any]:
        """Wait until a service says that it serves; return what it says of itself."""
        ready_file = self._run_dir / f"{child.name}.ready"

        async def is_ready() -> bool:
            return ready_file.exists()

        await until_ready(child, is_ready, SERVICE_START_TIMEOUT_S)
        said: dict[str, Any] = json.loads(ready_file.read_text())
        ready_file.unlink()
        return said

    async def start_replicas(
        self, options: EngineOptions, count: int, pool: Pool | None, prefill: int = 0
    ) -> None:
        """Start replicas side by side and send the front's requests to them once all serve.

        prefill: so many of them prefill for the others; 0: each does both.
        """
        ports = place.free_ports(count)
        rest = DECODE if prefill else BOTH
        roles = [PREFILL] * prefill + [rest] * (count - prefill)
        children = [
            self._start_replica(options, port, pool, role)
            for port, role in zip(ports, roles, strict=True)
        ]
        members = [
            Named(f"http://127.0.0.1:{port}", role) for port, role in zip(ports, roles, strict=True)
        ]
        self._replicas = children
        try:
            async with asyncio.TaskGroup() as group:
                for child, each in zip(children, members, strict=True):
                    group.create_task(self._until_serving(child, each.url))
        except ExceptionGroup as errors:
            raise errors.exceptions[0] from None
        self._members = members
        self.front.replace_instances(members)

    def _start_replica(
        self, options: EngineOptions, port: int, pool: Pool | None, role: str
    ) -> Child:
        temporary = self._run_dir / f"tmp-{port}"
        temporary.mkdir()
        alone = engine.environment(temporary, None)
        kind = ("pool" if role == BOTH else role) if pool else "alone"
        return self._supervisor.start(
            f"vllm-{kind}-{port}",
            engine.command(options, port, pool=pool is not None, role=role),
            {
                **engine.clean_environment(),
                **(engine.environment(temporary, pool.master, pool.engine) if pool else alone),
            },
        )

    async def _until_serving(self, child: Child, url: str) -> None:
        async def ready() -> bool:
            return await engine.is_serving(self.http, url)

        await until_ready(child, ready, engine.START_TIMEOUT_S)

    def keep_all(self, keeper: Keeper) -> None:
        """Let the keeper start again whatever of the stack ends by itself."""
        for child in self._supervisor.children:
            if child not in self._replicas:
                told = functools.partial(self._until_told, child)
                keeper.keep(Kept(child, lambda: None, told, essential=True))
        for child, member in zip(self._replicas, self._members, strict=True):
            lost = functools.partial(self._take_out, member)
            ready = functools.partial(self._bring_back, child, member)
            keeper.keep(Kept(child, lost, ready, essential=False))

    def _take_out(self, member: Named) -> None:
        if member in self._members:
            self._members.remove(member)
            self.front.replace_instances(self._members)

    async def _bring_back(self, child: Child, member: Named) -> None:
        await self._until_serving(child, member.url)
        self._members.append(member)
        self.front.replace_instances(self._members)

    async def stop_replicas(self) -> None:
        """End all replicas; the front answers 503 from now on."""
        self.front.replace_instances([])
        self._members = []
        await self._supervisor.stop_together(self._replicas)
        self._replicas = []

    async def stop_pool(self, pool: Pool) -> None:
        """End the node, which removes its segments, and the master."""
        await self._supervisor.stop(pool.children)


@contextlib.asynccontextmanager
async def stack_on(
    sock: socket.socket, run_dir: Path, front: Front | None = None
) -> AsyncIterator[Stack]:
    """Give a stack whose front serves on ``sock``; end everything of it afterwards.

    front: how requests are sent; without one, to each replica in turn.
    """
    async with aiohttp.ClientSession() as http, Supervisor(run_dir) as supervisor:
        stack = Stack(run_dir, supervisor, http, front or Front())
        async with serving(stack.front, sock):
            try:
                yield stack
            finally:
                await stack.close()
