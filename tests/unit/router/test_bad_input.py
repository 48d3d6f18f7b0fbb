"""Clients and instances that misbehave, and operators without the key."""

from __future__ import annotations

import asyncio
import gzip
import json
from collections import Counter
from collections.abc import AsyncIterator, Callable
from contextlib import AsyncExitStack, asynccontextmanager

import aiohttp
import pytest
from aiohttp import web

from moonpool.router.admission import Limits
from moonpool.router.front import BODIES_HELD, Front
from moonpool.router.openai import BadRequest, Fields
from moonpool.router.options import Options
from moonpool.router.service import listen, serving
from tests.unit.router.upstream import serving_app

WAIT_S = 10.0


class Engine:
    """Answers at once, or when the test says so."""

    def __init__(self) -> None:
        self.bodies: list[bytes] = []
        self.headers: list[dict[str, str]] = []
        self.go_on = asyncio.Event()
        self.go_on.set()
        self.status = 200

    def app(self) -> web.Application:
        app = web.Application(client_max_size=1 << 30)
        app.router.add_post("/{any:.*}", self.answer)
        return app

    async def answer(self, request: web.Request) -> web.Response:
        self.bodies.append(await request.read())
        self.headers.append({name.lower(): value for name, value in request.headers.items()})
        await self.go_on.wait()
        return web.json_response({"id": "resp_1", "ok": True}, status=self.status)


@asynccontextmanager
async def _front(*urls: str, options: Options | None = None) -> AsyncIterator[tuple[Front, str]]:
    front = Front(urls, options=options)
    sock = listen("port", "127.0.0.1", 0)
    async with serving(front, sock):
        yield front, f"http://127.0.0.1:{sock.getsockname()[1]}"


@asynccontextmanager
async def _one(options: Options | None = None) -> AsyncIterator[tuple[Front, str, Engine]]:
    engine = Engine()
    async with (
        serving_app(engine.app()) as engine_url,
        _front(engine_url, options=options) as (front, url),
    ):
        yield front, url, engine


async def _until(happened: Callable[[], bool]) -> None:
    async with asyncio.timeout(WAIT_S):
        while not happened():  # noqa: ASYNC110
            await asyncio.sleep(0)


async def _raw(url: str, data: bytes) -> bytes:
    host, port = url.removeprefix("http://").split(":")
    reader, writer = await asyncio.open_connection(host, int(port))
    writer.write(data)
    answer = await asyncio.wait_for(reader.read(65_536), WAIT_S)
    writer.close()
    return answer


async def _post(
    url: str, data: bytes, path: str = "/v1/completions", **headers: str
) -> tuple[int, dict[str, object], dict[str, str]]:
    names = {name.replace("_", "-"): value for name, value in headers.items()}
    async with aiohttp.request("POST", url + path, data=data, headers=names) as response:
        return response.status, json.loads(await response.read()), dict(response.headers)


@pytest.mark.parametrize(
    "body",
    [b"", b"{", b"[]", b"null", b'"text"', b"\xff\xfe{}", b'{"a": ' + b"[" * 100_000, b"{'a': 1}",
     b"\x00", b'{"a":1}x', b"7"],
)  # fmt: skip
async def test_hostile_json_is_answered_here(body: bytes) -> None:
    async with _one() as (_, url, engine):
        status, answer, _ = await _post(url, body)
        assert status == 400
        assert isinstance(answer["error"], dict)
        assert answer["error"]["type"] == "Bad Request"
        assert not engine.bodies
        assert (await _post(url, b'{"model": "m"}'))[0] == 200


async def test_a_client_cannot_set_what_is_between_router_and_engines() -> None:
    async with _one() as (_, url, engine):
        hidden = b'{"n": 12345678901234567890123, "kv_transfer_p\\u0061rams": {"x": 1}, "f": 1.10}'
        assert (await _post(url, hidden))[0] == 200
        assert engine.bodies == [b'{"n":12345678901234567890123,"f":1.10}']


async def test_of_the_parameters_only_what_is_said_of_a_session_goes_on() -> None:
    async with _one() as (_, url, engine):
        said = b'{"do_remote_prefill":true,"moonpool":{"session":"talk","end_session":true,"x":1}}'
        kept = b'{"n":1,"kv_transfer_params":{"moonpool":{"session":"talk","end_session":true}}}'
        assert (await _post(url, b'{"n":1,"kv_transfer_params":%b}' % said))[0] == 200
        assert engine.bodies == [kept]
        for session in (b'""', b"7", b"null", b'"%b"' % (b"x" * 129)):
            body = b'{"n":1,"kv_transfer_params":{"moonpool":{"session":%b}}}' % session
            assert (await _post(url, body))[0] == 200
            assert engine.bodies[-1] == b'{"n":1}'


