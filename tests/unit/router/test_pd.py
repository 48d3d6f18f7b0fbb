"""Split requests in the front, before engines that do as they are told."""

from __future__ import annotations

import asyncio
import json
import random
from typing import Any

import aiohttp
import pytest
from aiohttp import web

from moonpool.router.instance import Instance
from moonpool.router.members import named
from moonpool.router.pd_bootstrap import FAILED_S, BootstrapError, Bootstraps
from tests.unit.router.pd_engines import DETAILS, WAIT_S, House, house
from tests.unit.router.upstream import serving_app

CHAT = "/v1/chat/completions"
TEXT = "a prompt that is too long to be computed by the decoding engine " * 4
LONG: dict[str, Any] = {"messages": [{"role": "user", "content": TEXT}], "max_tokens": 9}


async def _ask(at: House, path: str = CHAT, **more: Any) -> tuple[int, dict[str, Any]]:
    body = {**(LONG if path == CHAT else {"prompt": TEXT}), **more}
    async with (
        aiohttp.ClientSession() as http,
        asyncio.timeout(WAIT_S),
        http.post(at.url + path, json=body) as response,
    ):
        return response.status, await response.json()


async def _stream(at: House, path: str = CHAT, **more: Any) -> list[dict[str, Any]]:
    body = {**(LONG if path == CHAT else {"prompt": TEXT}), "stream": True, **more}
    async with (
        aiohttp.ClientSession() as http,
        asyncio.timeout(WAIT_S),
        http.post(at.url + path, json=body) as response,
    ):
        assert response.headers["Content-Type"] == "text/event-stream; charset=utf-8"
        lines = (await response.text()).split("\n\n")
    assert lines[-2:] == ["data: [DONE]", ""]
    return [json.loads(line.removeprefix("data: ")) for line in lines[:-2]]


async def test_both_halves_run_at_once_and_are_told_of_each_other() -> None:
    async with house(1, 1) as at:
        (p,), (d,) = at.ps, at.ds
        p.go_on.clear()
        d.go_on.clear()
        asked = asyncio.create_task(_ask(at, stop=["x"], n=2, min_tokens=3, top_logprobs=2))
        await asyncio.wait_for(p.begun.wait(), WAIT_S)
        await asyncio.wait_for(d.begun.wait(), WAIT_S)
        assert [each.in_flight for each in at.front.instances] == [1, 1]
        p.go_on.set()
        d.go_on.set()
        status, answer = await asked
        assert (status, answer["by"]) == (200, "d0")
    (sent,), (decode,) = p.bodies, d.bodies
    params = sent.pop("kv_transfer_params")
    assert sent == {
        "messages": LONG["messages"],
        "max_tokens": 1,
        "max_completion_tokens": 1,
        "n": 1,
        "stream": False,
        "ignore_eos": True,
    }
    name = params.pop("transfer_id")
    assert params == {"do_remote_decode": True, "do_remote_prefill": False}
    assert decode.pop("kv_transfer_params") == {
        "do_remote_decode": False,
        "do_remote_prefill": True,
        "transfer_id": name,
    }
    assert decode == {**LONG, "stop": ["x"], "n": 2, "min_tokens": 3, "top_logprobs": 2}


@pytest.mark.parametrize("path", [CHAT, "/v1/completions"])
async def test_cached_tokens_are_those_before_the_request(path: str) -> None:
    async with house(1, 1) as at:
        at.ps[0].cached, at.ds[0].cached = 48, 99
        events = await _stream(at, path)
        assert events[0] == {"by": "d0"}
        assert events[1]["usage"][DETAILS] == {"cached_tokens": 48}
        _, whole = await _ask(at, path)
        assert whole["usage"] == {"prompt_tokens": 100, DETAILS: {"cached_tokens": 48}}
        assert at.count("cached_tokens") == 96


