"""The router's index beside a real engine that publishes KV events: hashes, evictions, restarts."""

from __future__ import annotations

import asyncio
import json
import sys
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path

import pytest

from moonpool.demo.model import build_model
from moonpool.router.blockhash import BlockHasher, key_of
from moonpool.router.following import Follower
from moonpool.router.index import PrefixIndex
from moonpool.router.instance import EngineFacts, Instance
from moonpool.router.members import Members
from moonpool.router.metrics import RouterMetrics
from moonpool.router.subscribe import Subscriptions
from tests.e2e.vllm.conftest import NEW, ROOT, SHAPE
from tests.e2e.vllm.publisher import BLOCK, BLOCKS, endpoints
from tests.e2e.vllm.servers import prompt
from tests.integration.processes import environment

pytestmark = [pytest.mark.e2e, pytest.mark.timeout(300)]
WAIT_S = 200.0


class Publisher:
    """The engine's process."""

    def __init__(self, process: asyncio.subprocess.Process, log: Path) -> None:
        self._process, self._log = process, log

    async def serve(self, tokens: list[int]) -> int:
        """Return how many of a prompt's tokens the engine had cached."""
        assert self._process.stdin is not None
        self._process.stdin.write(json.dumps(tokens).encode() + b"\n")
        return int(await self.line())

    async def line(self) -> str:
        assert self._process.stdout is not None
        line = await asyncio.wait_for(self._process.stdout.readline(), WAIT_S)
        assert line, self._log.read_text()[-4000:]
        return line.decode()


@asynccontextmanager
async def _engine(model: Path, folder: Path) -> AsyncIterator[Publisher]:
    log = folder / "engine.log"
    env = environment() | {"PYTHONPATH": str(ROOT)}
    env.pop("PYTHONHASHSEED", None)
    with log.open("ab") as file:
        process = await asyncio.create_subprocess_exec(
            *(sys.executable, "-m", "tests.e2e.vllm.publisher", str(model), str(folder)),
            stdin=asyncio.subprocess.PIPE,
            stdout=asyncio.subprocess.PIPE,
            stderr=file,
            env=env,
            cwd=ROOT,
        )
    publisher = Publisher(process, log)
    try:
        assert await publisher.line() == "ready\n"
        yield publisher
    finally:
        process.kill()
        await process.wait()


class Following:
    """A router's index that follows the engine."""

    def __init__(self, folder: Path) -> None:
        self.index = PrefixIndex()
        members = Members(self.index)
        self.engine: Instance = members.add("http://127.0.0.1:9")
        facts = EngineFacts(block_tokens=BLOCK, blocks=BLOCKS, events=(endpoints(folder),))
        members.learn(self.engine, facts)
        self.hasher = BlockHasher(BLOCK)
        self.metrics = RouterMetrics()
        self.events = Subscriptions(members, self.index, self.metrics, self._agrees, sync_s=0.05)

    def _agrees(self, tokens: object, block_tokens: int, key: int) -> bool:
        assert isinstance(tokens, tuple)
        return key_of(self.hasher.extend([], tokens)[0]) == key

    @property
    def follower(self) -> Follower:
        (found,) = self.events._followers.values()
        return found

    def known(self, tokens: list[int]) -> int:
        """Return how many of a prompt's tokens the engine is taken to have."""
        keys = [key_of(each) for each in self.hasher.extend([], tokens)]
        return self.index.match(keys).get(self.engine.mark, 0) * BLOCK

    async def until(self, tokens: list[int], count: int) -> None:
        async with asyncio.timeout(WAIT_S):
            while self.known(tokens) != count:  # noqa: ASYNC110
                await asyncio.sleep(0.02)


@pytest.mark.skipif(not NEW, reason="hashes differ from process to process")
async def test_the_index_follows_a_real_engine(tmp_path: Path) -> None:
    pytest.importorskip("vllm")
    pytest.importorskip("zmq")
    model = build_model(tmp_path, SHAPE)
    prompts = [prompt(seed, 8 * BLOCK + 5) for seed in range(4)]
    seen = Following(tmp_path)
    running = asyncio.create_task(seen.events.run())
    async with _engine(model, tmp_path) as engine:
        # The hashes are the engine's own, and it says what it has before it is asked again.
        assert await engine.serve(prompts[0]) == 0
        await seen.until(prompts[0], 8 * BLOCK)
        assert await engine.serve(prompts[0]) == 8 * BLOCK
        assert (seen.follower.counts.agreeing, seen.follower.counts.differing) == (1, 0)
        # What it evicts for others is seen: it is never taken to have more than it has.
        for tokens in prompts[1:]:
            await engine.serve(tokens)
            await seen.until(tokens, 8 * BLOCK)
        assert seen.known(prompts[0]) < 8 * BLOCK
        assert seen.index.held(seen.engine.mark) < BLOCKS
        expected = seen.known(prompts[0])
        assert await engine.serve(prompts[0]) == expected
        counts = seen.follower.counts
        assert (counts.gaps, counts.lost, counts.garbage, counts.restarts) == (0, 0, 0, 0)
        await seen.until(prompts[0], 8 * BLOCK)
    # Another process in its place has nothing; that is noticed with its first events.
    async with _engine(model, tmp_path) as engine:
        assert await engine.serve(prompts[3]) == 0
        # Both were known of the engine before: first that is forgotten, then one is learned anew.
        await seen.until(prompts[0], 0)
        await seen.until(prompts[3], 8 * BLOCK)
        assert seen.follower.counts.restarts == 1
        described = seen.events.describe(seen.engine)
        assert (described["followed"], described["alive"], described["restarts"]) == (True, True, 1)
    running.cancel()
    await asyncio.gather(running, return_exceptions=True)
