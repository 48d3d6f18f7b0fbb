"""An engine as far as benchmarks go: answers with tokens that follow from the prompt alone."""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any

from aiohttp import web

from tests.unit.router.upstream import serving_app

BLOCK = 32


class StandIn:
    """``lies``: it answers other tokens than the others. ``seen``: prompts that it was sent."""

    def __init__(self, *, lies: bool = False, slow: bool = False) -> None:
        self.lies, self.slow = lies, slow
        self.bodies: list[dict[str, Any]] = []
        self.url = ""

    @asynccontextmanager
    async def serving(self) -> AsyncIterator[StandIn]:
        app = web.Application(client_max_size=1 << 30)
        app.router.add_get("/health", self._health)
        app.router.add_get("/v1/models", self._models)
        app.router.add_get("/metrics", self._metrics)
        app.router.add_post("/v1/completions", self._answer)
        async with serving_app(app) as self.url:
            yield self

    async def _health(self, request: web.Request) -> web.Response:
        return web.Response()

    async def _metrics(self, request: web.Request) -> web.Response:
        labels = f'block_size="{BLOCK}",num_gpu_blocks="1000",prefix_caching_hash_algo="sha256"'
        return web.Response(text=f"vllm:cache_config_info{{{labels}}} 1.0\n")

    async def _models(self, request: web.Request) -> web.Response:
        return web.json_response({"object": "list", "data": [{"id": "stand-in"}]})

    async def _answer(self, request: web.Request) -> web.StreamResponse:
        body = await request.json()
        self.bodies.append(body)
        if self.slow:
            await asyncio.sleep(3600)
        prompt, count = body["prompt"], body["max_tokens"]
        cached = sum(len(each["prompt"]) < len(prompt) for each in self.bodies) * BLOCK
        usage = {
            "prompt_tokens": len(prompt),
            "prompt_tokens_details": {"cached_tokens": min(cached, len(prompt) - 1)},
        }
        if not body.get("stream"):
            return web.json_response({"choices": [], "usage": usage, "kv_transfer_params": {}})
        response = web.StreamResponse(headers={"Content-Type": "text/event-stream"})
        await response.prepare(request)
        for place in range(count):
            token = (sum(prompt) + place) % 200 + self.lies
            await _event(response, {"choices": [{"logprobs": _logprobs(token)}]})
        await _event(response, {"choices": [], "usage": usage})
        await response.write(b"data: [DONE]\n\n")
        return response


def _logprobs(token: int) -> dict[str, Any]:
    best, other = f"token_id:{token}", f"token_id:{token + 7}"
    return {"tokens": [best], "token_logprobs": [-0.1], "top_logprobs": [{best: -0.1, other: -3.0}]}


async def _event(response: web.StreamResponse, value: dict[str, Any]) -> None:
    await response.write(f"data: {json.dumps(value)}\n\n".encode())
