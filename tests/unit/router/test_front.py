"""The front, before tiny upstreams."""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncIterator
from contextlib import AsyncExitStack, asynccontextmanager

import aiohttp
import pytest
from aiohttp import web

from moonpool.router.front import Front
from moonpool.router.options import Options
from moonpool.router.service import listen, serving
from tests.unit.router.upstream import closed_port, serving_app

WAIT_S = 10.0


class Upstream:
    """An engine that streams as told by the test."""

    def __init__(self, name: str) -> None:
        self.name = name
        self.requests: list[web.Request] = []
        self.bodies: list[bytes] = []
        self.go_on = asyncio.Event()
        self.cancelled = asyncio.Event()
        self.break_off = False

    def app(self) -> web.Application:
        app = web.Application()
        app.router.add_get("/v1/models", self.models)
        app.router.add_post("/v1/completions", self.stream)
        app.router.add_post("/v1/chat/completions", self.whole)
        return app

    async def models(self, request: web.Request) -> web.Response:
        return web.json_response({"object": "list", "data": [{"id": self.name}]})

    async def whole(self, request: web.Request) -> web.Response:
        self.requests.append(request)
        self.bodies.append(await request.read())
        status = 400 if b"bad" in self.bodies[-1] else 200
        return web.json_response({"by": self.name}, status=status, headers={"X-Extra": "1"})

    async def stream(self, request: web.Request) -> web.StreamResponse:
        self.requests.append(request)
        response = web.StreamResponse(headers={"Content-Type": "text/event-stream; charset=utf-8"})
        await response.prepare(request)
        try:
            await response.write(b"data: one\n\n")
            await self.go_on.wait()
        except asyncio.CancelledError:
            self.cancelled.set()
            raise
        if self.break_off:
            assert request.transport is not None
            request.transport.abort()
            return response
        await response.write(b"data: [DONE]\n\n")
        return response


@asynccontextmanager
async def _front(*urls: str, options: Options | None = None) -> AsyncIterator[tuple[Front, str]]:
    front = Front(urls, options=options)
    sock = listen("port", "127.0.0.1", 0)
    async with serving(front, sock):
        yield front, f"http://127.0.0.1:{sock.getsockname()[1]}"


@asynccontextmanager
async def _house(
    count: int, options: Options | None = None
) -> AsyncIterator[tuple[Front, str, list[Upstream]]]:
    upstreams = [Upstream(f"engine{place}") for place in range(count)]
    async with AsyncExitStack() as stack:
        urls = [await stack.enter_async_context(serving_app(each.app())) for each in upstreams]
        front, url = await stack.enter_async_context(_front(*urls, options=options))
        yield front, url, upstreams


async def _metrics(url: str) -> str:
    async with aiohttp.request("GET", f"{url}/metrics") as response:
        return await response.text()


async def test_requests_go_round() -> None:
    async with _house(3) as (_, url, _), aiohttp.ClientSession() as http:
        names = []
        for _ in range(6):
            async with http.post(f"{url}/v1/chat/completions", json={}) as response:
                names.append((await response.json())["by"])
    assert names == ["engine0", "engine1", "engine2"] * 2


async def test_status_headers_and_body_pass_unchanged() -> None:
    async with _house(1) as (_, url, (upstream,)), aiohttp.ClientSession() as http:
        headers = {"Authorization": "Bearer x", "Content-Type": "application/json"}
        async with http.post(
            f"{url}/v1/chat/completions?a=b", data=b'{"bad": 1}', headers=headers
        ) as response:
            assert response.status == 400
            assert response.headers["X-Extra"] == "1"
            assert response.content_type == "application/json"
    assert upstream.bodies == [b'{"bad": 1}']
    assert upstream.requests[0].headers["Authorization"] == "Bearer x"
    assert upstream.requests[0].query_string == "a=b"


async def test_models_come_from_an_engine() -> None:
    async with (
        _house(1) as (_, url, _),
        aiohttp.request("GET", f"{url}/v1/models") as response,
    ):
        assert (await response.json())["data"] == [{"id": "engine0"}]


async def test_a_stream_is_passed_on_as_it_comes() -> None:
    async with _house(1) as (_, url, (upstream,)), aiohttp.ClientSession() as http:
        async with http.post(f"{url}/v1/completions", json={"stream": True}) as response:
            assert response.headers["Content-Type"] == "text/event-stream; charset=utf-8"
            # The engine waits for the test, so this can only arrive if nothing holds it back.
            first = await asyncio.wait_for(response.content.readany(), WAIT_S)
            assert first == b"data: one\n\n"
            upstream.go_on.set()
            rest = await asyncio.wait_for(response.content.read(), WAIT_S)
        assert rest == b"data: [DONE]\n\n"


async def test_a_client_that_leaves_ends_its_request_upstream() -> None:
    async with _house(1) as (_, url, (upstream,)):
        async with aiohttp.ClientSession() as http:
            response = await http.post(f"{url}/v1/completions", json={"stream": True})
            await asyncio.wait_for(response.content.readany(), WAIT_S)
            response.close()
            await asyncio.wait_for(upstream.cancelled.wait(), WAIT_S)
        text = await _metrics(url)
    assert "moonpool_router_client_disconnects_total 1.0" in text
    assert "moonpool_router_in_flight 0.0" in text


