"""``moonpool router`` with engines of both roles, as a process."""

from __future__ import annotations

import asyncio
import json
import os
import signal
import sys
from contextlib import AsyncExitStack
from pathlib import Path
from typing import Any

import aiohttp
import pytest

from moonpool.demo.place import free_ports
from tests.integration.processes import freeze
from tests.integration.test_router_process import WAIT_S, Router, router_process
from tests.unit.router.pd_engines import Engine
from tests.unit.router.upstream import serving_app

BODY = {"messages": [{"role": "user", "content": "a long prompt " * 20}]}
HEADERS = {"X-API-Key": "secret"}
FLAGS = ("--pd", "pool", "--bypass-tokens", "160", "--policy", "round_robin")


class House:
    """Engines by name, and the router before them."""

    def __init__(self, stack: AsyncExitStack, http: aiohttp.ClientSession) -> None:
        self.stack, self.http = stack, http
        self.engines: dict[str, Engine] = {}
        self.router: Router

    async def engine(self, name: str) -> str:
        made = self.engines[name] = Engine(name)
        made.url = await self.stack.enter_async_context(serving_app(made.app()))
        return made.url

    async def route(self, *arguments: str) -> None:
        self.router = await self.stack.enter_async_context(router_process(*arguments))

    async def ask(self) -> str:
        async with self.http.post(f"{self.router.url}/v1/chat/completions", json=BODY) as response:
            assert response.status == 200, await response.text()
            return str((await response.json())["by"])

    async def status(self) -> dict[str, Any]:
        async with self.http.get(f"{self.router.url}/status") as response:
            found: dict[str, Any] = await response.json()
        return found

    async def change(self, verb: str, body: dict[str, Any], expected: int = 200) -> None:
        url = f"{self.router.url}/instances/{verb}"
        async with self.http.post(url, json=body, headers=HEADERS) as response:
            assert response.status == expected, await response.text()


async def _house(stack: AsyncExitStack) -> House:
    return House(stack, await stack.enter_async_context(aiohttp.ClientSession()))


async def test_the_command_of_other_proxies(tmp_path: Path) -> None:
    async with AsyncExitStack() as stack:
        house = await _house(stack)
        p, q, d = [await house.engine(name) for name in ("p", "q", "d")]
        port = p.rpartition(":")[2]
        await house.route("--prefill", p, port, "--decode", d, "--bypass-tokens", "160")
        assert await house.ask() == "d"
        (told,) = [body["kv_transfer_params"] for body in house.engines["d"].bodies]
        assert told["remote_bootstrap_addr"] == p
        status = await house.status()
        address = p.removeprefix("http://")
        assert (status["prefill_nodes"], status["decode_node_count"]) == ([address], 1)
        added = {"type": "prefill", "instance": q.removeprefix("http://"), "bootstrap": int(port)}
        await house.change("add", added)
        (shown,) = [each for each in (await house.status())["instances"] if each["url"] == q]
        assert (shown["role"], shown["bootstrap"]) == ("prefill", p)
        await house.change("add", {**added, "type": "best"}, 400)
        # Whoever does not say leaves it as it is.
        await house.change("add", {"url": q})
        assert [each["role"] for each in (await house.status())["instances"]] == [
            *("prefill", "decode", "prefill")
        ]
        await house.change("drain", {"url": p})
        await house.change("drain", {"url": q})
        assert await house.ask() == "d"
        assert "kv_transfer_params" not in house.engines["d"].bodies[-1]


