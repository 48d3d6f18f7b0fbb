"""``moonpool router`` as a process, before small engines."""

from __future__ import annotations

import asyncio
import json
import re
import signal
import sys
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import AsyncExitStack, asynccontextmanager
from pathlib import Path
from typing import Any

import aiohttp
from aiohttp import web

from tests.integration.processes import environment
from tests.unit.router.upstream import serving_app

WAIT_S = 20.0
CHUNKS = 3


class Engine:
    """Streams in steps that the test allows, and says what vLLM says of itself."""

    def __init__(self, name: str) -> None:
        self.name = name
        self.steps = asyncio.Semaphore(0)
        self.begun = asyncio.Event()
        self.asked = 0

    def app(self) -> web.Application:
        app = web.Application()
        app.router.add_get("/health", self.ok)
        app.router.add_get("/metrics", self.metrics)
        app.router.add_get("/v1/models", self.models)
        app.router.add_post("/v1/chat/completions", self.whole)
        app.router.add_post("/v1/completions", self.stream)
        return app

    async def ok(self, request: web.Request) -> web.Response:
        return web.Response()

    async def models(self, request: web.Request) -> web.Response:
        return web.json_response({"object": "list", "data": [{"id": "m", "root": "/none"}]})

    async def metrics(self, request: web.Request) -> web.Response:
        info = 'vllm:cache_config_info{block_size="16",num_gpu_blocks="100"} 1.0\n'
        return web.Response(text=info)

    async def whole(self, request: web.Request) -> web.Response:
        self.asked += 1
        await request.read()
        return web.json_response({"by": self.name})

    async def stream(self, request: web.Request) -> web.StreamResponse:
        await request.read()
        response = web.StreamResponse(headers={"Content-Type": "text/event-stream"})
        await response.prepare(request)
        for number in range(CHUNKS):
            await response.write(f"data: {self.name} {number}\n\n".encode())
            self.begun.set()
            await self.steps.acquire()
        await response.write(b"data: [DONE]\n\n")
        return response


class Router:
    """The process and what it logs."""

    def __init__(self, process: asyncio.subprocess.Process) -> None:
        self.process = process
        self.url = ""
        self.lines: list[str] = []

    async def said(self, pattern: str) -> re.Match[str]:
        """Wait for a line of the log."""
        assert self.process.stderr is not None
        async with asyncio.timeout(WAIT_S):
            while line := await self.process.stderr.readline():
                self.lines.append(line.decode())
                if found := re.search(pattern, self.lines[-1]):
                    return found
        raise AssertionError("".join(self.lines))


@asynccontextmanager
async def router_process(*arguments: str) -> AsyncIterator[Router]:
    process = await asyncio.create_subprocess_exec(
        *(sys.executable, "-m", "moonpool.cli", "router", "--port", "0", *arguments),
        stderr=asyncio.subprocess.PIPE,
        env=environment() | {"ADMIN_API_KEY": "secret"},
    )
    router = Router(process)
    try:
        found = await router.said(r"listens on (\S+):(\d+)")
        router.url = f"http://{found[1]}:{found[2]}"
        yield router
    finally:
        if process.returncode is None:
            process.terminate()
        async with asyncio.timeout(WAIT_S):
            await process.communicate()


async def _by(http: aiohttp.ClientSession, url: str) -> str:
    body = {"messages": [{"role": "user", "content": "hello"}]}
    async with http.post(f"{url}/v1/chat/completions", json=body) as response:
        assert response.status == 200, await response.text()
        return str((await response.json())["by"])


async def _status(http: aiohttp.ClientSession, url: str) -> dict[str, Any]:
    async with http.get(f"{url}/status") as response:
        found: dict[str, Any] = await response.json()
    return found


async def _all_shown(http: aiohttp.ClientSession, url: str, count: int, key: str) -> bool:
    instances = (await _status(http, url))["instances"]
    return len(instances) == count and all(each[key] for each in instances)


async def _until(happened: Callable[[], Awaitable[bool]]) -> None:
    async with asyncio.timeout(WAIT_S):
        while not await happened():  # noqa: ASYNC110
            await asyncio.sleep(0.05)


async def test_a_reload_loses_no_request(tmp_path: Path) -> None:
    one, two = Engine("one"), Engine("two")
    config = tmp_path / "router.json"
    async with AsyncExitStack() as stack:
        urls = [await stack.enter_async_context(serving_app(each.app())) for each in (one, two)]
        config.write_text(json.dumps({"backends": urls[:1]}))
        router = await stack.enter_async_context(router_process("--config", str(config)))
        http = await stack.enter_async_context(aiohttp.ClientSession())
        answer = await http.post(f"{router.url}/v1/completions", json={"stream": True})
        await asyncio.wait_for(one.begun.wait(), WAIT_S)
        config.write_text(json.dumps({"backends": urls[1:], "policy": "least_loaded"}))
        router.process.send_signal(signal.SIGHUP)
        await router.said("configuration read again")
        assert {await _by(http, router.url) for _ in range(4)} == {"two"}
        for _ in range(CHUNKS):
            one.steps.release()
        text = await asyncio.wait_for(answer.text(), WAIT_S)
        assert text == "".join(f"data: one {n}\n\n" for n in range(CHUNKS)) + "data: [DONE]\n\n"
        status = await _status(http, router.url)
        assert status["policy"] == "least_loaded"
        assert [each["url"] for each in status["instances"]] == urls[1:]
        # A configuration that is wrong changes nothing; the file is also read when it changes.
        config.write_text(json.dumps({"backends": urls, "polcy": "session"}))
        await router.said("configuration not taken: polcy: no such key")
        assert await _by(http, router.url) == "two"
        router.process.terminate()
        assert await asyncio.wait_for(router.process.wait(), WAIT_S) == 0


async def test_instances_join_from_a_file_and_by_hand(tmp_path: Path) -> None:
    one, two = Engine("one"), Engine("two")
    file = tmp_path / "engines.txt"
    file.write_text("# none yet\n")
    async with AsyncExitStack() as stack:
        urls = [await stack.enter_async_context(serving_app(each.app())) for each in (one, two)]
        flags = ("--discovery", f"file:{file}", "--policy", "round_robin", "--health-s", "0.1")
        router = await stack.enter_async_context(router_process(*flags))
        http = await stack.enter_async_context(aiohttp.ClientSession())
        async with http.get(f"{router.url}/health") as response:
            assert response.status == 503
        file.write_text(urls[0])
        headers = {"Authorization": "Bearer secret"}
        await _until(lambda: _all_shown(http, router.url, 1, "url"))
        async with http.post(
            f"{router.url}/instances/add", json={"url": urls[1]}, headers=headers
        ) as response:
            assert response.status == 200
        assert {await _by(http, router.url) for _ in range(4)} == {"one", "two"}
        await _until(lambda: _all_shown(http, router.url, 2, "kv_blocks"))
        drain = f"{router.url}/instances/drain"
        async with http.post(drain, json={"url": urls[0]}, headers=headers) as response:
            assert (await response.json())["instance"]["state"] == "draining"
        assert {await _by(http, router.url) for _ in range(4)} == {"two"}