@pytest.mark.parametrize("value", [b"[]", b"0", b'""', b'{"do_remote_prefill": true}', b'"x"'])
async def test_nor_in_the_extra_arguments_of_vllm(value: bytes) -> None:
    async with _one() as (_, url, engine):
        hidden = b'{"vllm_xargs": {"a": [1.5], "kv_transfer_par\\u0061ms": %b}, "n": 1}' % value
        assert (await _post(url, hidden))[0] == 200
        assert (await _post(url, hidden.replace(b"kv_transfer", b"ec_transfer")))[0] == 200
        assert engine.bodies == [b'{"vllm_xargs":{"a":[1.5]},"n":1}'] * 2
        untouched = b'{ "vllm_xargs": {"a": 1},  "n": 1}'
        assert (await _post(url, untouched))[0] == 200
        assert engine.bodies[-1] == untouched
        nested = b"[" * 100_000 + b"]" * 100_000
        assert (await _post(url, b'{"vllm_xargs": %b}' % nested))[0] in (200, 400)


async def test_both_lengths_and_odd_heads_are_refused() -> None:
    async with _one() as (_, url, engine):
        head = b"POST /v1/completions HTTP/1.1\r\nHost: x\r\n"
        smuggled = head + (
            b"Content-Length: 4\r\nTransfer-Encoding: chunked\r\n\r\n0\r\n\r\nGET /status HTTP/1.1"
        )
        assert b" 400 " in (await _raw(url, smuggled)).splitlines()[0]
        for bad in (b"GARBAGE\r\n\r\n", head + b"Content-Length: -1\r\n\r\n", b"\x00\x01\r\n\r\n"):
            assert b" 400 " in (await _raw(url, bad)).splitlines()[0]
        assert not engine.bodies
        assert (await _post(url, b"{}"))[0] == 200


async def test_headers_of_a_connection_end_here() -> None:
    async with _one() as (_, url, engine):
        head = b"POST http://other/v1/completions?a=%2F HTTP/1.1\r\nHost: x\r\n"
        named = (
            b"Connection: close, X-Secret\r\nX-Secret: 1\r\nX-Kept: 2\r\n"
            b"Keep-Alive: 9\r\nContent-Length: 2\r\n\r\n{}"
        )
        assert b" 200 " in (await _raw(url, head + named)).splitlines()[0]
        (headers,) = engine.headers
        assert headers["x-kept"] == "2"
        assert not {"x-secret", "keep-alive", "transfer-encoding"} & set(headers)


async def test_a_client_that_never_ends_its_request() -> None:
    async with _one(Options(body_timeout_s=0.05)) as (_, url, engine):
        head = b"POST /v1/completions HTTP/1.1\r\nHost: x\r\nContent-Length: 100\r\n\r\n{"
        assert b" 408 " in (await _raw(url, head)).splitlines()[0]
        assert not engine.bodies


async def test_a_client_that_never_ends_its_head() -> None:
    async with _one(Options(body_timeout_s=0.05)) as (_, url, engine):
        for data in (b"", b"POST /v1/comp", b"POST /v1/completions HTTP/1.1\r\nHost: x\r\nA: "):
            assert b" 408 " in (await _raw(url, data)).splitlines()[0]
        assert not engine.bodies
        assert (await _post(url, b"{}"))[0] == 200


async def test_all_bodies_together_are_bounded() -> None:
    body = b'{"prompt": "' + b"x" * 900 + b'"}'
    async with _one(Options(body_bytes=1000)) as (front, url, engine):
        engine.go_on.clear()
        calls = [asyncio.create_task(_post(url, body)) for _ in range(BODIES_HELD + 5)]
        done, _ = await asyncio.wait(calls, return_when=asyncio.FIRST_COMPLETED)
        assert {call.result()[0] for call in done} == {429}
        engine.go_on.set()
        statuses = Counter([(await call)[0] for call in calls])
        assert statuses[200] == BODIES_HELD + 1
        assert front._held == front._open == 0