async def test_messages_are_split_and_counted_in_their_own_way() -> None:
    async with house(1, 1) as at:
        at.ps[0].cached, at.ds[0].cached = 48, 99
        body = {**LONG, "stop_sequences": ["x"]}
        expected = {"input_tokens": 52, "cache_read_input_tokens": 48}
        async with aiohttp.ClientSession() as http:
            async with http.post(f"{at.url}/v1/messages", json=body) as response:
                assert (await response.json())["usage"] == expected
            async with http.post(
                f"{at.url}/v1/messages", json={**body, "stream": True}
            ) as response:
                assert (
                    json.dumps({"usage": expected}, separators=(",", ":")) in await response.text()
                )
        assert "stop_sequences" not in at.ps[0].bodies[0]
        assert at.count("pd_requests", path="split") == 2


async def test_all_of_both_are_used_in_turn() -> None:
    async with house(2, 2) as at:
        for _ in range(8):
            assert (await _ask(at))[0] == 200
        assert [len(each.bodies) for each in at.ps + at.ds] == [4] * 4


@pytest.mark.parametrize("policy", ["prefix", "session", "least_loaded", "round_robin"])
async def test_every_policy_splits(policy: str) -> None:
    async with house(2, 2, policy=policy) as at:
        assert (await _ask(at))[0] == 200
        assert at.count("pd_requests", path="split", reason="beside") == 1
        assert sum(len(each.bodies) for each in at.ps) == 1


@pytest.mark.parametrize("wrong", ["hang_up", "status"])
async def test_another_engine_prefills_when_one_fails(wrong: str) -> None:
    async with house(2, 1) as at:
        (one, two), (d,) = at.ps, at.ds
        d.go_on.clear()
        setattr(one, wrong, 503)
        asked = asyncio.create_task(_ask(at))
        await asyncio.wait_for(two.begun.wait(), WAIT_S)
        d.go_on.set()
        assert (await asked)[0] == 200
        names = [body["kv_transfer_params"]["transfer_id"] for body in d.bodies]
        assert names[-1] == two.bodies[0]["kv_transfer_params"]["transfer_id"]
        assert len({*names}) == len(names) == 2
        assert at.count("pd_fallbacks", instance=one.url) == 1
        # Being busy is no fault.
        assert at.front.instances[0].circuit.failures == (wrong == "hang_up")


async def test_the_decoding_engine_prefills_when_none_is_left() -> None:
    async with house(2, 1) as at:
        (d,) = at.ds
        d.go_on.clear()
        for each in at.ps:
            each.hang_up = True
        asked = asyncio.create_task(_ask(at))
        async with asyncio.timeout(WAIT_S):
            while len(d.bodies) < 3:  # noqa: ASYNC110
                await asyncio.sleep(0.01)
        d.go_on.set()
        assert (await asked)[0] == 200
        assert "kv_transfer_params" not in d.bodies[-1]
        # Now it is known, and not tried again.
        assert (await _ask(at))[0] == 200
        assert "kv_transfer_params" not in d.bodies[-1]
        assert at.count("pd_requests", path="bypassed", reason="no prefill engine") == 1


async def test_a_prefill_that_is_refused_is_not_tried_elsewhere() -> None:
    async with house(2, 1) as at:
        at.ds[0].go_on.clear()
        at.ps[0].status = 400
        asked = asyncio.create_task(_ask(at))
        async with asyncio.timeout(WAIT_S):
            while len(at.ds[0].bodies) < 2:  # noqa: ASYNC110
                await asyncio.sleep(0.01)
        at.ds[0].go_on.set()
        assert (await asked)[0] == 200
        assert not at.ps[1].bodies
        assert at.front.instances[0].circuit.failures == 0


async def test_a_prefill_that_takes_too_long_is_given_up() -> None:
    async with house(1, 1, prefill_timeout_s=0.05) as at:
        at.ps[0].go_on.clear()
        at.ds[0].go_on.clear()
        asked = asyncio.create_task(_ask(at))
        await asyncio.wait_for(at.ps[0].cancelled.wait(), WAIT_S)
        at.ds[0].go_on.set()
        assert (await asked)[0] == 200
        assert at.count("pd_fallbacks", reason="silent") == 1