async def test_a_dead_instance_is_passed_over() -> None:
    dead = f"http://127.0.0.1:{closed_port()}"
    alive = Upstream("alive")
    async with AsyncExitStack() as stack:
        alive_url = await stack.enter_async_context(serving_app(alive.app()))
        front, url = await stack.enter_async_context(_front(dead, alive_url))
        http = await stack.enter_async_context(aiohttp.ClientSession())
        for _ in range(4):
            async with http.post(f"{url}/v1/chat/completions", json={}) as response:
                assert (await response.json())["by"] == "alive"
        async with http.get(f"{url}/health") as response:
            assert response.status == 200
            states = {each["url"]: each["up"] for each in (await response.json())["instances"]}
        assert states == {dead: False, alive_url: True}
        # After the first failure the dead one is not asked again until its pause is over.
        assert front.instances[0].circuit.failures == 1
        text = await _metrics(url)
    assert f'moonpool_router_retries_total{{instance="{dead}"}} 1.0' in text


async def test_an_instance_that_comes_back_is_asked_again() -> None:
    now = 100.0
    front = Front(["http://a", "http://b"], clock=lambda: now)
    one, two = front.instances
    one.circuit.failure(now)
    assert front.forward.candidates("", []) == [two]
    now += 11.0
    assert front.forward.candidates("", []) == [one, two]
    two.draining = True
    assert front.forward.candidates("", []) == [one]


async def test_no_instance_at_all_is_an_error_in_openais_form() -> None:
    dead = [f"http://127.0.0.1:{closed_port()}" for _ in range(2)]
    async with _front(*dead) as (_, url), aiohttp.ClientSession() as http:
        async with http.post(f"{url}/v1/completions", json={}) as response:
            assert response.status == 503
            error = (await response.json())["error"]
        assert error["code"] == 503
        assert "2 instances" in error["message"]
        async with http.get(f"{url}/health") as response:
            assert response.status == 503


async def test_unknown_paths_and_methods_are_errors_in_openais_form() -> None:
    async with _house(1) as (_, url, _), aiohttp.ClientSession() as http:
        async with http.get(f"{url}/nowhere") as response:
            assert response.status == 404
            assert "GET /nowhere" in (await response.json())["error"]["message"]
        async with http.get(f"{url}/v1/completions") as response:
            assert response.status == 405
            assert (await response.json())["error"]["type"] == "Method Not Allowed"


async def test_a_broken_stream_ends_with_an_error_event() -> None:
    async with _house(1) as (_, url, (upstream,)), aiohttp.ClientSession() as http:
        upstream.break_off = True
        async with http.post(f"{url}/v1/completions", json={"stream": True}) as response:
            await asyncio.wait_for(response.content.readany(), WAIT_S)
            upstream.go_on.set()
            rest = await asyncio.wait_for(response.content.read(), WAIT_S)
        event = json.loads(rest.removeprefix(b"data: "))
        assert event["error"]["code"] == 502
        text = await _metrics(url)
    assert "moonpool_router_broken_streams_total" in text


async def test_an_instance_that_closes_without_an_answer_is_passed_over() -> None:
    async def hang_up(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await reader.readuntil(b"\r\n\r\n")
        writer.close()

    alive = Upstream("alive")
    async with AsyncExitStack() as stack:
        rude = await asyncio.start_server(hang_up, "127.0.0.1", 0)
        await stack.enter_async_context(rude)
        rude_url = f"http://127.0.0.1:{rude.sockets[0].getsockname()[1]}"
        alive_url = await stack.enter_async_context(serving_app(alive.app()))
        _, url = await stack.enter_async_context(_front(rude_url, alive_url))
        http = await stack.enter_async_context(aiohttp.ClientSession())
        async with http.post(f"{url}/v1/chat/completions", json={}) as response:
            assert (await response.json())["by"] == "alive"


@pytest.mark.parametrize("stream", [False, True])
async def test_an_engine_that_says_that_it_died_is_passed_over(stream: bool) -> None:
    said = "EngineCore encountered an issue. See stack trace (above) for the root cause."
    error = json.dumps({"error": {"message": said, "type": "InternalServerError", "code": 500}})

    async def dead(request: web.Request) -> web.Response:
        if stream:
            return web.Response(text=f"data: {error}\n\n", content_type="text/event-stream")
        return web.Response(status=500, text=error, content_type="application/json")

    app = web.Application()
    app.router.add_post("/v1/chat/completions", dead)
    alive = Upstream("alive")
    async with AsyncExitStack() as stack:
        dead_url = await stack.enter_async_context(serving_app(app))
        alive_url = await stack.enter_async_context(serving_app(alive.app()))
        _, url = await stack.enter_async_context(_front(dead_url, alive_url))
        http = await stack.enter_async_context(aiohttp.ClientSession())
        for _ in range(3):
            async with http.post(f"{url}/v1/chat/completions", json={"prompt": "x"}) as response:
                assert response.status == 200
                assert (await response.json())["by"] == "alive"


@pytest.mark.parametrize("chunked", [False, True])
async def test_a_body_that_is_too_large_is_refused(chunked: bool) -> None:
    async def body() -> AsyncIterator[bytes]:
        for _ in range(5):
            yield b"x" * 1000

    async with (
        _house(1, Options(body_bytes=1024)) as (_, url, (upstream,)),
        aiohttp.request(
            "POST", f"{url}/v1/completions", data=body() if chunked else b"x" * 5000
        ) as response,
    ):
        assert response.status == 413
        assert "error" in await response.json()
        assert not upstream.requests


async def test_instances_can_be_replaced() -> None:
    async with _house(2) as (front, url, _), aiohttp.ClientSession() as http:
        front.replace_instances([front.instances[1].url])
        for _ in range(2):
            async with http.post(f"{url}/v1/chat/completions", json={}) as response:
                assert (await response.json())["by"] == "engine1"
