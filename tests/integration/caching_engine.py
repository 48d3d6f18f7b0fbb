"""An engine as far as a load generator sees it: streams, and counts the hits of a prefix cache."""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from typing import Any

from aiohttp import web

from tests.unit.router.upstream import serving_app

BLOCK = 16

Answerer = Callable[["CachingEngine", web.Request, dict[str, Any]], Any]


class CachingEngine:
    """A cache of blocks that forgets nothing, and vLLM's counters of it.

    shared: what engines of one pool have in common. trouble: by number of the request (from 0),
    what happens instead of an answer: a status, "break", "garbage", "error", "short", "silent".
    """

    def __init__(
        self,
        shared: set[int] | None = None,
        trouble: dict[int, int | str] | None = None,
        delay_s: float = 0.0,
    ) -> None:
        self.url = ""
        self.prompts: list[list[int]] = []
        self.trouble = trouble or {}
        self._own: set[int] = set()
        self._shared = shared
        self._delay_s = delay_s
        self._queries = self._own_hits = self._pool_hits = 0

    @asynccontextmanager
    async def serving(self) -> AsyncIterator[CachingEngine]:
        app = web.Application(client_max_size=1 << 30)
        app.router.add_get("/health", self._health)
        app.router.add_get("/v1/models", self._models)
        app.router.add_get("/metrics", self._metrics)
        app.router.add_post("/v1/completions", self._answer)
        async with serving_app(app) as self.url:
            yield self

    async def _health(self, request: web.Request) -> web.Response:
        return web.Response()

    async def _models(self, request: web.Request) -> web.Response:
        card = {"id": "caching", "object": "model", "max_model_len": 100_000}
        return web.json_response({"object": "list", "data": [card]})

    async def _metrics(self, request: web.Request) -> web.Response:
        facts = f'block_size="{BLOCK}",num_gpu_blocks="1000",prefix_caching_hash_algo="sha256"'
        lines = [
            f"vllm:cache_config_info{{{facts}}} 1.0",
            f'vllm:prefix_cache_queries_total{{engine="0"}} {self._queries}',
            f'vllm:prefix_cache_hits_total{{engine="0"}} {self._own_hits}',
            f'vllm:external_prefix_cache_hits_total{{engine="0"}} {self._pool_hits}',
        ]
        return web.Response(text="\n".join(lines) + "\n")

    def _look_up(self, prompt: list[int]) -> int:
        """Return how many tokens are cached here or in the pool; the prompt is cached then."""
        heads, head = [], 0
        for end in range(BLOCK, len(prompt) + 1, BLOCK):
            head = hash((head, *prompt[end - BLOCK : end]))
            heads.append(head)
        # The last token is always computed.
        could = heads[: (len(prompt) - 1) // BLOCK]
        own = _leading(could, self._own)
        both = max(own, _leading(could, self._shared or set()))
        self._own.update(heads)
        if self._shared is not None:
            self._shared.update(heads)
        self._queries += len(prompt)
        self._own_hits += own * BLOCK
        self._pool_hits += (both - own) * BLOCK
        return both * BLOCK

    async def _answer(self, request: web.Request) -> web.StreamResponse:
        body = await request.json()
        number = len(self.prompts)
        self.prompts.append(body["prompt"])
        trouble = self.trouble.get(number)
        if isinstance(trouble, int):
            return web.json_response({"error": {"message": "no"}}, status=trouble)
        if trouble == "silent":
            await asyncio.sleep(3600)
        cached = self._look_up(body["prompt"])
        await asyncio.sleep(self._delay_s)
        response = web.StreamResponse(headers={"Content-Type": "text/event-stream"})
        await response.prepare(request)
        await self._stream(response, body, cached, trouble)
        return response

    async def _stream(
        self, response: web.StreamResponse, body: dict[str, Any], cached: int, trouble: Any
    ) -> None:
        count = body["max_tokens"] - (trouble == "short")
        usage = {"prompt_tokens": len(body["prompt"]), "completion_tokens": 0}
        for place in range(count):
            if trouble == "garbage":
                await response.write(b"data: {nonsense\n\n")
            if trouble == "error":
                await _event(response, {"error": {"message": "the engine is dead"}})
            usage["completion_tokens"] = place + 1
            await _event(response, {"choices": [{"text": ""}], "usage": usage})
        details = {"prompt_tokens_details": {"cached_tokens": cached}}
        await _event(response, {"choices": [], "usage": usage | details})
        if trouble != "break":
            await response.write(b"data: [DONE]\n\n")


def _leading(heads: list[int], known: set[int]) -> int:
    count = 0
    for head in heads:
        if head not in known:
            break
        count += 1
    return count


async def _event(response: web.StreamResponse, value: dict[str, Any]) -> None:
    await response.write(f"data: {json.dumps(value)}\n\n".encode())
