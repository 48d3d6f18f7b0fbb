"""The closed-loop driver against a tiny endpoint that answers like vLLM."""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from typing import Any

from aiohttp import web

from moonpool.workload.replay import ReplayOptions, replay
from moonpool.workload.session import Session, Turn
from tests.unit.router.upstream import serving_app

OPTIONS = ReplayOptions(model="m", vocabulary=100, block_tokens=4, start_spacing_s=0.0)


def _event(body: object) -> bytes:
    return b"data: " + (body if isinstance(body, bytes) else json.dumps(body).encode()) + b"\n\n"


class Endpoint:
    """Answers token 10, 11, ... and remembers what it was asked."""

    def __init__(self) -> None:
        self.bodies: list[dict[str, Any]] = []
        self.running = self.most_running = 0

    async def complete(self, request: web.Request) -> web.StreamResponse:
        body = await request.json()
        self.bodies.append(body)
        self.running += 1
        self.most_running = max(self.most_running, self.running)
        response = web.StreamResponse(headers={"Content-Type": "text/event-stream"})
        await response.prepare(request)
        await asyncio.sleep(0)
        for token in range(10, 10 + body["max_tokens"]):
            top = {f"token_id:{token}": -0.5, "token_id:7": -1.5}
            logprobs = {
                "tokens": [f"token_id:{token}"],
                "token_logprobs": [-0.5],
                "top_logprobs": [top],
            }
            await response.write(_event({"choices": [{"text": "x", "logprobs": logprobs}]}))
        usage = {
            "prompt_tokens": len(body["prompt"]),
            "prompt_tokens_details": {"cached_tokens": 4},
        }
        await response.write(_event({"choices": [], "usage": usage}))
        await response.write(_event(b"[DONE]"))
        self.running -= 1
        return response


@asynccontextmanager
async def _serving(
    handler: Callable[[web.Request], Awaitable[web.StreamResponse]],
) -> AsyncIterator[str]:
    app = web.Application()
    app.router.add_post("/v1/completions", handler)
    async with serving_app(app) as url:
        yield url


def _sessions(count: int, *lengths: int) -> list[Session]:
    turns = tuple(Turn(length, 3) for length in lengths)
    return [Session(f"s{place}", "scope", 1, turns, shared_tokens=8) for place in range(count)]


async def test_turns_carry_the_conversation() -> None:
    endpoint = Endpoint()
    async with _serving(endpoint.complete) as url:
        run = await replay(url, _sessions(1, 12, 20), OPTIONS)
    first, second = (body["prompt"] for body in endpoint.bodies)
    assert len(first) == 12
    assert second[:15] == [*first, 10, 11, 12]
    assert len(second) == 20
    assert [answer.tokens for answer in run.answers] == [[10, 11, 12], [10, 11, 12]]
    choice = run.answers[0].choices[0]
    assert (choice.token, choice.rival) == (10, 7)
    assert (choice.logprob, choice.rival_logprob) == (-0.5, -1.5)
    # 15 tokens of the second prompt were seen before: three blocks of four.
    assert [answer.could_hit_tokens for answer in run.answers] == [0, 12]
    assert run.answers[0].cached_tokens == 4
    assert all(0 < answer.ttft_s <= answer.e2e_s for answer in run.answers)


async def test_a_second_run_sends_the_prompts_of_the_first() -> None:
    endpoint = Endpoint()
    forced = {("s0", 0): [1, 2, 3]}
    async with _serving(endpoint.complete) as url:
        await replay(url, _sessions(1, 12, 20), OPTIONS, forced=forced)
    assert endpoint.bodies[1]["prompt"][12:15] == [1, 2, 3]


async def test_requests_are_greedy_streamed_and_of_fixed_length() -> None:
    endpoint = Endpoint()
    async with _serving(endpoint.complete) as url:
        await replay(url, _sessions(1, 12), OPTIONS)
    (body,) = endpoint.bodies
    assert body["temperature"] == 0.0
    assert body["ignore_eos"] is True
    assert body["stream"] is True
    assert body["logprobs"] == 2
    assert body["max_tokens"] == 3


async def test_no_more_sessions_at_a_time_than_allowed() -> None:
    endpoint = Endpoint()
    options = ReplayOptions(model="m", vocabulary=100, concurrency=2, start_spacing_s=0.0)
    seen: list[str] = []
    async with _serving(endpoint.complete) as url:
        run = await replay(
            url, _sessions(6, 12, 20), options, on_answer=lambda answer: seen.append(answer.session)
        )
    assert endpoint.most_running <= 2
    assert len(run.answers) == len(seen) == 12


async def test_a_failed_turn_is_counted_and_ends_its_session() -> None:
    async def refuse(request: web.Request) -> web.StreamResponse:
        return web.json_response({"error": {"message": "no"}}, status=503)

    async with _serving(refuse) as url:
        run = await replay(url, _sessions(2, 12, 20), OPTIONS)
    assert len(run.answers) == 2
    assert all("HTTP 503" in answer.error for answer in run.answers)


async def test_an_answer_that_breaks_off_is_an_error() -> None:
    async def stop(request: web.Request) -> web.StreamResponse:
        response = web.StreamResponse(headers={"Content-Type": "text/event-stream"})
        await response.prepare(request)
        await response.write(_event({"choices": [{"text": "x", "logprobs": None}]}))
        return response

    async def report(request: web.Request) -> web.StreamResponse:
        response = web.StreamResponse(headers={"Content-Type": "text/event-stream"})
        await response.prepare(request)
        await response.write(_event({"error": {"message": "the engine is dead"}}))
        return response

    async def babble(request: web.Request) -> web.StreamResponse:
        return web.Response(body=b"data: {nonsense\n\n")

    for handler, reason in (
        (stop, "0 of 3 tokens"),
        (report, "engine is dead"),
        (babble, "malformed"),
    ):
        async with _serving(handler) as url:
            run = await replay(url, _sessions(1, 12), OPTIONS)
        assert reason in run.answers[0].error