async def test_a_prefilling_engine_that_is_found_dead_is_given_up() -> None:
    async with house(1, 1) as at:
        at.ps[0].go_on.clear()
        at.ds[0].go_on.clear()
        asked = asyncio.create_task(_ask(at))
        await asyncio.wait_for(at.ds[0].begun.wait(), WAIT_S)
        for _ in range(2):
            at.front.health.note(at.front.instances[0], well=False)
        await asyncio.wait_for(at.ps[0].cancelled.wait(), WAIT_S)
        at.ds[0].go_on.set()
        assert (await asked)[0] == 200
        assert at.count("pd_fallbacks", reason="unhealthy") == 1


async def test_another_engine_decodes_when_one_fails() -> None:
    async with house(1, 2) as at:
        at.ds[0].hang_up = True
        status, answer = await _ask(at)
        assert (status, answer["by"]) == (200, "d1")
        first, second = (each.bodies[0]["kv_transfer_params"] for each in at.ds)
        assert first["transfer_id"] != second["transfer_id"]


async def test_a_decoding_engine_that_is_found_dead_is_given_up_while_there_is_another() -> None:
    async with house(1, 2) as at:
        for each in at.ds:
            each.go_on.clear()
        asked = asyncio.create_task(_ask(at))
        await asyncio.wait_for(at.ds[0].begun.wait(), WAIT_S)
        _, one, two = at.front.instances
        for _ in range(2):
            at.front.health.note(one, well=False)
        await asyncio.wait_for(at.ds[0].cancelled.wait(), WAIT_S)
        await asyncio.wait_for(at.ds[1].begun.wait(), WAIT_S)
        at.front.instances[0].draining = True
        for _ in range(2):
            at.front.health.note(two, well=False)
        at.ds[1].go_on.set()
        status, answer = await asked
        assert (status, answer["by"]) == (200, "d1")
        at.front.instances[0].draining = False


async def test_what_could_not_be_handed_over_is_computed_again() -> None:
    async with house(2, 1) as at:
        at.ds[0].fails_handover = True
        assert (await _ask(at))[0] == 200
        assert (await _stream(at))[0] == {"by": "d0"}
        assert ["kv_transfer_params" in body for body in at.ds[0].bodies] == [True, False] * 2
        assert at.count("pd_fallbacks", reason="not handed over") == 2
        assert all(each.circuit.failures == 0 for each in at.front.instances)


async def test_one_of_each_may_fail_for_one_request() -> None:
    async with house(2, 2) as at:
        at.ps[0].hang_up = at.ds[0].hang_up = True
        status, answer = await _ask(at)
        assert (status, answer["by"]) == (200, "d1")