async def _speaking(answer: bytes) -> asyncio.Server:
    async def speak(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await reader.readuntil(b"\r\n\r\n")
        writer.write(answer)
        if answer:
            writer.close()
        else:
            await reader.read()
            writer.close()

    return await asyncio.start_server(speak, "127.0.0.1", 0)


@pytest.mark.parametrize(
    ("answer", "status"),
    [
        (b"garbage\r\n\r\n", 502),
        (b"HTTP/1.1 200 OK\r\nContent-Length: x\r\n\r\n", 502),
        (b"HTTP/1.1 200 OK\r\n" + b"X: " + b"y" * 200_000 + b"\r\n\r\n", 502),
        (b"HTTP/1.1 999999 OK\r\n\r\n", 502),
        (b"", 504),
    ],
)
async def test_instances_that_answer_garbage_or_nothing(answer: bytes, status: int) -> None:
    async with AsyncExitStack() as stack:
        server = await stack.enter_async_context(await _speaking(answer))
        bad = f"http://127.0.0.1:{server.sockets[0].getsockname()[1]}"
        options = Options(idle_timeout_s=0.1)
        _, url = await stack.enter_async_context(_front(bad, options=options))
        found, body, _ = await _post(url, b"{}")
        assert found == status
        assert isinstance(body["error"], dict)
        assert body["error"]["code"] == status


async def test_a_request_that_kills_engines_does_not_kill_them_all() -> None:
    asked = []

    async def hang_up(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        asked.append(await reader.readuntil(b"\r\n\r\n"))
        writer.close()

    async with AsyncExitStack() as stack:
        urls = []
        for _ in range(5):
            server = await stack.enter_async_context(
                await asyncio.start_server(hang_up, "127.0.0.1", 0)
            )
            urls.append(f"http://127.0.0.1:{server.sockets[0].getsockname()[1]}")
        _, url = await stack.enter_async_context(_front(*urls))
        assert (await _post(url, b"{}"))[0] == 502
        assert len(asked) == 2


async def test_a_busy_instance_is_left_for_another_and_its_word_is_passed_on_at_last() -> None:
    busy, free = Engine(), Engine()
    busy.status = 503
    async with AsyncExitStack() as stack:
        busy_url = await stack.enter_async_context(serving_app(busy.app()))
        free_url = await stack.enter_async_context(serving_app(free.app()))
        _, url = await stack.enter_async_context(_front(busy_url, free_url))
        for _ in range(4):
            assert (await _post(url, b"{}"))[0] == 200
        free.status = 503
        status, body, _ = await _post(url, b"{}")
        assert (status, body["ok"]) == (503, True)


async def test_overload_is_429_with_a_time_to_come_back() -> None:
    options = Options(limits=Limits(in_flight=1, queue=1))
    async with _one(options) as (front, url, engine):
        engine.go_on.clear()
        calls = [asyncio.create_task(_post(url, b"{}")) for _ in range(2)]
        await _until(lambda: front.admission.waiting == 1)
        status, body, headers = await _post(url, b"{}")
        assert status == 429
        assert int(headers["Retry-After"]) >= 1
        assert isinstance(body["error"], dict)
        assert body["error"]["type"] == "Too Many Requests"
        # A more urgent one takes the place of the one that waits.
        urgent = asyncio.create_task(_post(url, b"{}", X_Moonpool_Priority="-1"))
        done, _ = await asyncio.wait(calls, return_when=asyncio.FIRST_COMPLETED)
        assert [call.result()[0] for call in done] == [429]
        engine.go_on.set()
        assert (await urgent)[0] == 200
        assert sorted([(await call)[0] for call in calls]) == [200, 429]
        assert front.admission.in_flight == 0


async def test_a_turn_that_does_not_come_is_given_up() -> None:
    options = Options(limits=Limits(in_flight=1, queue_s=0.02))
    async with _one(options) as (front, url, engine):
        engine.go_on.clear()
        first = asyncio.create_task(_post(url, b"{}"))
        await _until(lambda: bool(engine.bodies))
        assert (await _post(url, b"{}"))[0] == 429
        engine.go_on.set()
        assert (await first)[0] == 200
        assert front.admission.waiting == 0


@pytest.mark.parametrize("value", ["x", "101", "-101", "1.5", ""])
async def test_a_priority_that_is_none_is_named(value: str) -> None:
    async with _one() as (_, url, engine):
        status, body, _ = await _post(url, b"{}", X_Moonpool_Priority=value)
        assert status == 400
        assert "X-Moonpool-Priority" in str(body["error"])
        assert not engine.bodies


async def test_other_options_lose_no_request() -> None:
    async with _one(Options(limits=Limits(in_flight=1))) as (front, url, engine):
        engine.go_on.clear()
        calls = [asyncio.create_task(_post(url, b"{}")) for _ in range(3)]
        await _until(lambda: front.admission.waiting == 2)
        front.reconfigure(Options(limits=Limits(in_flight=2, queue=0)))
        front.replace_instances([])
        engine.go_on.set()
        statuses = sorted([(await call)[0] for call in calls])
        # The first was sent and ends; the others find that all instances have gone.
        assert statuses == [200, 503, 503]


async def test_a_stored_response_is_asked_for_where_it_was_made() -> None:
    one, two = Engine(), Engine()
    async with AsyncExitStack() as stack:
        urls = [await stack.enter_async_context(serving_app(each.app())) for each in (one, two)]
        _, url = await stack.enter_async_context(_front(*urls))
        assert (await _post(url, b"{}", "/v1/responses"))[0] == 200
        for _ in range(3):
            await _post(url, b'{"previous_response_id": "resp_1"}', "/v1/responses")
            await _post(url, b"{}", "/v1/responses/resp_1/cancel")
        assert (len(one.bodies), len(two.bodies)) == (7, 0)


async def test_instances_change_only_for_whoever_has_the_key() -> None:
    async with _one(Options(admin_key="secret")) as (front, url, _):
        old = front.instances[0].url
        body = b'{"url": "http://127.0.0.1:9"}'
        assert (await _post(url, body, "/instances/add"))[0] == 401
        assert (await _post(url, body, "/instances/add", X_API_Key="wrong"))[0] == 401
        assert len(front.instances) == 1
        key = {"Authorization": "Bearer secret"}
        status, answer, _ = await _post(url, body, "/instances/add", **key)
        assert (status, answer["instances"]) == (200, 2)
        other = b'{"instance": "127.0.0.1:9"}'
        assert (await _post(url, other, "/instances/drain", X_API_Key="secret"))[0] == 200
        assert front.instances[1].draining
        for _ in range(3):
            assert (await _post(url, b"{}"))[0] == 200
        assert (await _post(url, other, "/instances/remove", **key))[0] == 200
        assert (await _post(url, other, "/instances/remove", **key))[0] == 404
        for wrong in (b"", b"[]", b'{"url": 3}', b'{"url": "x y"}', b'{"type": "decode"}'):
            assert (await _post(url, wrong, "/instances/add", **key))[0] == 400
        assert [each.url for each in front.instances] == [old]


async def test_the_router_is_no_instance_of_its_own() -> None:
    """Not under its own names, and under others not for long."""
    async with _one(Options(admin_key="secret")) as (front, url, engine):
        port = url.rpartition(":")[2]
        for host in ("127.0.0.1", "localhost", "127.1.2.3", "[::1]", "0.0.0.0"):
            body = json.dumps({"url": f"http://{host}:{port}"}).encode()
            status, answer, _ = await _post(url, body, "/instances/add", X_API_Key="secret")
            assert status == 400
            assert "the router itself" in str(answer["error"])
        front.members.own = "", 0  # as if it were called by another name
        front.members.add(f"http://localhost:{port}")
        for _ in range(4):
            assert (await _post(url, b"{}"))[0] == 200
        assert len(engine.bodies) == 4
        await front.health.check_all(5.0)
        await front.health.check_all(5.0)
        assert not front.instances[1].healthy


async def test_a_body_that_came_compressed_goes_on_plain() -> None:
    async with _one() as (_, url, engine):
        packed = gzip.compress(b'{"a": 1}')
        status, _, _ = await _post(url, packed, Content_Encoding="gzip")
        assert status == 200
    assert engine.bodies == [b'{"a": 1}']
    assert "content-encoding" not in engine.headers[-1]


async def test_without_a_key_nothing_changes() -> None:
    async with _one() as (front, url, _):
        status, _, _ = await _post(url, b'{"url": "http://a"}', "/instances/add", X_API_Key="")
        assert status == 403
        assert len(front.instances) == 1


async def test_status_shows_each_instance() -> None:
    async with _one() as (_, url, _):
        await _post(url, b"{}")
        async with aiohttp.request("GET", f"{url}/status") as response:
            status = await response.json()
        assert status["policy"] == "round_robin"
        (instance,) = status["instances"]
        assert (instance["up"], instance["circuit"], instance["in_flight"]) == (True, "closed", 0)


def test_fields_are_read_leniently() -> None:
    fields = Fields(
        b'{"stream": "yes", "model": 7, "x": null, "deep": ' + b"[" * 9 + b"]" * 9 + b"}"
    )
    assert fields.is_true("stream")
    assert fields.text("model") == ""
    assert fields.raw("x") == b""
    with pytest.raises(BadRequest):
        Fields(b'{"a": 1,}')