async def test_a_reload_changes_roles_and_loses_no_request(tmp_path: Path) -> None:
    async with AsyncExitStack() as stack:
        house = await _house(stack)
        one, two, three = [await house.engine(name) for name in ("one", "two", "three")]
        config = tmp_path / "router.json"
        config.write_text(json.dumps({"prefill": [one], "decode": [two]}))
        await house.route("--config", str(config), *FLAGS)
        first, second = house.engines["one"], house.engines["two"]
        first.go_on.clear()
        second.go_on.clear()
        asked = asyncio.create_task(house.ask())
        await asyncio.wait_for(first.begun.wait(), WAIT_S)
        await asyncio.wait_for(second.begun.wait(), WAIT_S)
        config.write_text(json.dumps({"prefill": [three], "decode": [one]}))
        house.router.process.send_signal(signal.SIGHUP)
        await house.router.said("configuration read again")
        first.go_on.set()
        assert await house.ask() == "one"
        assert "kv_transfer_params" in first.bodies[-1]
        assert len(house.engines["three"].bodies) == 1
        second.go_on.set()
        assert await asyncio.wait_for(asked, WAIT_S) == "two"
        roles = {each["url"]: each["role"] for each in (await house.status())["instances"]}
        assert roles == {one: "decode", three: "prefill"}


async def test_a_file_tells_roles(tmp_path: Path) -> None:
    async with AsyncExitStack() as stack:
        house = await _house(stack)
        p, d = await house.engine("p"), await house.engine("d")
        file = tmp_path / "engines.txt"
        file.write_text(f"{p} prefill\n{d} decode\n")
        await house.route("--discovery", f"file:{file}", *FLAGS)
        async with asyncio.timeout(WAIT_S):
            while len((await house.status())["instances"]) < 2:  # noqa: ASYNC110
                await asyncio.sleep(0.05)
        assert await house.ask() == "d"
        assert len(house.engines["p"].bodies) == 1


ENGINE = """
import asyncio, sys
from aiohttp import web
from tests.unit.router.pd_engines import Engine
web.run_app(Engine(sys.argv[1]).app(), host="127.0.0.1", port=int(sys.argv[2]), print=None)
"""


async def _engine_process(house: House, name: str, port: int) -> asyncio.subprocess.Process:
    process = await asyncio.create_subprocess_exec(sys.executable, "-c", ENGINE, name, str(port))

    async def end() -> None:
        if process.returncode is None:
            process.kill()
        await process.wait()

    house.stack.push_async_callback(end)
    async with asyncio.timeout(WAIT_S):
        while True:
            try:
                async with house.http.get(f"http://127.0.0.1:{port}/query"):
                    return process
            except aiohttp.ClientError:
                await asyncio.sleep(0.05)


async def test_a_killed_engine_is_named_when_it_goes_and_when_it_is_back() -> None:
    async with AsyncExitStack() as stack:
        house = await _house(stack)
        d = await house.engine("d")
        house.engines["d"].waits = False
        (port,) = free_ports(1)
        process = await _engine_process(house, "p", port)
        p = f"http://127.0.0.1:{port}"
        await house.route("--prefill", p, "--decode", d, *FLAGS, "--health-s", "0.1")
        assert await house.ask() == "d"
        os.kill(process.pid, signal.SIGKILL)
        await process.wait()
        assert {await house.ask() for _ in range(5)} == {"d"}
        await house.router.said(f"{p} .prefill. is gone: ")
        await _engine_process(house, "p", port)
        await house.router.said(f"{p} .prefill. is back")
        seen = len(house.engines["d"].bodies)
        assert await house.ask() == "d"
        assert "kv_transfer_params" in house.engines["d"].bodies[seen]
        assert sum("is gone" in line for line in house.router.lines) == 1


@pytest.mark.parametrize("role", ["prefill", "decode"])
async def test_a_frozen_engine_holds_nobody_up(role: str) -> None:
    async with AsyncExitStack() as stack:
        house = await _house(stack)
        await house.engine("p")
        d = await house.engine("d")
        (port,) = free_ports(1)
        process = await _engine_process(house, "frozen", port)
        frozen = f"http://127.0.0.1:{port}"
        flags = ["--decode", frozen, "--prefill", house.engines["p"].url]
        if role == "prefill":
            flags = ["--prefill", frozen]
        freeze(process.pid)
        # Only its health checks tell: connections to it are taken by the kernel.
        await house.route(*flags, "--decode", d, *FLAGS, "--health-s", "0.2")
        assert {await house.ask() for _ in range(3)} == {"d"}
        await house.router.said(f"{frozen} .{role}. is gone: ")
        os.kill(process.pid, signal.SIGCONT)
        await house.router.said(f"{frozen} .{role}. is back")