@pytest.mark.parametrize(
    "answer", [b"nonsense\r\n\r\n", b"HTTP/1.1 200 OK\r\nContent-Length: 99\r\n\r\n{", b""]
)
async def test_garbage_for_a_prefill_is_a_failure(answer: bytes) -> None:
    async def talk(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await reader.readuntil(b"\r\n\r\n")
        writer.write(answer)
        await writer.drain()
        writer.close()

    async with house(0, 1) as at, await asyncio.start_server(talk, "127.0.0.1", 0) as rude:
        host, port = rude.sockets[0].getsockname()
        bad = at.front.members.add(named(f"http://{host}:{port}", "prefill"))
        assert (await _ask(at))[0] == 200
        assert "kv_transfer_params" not in at.ds[0].bodies[-1]
        assert at.count("pd_fallbacks", instance=bad.url) == 1
        assert bad.circuit.failures == 1


async def test_a_rank_that_the_client_names_is_the_decoding_engine_s() -> None:
    async with house(1, 1) as at:
        async with (
            aiohttp.ClientSession(headers={"x-data-parallel-rank": "3"}) as http,
            http.post(at.url + CHAT, json=LONG) as response,
        ):
            assert response.status == 200
        sent, told = ({k.lower(): v for k, v in e.headers[0].items()} for e in at.ps + at.ds)
        assert "x-data-parallel-rank" not in sent
        assert told["x-data-parallel-rank"] == "3"


async def test_a_request_that_kills_does_not_go_through_all() -> None:
    async with house(3, 3) as at:
        for each in at.ps + at.ds:
            each.hang_up = True
        assert (await _ask(at))[0] == 502
        assert sum(bool(each.bodies) for each in at.ps) <= 2
        assert sum(bool(each.bodies) for each in at.ds) <= 2


async def test_a_client_that_leaves_ends_both() -> None:
    async with house(1, 1) as at:
        (p,), (d,) = at.ps, at.ds
        p.go_on.clear()
        d.go_on.clear()
        asked = asyncio.create_task(_ask(at))
        await asyncio.wait_for(p.begun.wait(), WAIT_S)
        await asyncio.wait_for(d.begun.wait(), WAIT_S)
        asked.cancel()
        await asyncio.wait_for(p.cancelled.wait(), WAIT_S)
        await asyncio.wait_for(d.cancelled.wait(), WAIT_S)
        assert at.count("pd_cancelled") == 1


@pytest.mark.parametrize(
    ("path", "body", "reason"),
    [
        (CHAT, {"messages": [{"role": "user", "content": "hi"}]}, "short"),
        (CHAT, {**LONG, "prompt_logprobs": 1}, "prompt logprobs"),
        (CHAT, {**LONG, "messages": TEXT}, "prompts"),
        ("/v1/completions", {"prompt": [TEXT, TEXT]}, "prompts"),
        ("/v1/completions", {"prompt": TEXT, "echo": True, "logprobs": 1}, "prompt logprobs"),
        ("/v1/embeddings", {"input": TEXT * 9}, "path"),
    ],
)
async def test_what_cannot_be_split_goes_to_the_decoding_engine(
    path: str, body: dict[str, Any], reason: str
) -> None:
    async with house(1, 1) as at:
        async with (
            aiohttp.ClientSession() as http,
            http.post(at.url + path, json={**body, "kv_transfer_params": {"x": 1}}) as response,
        ):
            assert response.status == 200
        assert at.ds[0].bodies == [body]
        assert not at.ps[0].bodies
        assert at.count("pd_requests", path="bypassed", reason=reason) == 1


async def test_mooncakes_bootstrap_names_the_engine() -> None:
    async with house(1, 1, bootstrap=True, pd="auto") as at:
        for rank in (0, 1):
            assert (await _ask(at))[0] == 200
            sent, told = at.ps[0].bodies[-1], at.ds[0].bodies[-1]["kv_transfer_params"]
            assert told == {
                "do_remote_decode": False,
                "do_remote_prefill": True,
                "transfer_id": sent["kv_transfer_params"]["transfer_id"],
                "remote_bootstrap_addr": at.ps[0].url,
                "remote_engine_id": f"p0-{rank}",
            }
            assert at.ps[0].headers[-1]["X-data-parallel-rank"] == str(rank)
            assert "X-data-parallel-rank" not in at.ds[0].headers[-1]
        # Several answers cannot be made of what is sent once.
        assert (await _ask(at, n=2))[0] == 200
        assert "kv_transfer_params" not in at.ds[0].bodies[-1]


async def test_without_an_answer_of_the_bootstrap_the_decoding_engine_prefills() -> None:
    async with house(1, 1, pd="mooncake") as at:
        assert (await _ask(at))[0] == 200
        assert not at.ps[0].bodies
        assert "kv_transfer_params" not in at.ds[0].bodies[0]
        assert at.count("pd_fallbacks", reason="no bootstrap") == 1


async def test_a_bootstrap_that_failed_is_not_asked_again_for_a_while() -> None:
    asked, now = 0, 100.0

    async def nothing(_request: web.Request) -> web.Response:
        nonlocal asked
        asked += 1
        return web.Response(status=500)

    app = web.Application()
    app.router.add_get("/query", nothing)
    async with serving_app(app) as url, aiohttp.ClientSession() as http:
        where = Instance("http://p", bootstrap=url)
        bootstraps = Bootstraps(lambda: now)
        for _ in range(3):
            with pytest.raises(BootstrapError, match="HTTP 500"):
                await bootstraps.next(http, where)
        assert asked == 1
        now += FAILED_S
        with pytest.raises(BootstrapError):
            await bootstraps.next(http, where)
        assert asked == 2


async def test_a_client_that_leaves_before_the_decode_ends_the_prefill() -> None:
    async with house(1, 1, pd="nixl") as at:
        at.ps[0].go_on.clear()
        asked = asyncio.create_task(_ask(at))
        await asyncio.wait_for(at.ps[0].begun.wait(), WAIT_S)
        asked.cancel()
        await asyncio.wait_for(at.ps[0].cancelled.wait(), WAIT_S)
        assert not at.ds[0].bodies
        assert at.count("pd_cancelled") == 1


@pytest.mark.parametrize("way", ["nixl", "auto"])
async def test_nixls_parameters_come_from_the_prefill(way: str) -> None:
    async with house(1, 1, pd=way) as at:
        (p,), (d,) = at.ps, at.ds
        p.params = {"do_remote_prefill": True, "remote_block_ids": [[1, 2]], "remote_host": "h"}
        p.go_on.clear()
        asked = asyncio.create_task(_ask(at))
        await asyncio.wait_for(p.begun.wait(), WAIT_S)
        assert not d.bodies
        p.go_on.set()
        assert (await asked)[0] == 200
        assert d.bodies[0]["kv_transfer_params"] == p.params
        assert at.count("pd_requests", path="split", reason="before") == 1
        sent = p.bodies[0]["kv_transfer_params"]
        assert sent["do_remote_decode"] is True
        assert sent["remote_block_ids"] is None


async def test_an_engine_without_block_ids_hands_over_through_the_pool() -> None:
    async with house(1, 1, pd="auto") as at:
        (p,), (d,) = at.ps, at.ds
        assert (await _ask(at))[0] == 200
        assert "kv_transfer_params" not in d.bodies[0]
        p.go_on.clear()
        asked = asyncio.create_task(_ask(at))
        async with asyncio.timeout(WAIT_S):
            while len(d.bodies) < 2:  # noqa: ASYNC110
                await asyncio.sleep(0.01)
        p.go_on.set()
        assert (await asked)[0] == 200
        assert d.bodies[1]["kv_transfer_params"]["do_remote_prefill"] is True


async def _trouble(at: House, dice: random.Random) -> None:
    while True:
        each = dice.choice([*at.ps, *at.ds])
        each.hang_up, each.status = dice.random() < 0.2, dice.choice((200, 200, 200, 503, 500))
        (each.go_on.set if dice.random() < 0.7 else each.go_on.clear)()
        await asyncio.sleep(0.002)


async def _client(at: House, dice: random.Random) -> int:
    await asyncio.sleep(dice.random() * 0.3)
    try:
        async with asyncio.timeout(0.05 if dice.random() < 0.2 else None):
            return (await _ask(at, content=dice.random()))[0]
    except TimeoutError:
        return 0


@pytest.mark.parametrize("seed", range(4))
async def test_whatever_breaks_nothing_is_left_over(seed: int) -> None:
    """Engines hang up, refuse and stall at random, clients leave: no load is counted twice or kept,
    and whoever stays gets an answer."""
    dice = random.Random(seed)
    async with house(3, 3, policy=dice.choice(("prefix", "round_robin"))) as at:
        making = asyncio.create_task(_trouble(at, dice))
        clients = [asyncio.create_task(_client(at, dice)) for _ in range(60)]
        await asyncio.sleep(0.4)
        making.cancel()
        await asyncio.wait([making])
        for each in (*at.ps, *at.ds):
            each.hang_up, each.status = False, 200
            each.go_on.set()
        found = await asyncio.gather(*clients)
        assert {*found} <= {0, 200, 500, 502, 503}
        assert 200 in found
        async with asyncio.timeout(WAIT_S):
            while at.front.admission.in_flight:  # noqa: ASYNC110
                await asyncio.sleep(0.01)
        for instance in at.front.instances:
            assert not instance.queue.work_s
            assert not instance.waits
