"""The prefix policy in the front: engines' facts, tokens, events and answers together."""

from __future__ import annotations

import asyncio
from collections import Counter
from collections.abc import AsyncIterator
from contextlib import AsyncExitStack, asynccontextmanager
from typing import Any

import aiohttp
import pytest
from aiohttp import web

from moonpool.router.blocks import BlockPrompts
from moonpool.router.front import Front
from moonpool.router.index import PrefixIndex
from moonpool.router.policy import create
from moonpool.router.service import listen, serving
from tests.unit.router.upstream import closed_port, serving_app

BLOCK = 16


class Engine:
    """Answers completions of token ids with usage, as vLLM does."""

    def __init__(self, name: str) -> None:
        self.name = name
        self.well = True
        self.begun, self.go_on = asyncio.Event(), asyncio.Event()
        self.go_on.set()

    def app(self) -> web.Application:
        app = web.Application()
        app.router.add_get("/health", self.health)
        app.router.add_get("/metrics", self.metrics)
        app.router.add_get("/v1/models", self.models)
        app.router.add_post("/v1/completions", self.answer)
        return app

    async def health(self, request: web.Request) -> web.Response:
        return web.Response(status=200 if self.well else 503)

    async def models(self, request: web.Request) -> web.Response:
        cards = [{"id": "m", "root": "/none"}, {"id": self.name, "root": "/l", "parent": "m"}]
        return web.json_response({"data": cards})

    async def metrics(self, request: web.Request) -> web.Response:
        return web.Response(text=f'vllm:cache_config_info{{block_size="{BLOCK}"}} 1.0\n')

    async def answer(self, request: web.Request) -> web.StreamResponse:
        body = await request.json()
        self.begun.set()
        await self.go_on.wait()
        response = web.StreamResponse(headers={"Content-Type": "text/event-stream"})
        await response.prepare(request)
        await response.write(f'data: {{"by": "{self.name}"}}\n\n'.encode())
        count = len(body["prompt"])
        details = '"prompt_tokens_details":{"cached_tokens":16}'
        usage = f'data: {{"usage":{{"prompt_tokens":{count},{details}}}}}\n\n'
        await response.write(usage.encode() + b"data: [DONE]\n\n")
        return response


@asynccontextmanager
async def _house(
    engines: list[Engine], policy: str = "prefix", *more: str
) -> AsyncIterator[tuple[Front, str]]:
    async with AsyncExitStack() as stack:
        urls = [await stack.enter_async_context(serving_app(each.app())) for each in engines]
        index = PrefixIndex()
        chosen = create(policy, index)
        # Time stands still: what is learned must not depend on this machine.
        front = Front([*urls, *more], chosen, index=index, clock=lambda: 1.0)
        tokens = BlockPrompts(front.members)
        front.knowledge.tokens = tokens
        sock = listen("port", "127.0.0.1", 0)
        await stack.enter_async_context(serving(front, sock))
        await front.health.check_all(5.0)
        await tokens.refresh()
        yield front, f"http://127.0.0.1:{sock.getsockname()[1]}"


async def _by(http: aiohttp.ClientSession, url: str, ids: list[int], **more: Any) -> str:
    body = {"prompt": ids, "stream": True, "model": "m", **more}
    async with http.post(f"{url}/v1/completions", json=body) as response:
        assert response.status == 200
        text = await response.text()
    return text.split('"')[3]


async def test_growing_prompts_stay_and_others_spread() -> None:
    engines = [Engine(f"e{number}") for number in range(3)]
    async with _house(engines) as (front, url), aiohttp.ClientSession() as http:
        homes = {}
        for chat in range(6):
            homes[chat] = await _by(http, url, [chat * 1000 + n for n in range(160)])
        assert set(Counter(homes.values()).values()) == {2}
        for chat, home in homes.items():
            for turn in range(1, 4):
                ids = [chat * 1000 + n for n in range(160 + turn * 40)]
                assert await _by(http, url, ids) == home
        text = front.metrics.text().decode()
        assert 'moonpool_router_prompts_total{kind="tokens"} 24.0' in text
        assert "moonpool_router_cached_tokens_total 384.0" in text
        assert "moonpool_router_tokenizer_mismatches_total 0.0" in text
        assert all(each.model.samples == 8 for each in front.instances)
        assert front.members.fleet.samples == 24
        assert all(each.pending_tokens == each.in_flight == 0 for each in front.instances)


async def test_an_adapter_goes_where_it_is() -> None:
    engines = [Engine("one"), Engine("two")]
    async with _house(engines) as (_, url), aiohttp.ClientSession() as http:
        for _ in range(3):
            assert await _by(http, url, [1] * 32, model="two") == "two"
        # A model that nobody has is for an engine to refuse.
        assert await _by(http, url, [1] * 32, model="none") in ("one", "two")


async def test_sessions_stay_together() -> None:
    engines = [Engine(f"e{number}") for number in range(3)]
    async with _house(engines, "session") as (_, url), aiohttp.ClientSession() as http:
        for session in range(6):
            homes = {await _by(http, url, [turn], user=str(session)) for turn in range(4)}
            assert len(homes) == 1


async def test_an_engine_that_is_not_well_gets_nothing_until_it_is() -> None:
    engines = [Engine("one"), Engine("two")]
    dead = f"http://127.0.0.1:{closed_port()}"
    async with (
        _house(engines, "round_robin", dead) as (front, url),
        aiohttp.ClientSession() as http,
    ):
        await front.health.check_all(5.0)
        engines[0].well = False
        assert {await _by(http, url, [1]) for _ in range(4)} == {"one", "two"}
        # One lost check is none; the second says that it is down.
        for expected in ({"one", "two"}, {"two"}):
            await front.health.check_all(5.0)
            assert {await _by(http, url, [1]) for _ in range(4)} == expected
        engines[0].well = True
        await front.health.check_all(5.0)
        assert {await _by(http, url, [1]) for _ in range(4)} == {"one", "two"}
        assert front.members.find(dead) is not None
        assert not front.instances[2].healthy


async def test_two_that_ask_the_same_at_once_wait_for_one_prefill() -> None:
    engines = [Engine("one"), Engine("two")]
    async with _house(engines) as (_, url), aiohttp.ClientSession() as http:
        homes = await asyncio.gather(*(_by(http, url, list(range(64))) for _ in range(4)))
        assert len(set(homes)) <= 2


BODIES: list[dict[str, Any]] = [
    {"prompt": "x"}, {"prompt": {}}, {"prompt": None}, {}, {"prompt": [[1]]},
    {"prompt": "\ud800"}, {"model": 3, "prompt": ["a", 1]},
]  # fmt: skip


@pytest.mark.parametrize("policy", ["prefix", "session", "least_loaded", "round_robin"])
async def test_every_policy_answers_whatever_is_asked(policy: str) -> None:
    async with _house([Engine("one")], policy) as (_, url), aiohttp.ClientSession() as http:
        for body in BODIES:
            async with http.post(f"{url}/v1/completions", json=body) as response:
                assert response.status in (200, 400, 500)


async def test_a_whole_answer_s_prompt_is_taken_to_be_done_as_predicted() -> None:
    engine = Engine("one")
    engine.go_on.clear()
    async with _house([engine]) as (front, url), aiohttp.ClientSession() as http:
        body = {"prompt": list(range(64)), "model": "m"}
        asked = asyncio.create_task(http.post(f"{url}/v1/completions", json=body))
        await engine.begun.wait()
        (instance,) = front.instances
        async with asyncio.timeout(10):
            while instance.pending_tokens:  # noqa: ASYNC110
                await asyncio.sleep(0.002)
        assert instance.in_flight == 1
        engine.go_on.set()
        async with await asked as response:
            await response.read()
        # Nothing is learned from it: its first byte was not its first token.
        assert instance.model.samples == 0
