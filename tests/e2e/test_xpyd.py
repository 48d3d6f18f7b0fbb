"""Two engines that prefill and two that decode behind the router, with one of each killed and one
added while conversations grow: every answer is that of one plain engine."""

from __future__ import annotations

import asyncio
import re
import sys
from collections.abc import Awaitable, Callable, Iterator
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import aiohttp
import pytest

from moonpool.demo.model import build_model
from tests.e2e.router_process import KEY, WAIT_S, Router, count
from tests.e2e.vllm.conftest import NEW, SHAPE
from tests.e2e.vllm.logprobs import difference
from tests.e2e.vllm.servers import OBJECT, Server
from tests.e2e.xpyd_client import CHAT, Broken, Conversation, ask, chat, message
from tests.integration.processes import pool

pytestmark = [pytest.mark.e2e, pytest.mark.timeout(600)]

SAME = 1e-4
CONVERSATIONS = 24
SPARE = ("--max-num-batched-tokens", "512")


def transfer(role: str) -> dict[str, Any]:
    """Return the connector's configuration of an engine."""
    return {
        "kv_connector": "MoonpoolConnector",
        "kv_role": role,
        "kv_load_failure_policy": "recompute",
        "kv_connector_extra_config": {"object_tokens": OBJECT, "lookup_wait_ms": 2000},
    }


class Story:
    """What happens to the engines, and what became of the requests meanwhile."""

    def __init__(self, stack: ExitStack, folder: Path, master: str) -> None:
        model = build_model(folder, SHAPE)

        def server(name: str, config: dict[str, Any]) -> Server:
            made = stack.enter_context(Server(name, model, folder, config, master))
            return made.spawn(*SPARE)

        self.plain = server("plain", {})
        self.ps = [server(name, transfer("kv_producer")) for name in ("p0", "p1")]
        self.ds = [server(name, transfer("kv_consumer")) for name in ("d0", "d1")]
        for each in (self.plain, *self.ps, *self.ds):
            each.ready()
        flags = [*("--master", master), *("--pd", "pool"), *("--bypass-tokens", "48")]
        flags += [flag for each in self.ps for flag in ("--prefill", each.url)]
        flags += [flag for each in self.ds for flag in ("--decode", each.url)]
        self.router = stack.enter_context(Router(folder, *flags))
        self._server = server
        self.talks = [Conversation(number) for number in range(CONVERSATIONS)]
        self.answers: list[list[dict[str, Any]]] = []
        self.broken: list[Broken] = []
        self.again: dict[str, Any] = {}
        self.dead: list[Server] = []

    async def run(self) -> None:
        """Four turns: as it should be, with what was decoded before, with two killed, with one
        added. Then the last again."""
        async with aiohttp.ClientSession() as self.http:
            for _ in range(4):
                await self._expect()
            self.chats = [await chat(self.http, self.plain.url, "plain", stream=False)]
            self.messages = [await message(self.http, self.plain.url)]
            self.plain.end()
            newcomer = self._server("d2", transfer("kv_consumer"))
            for stream in (False, True):
                url = self.router.url
                self.chats.append(await chat(self.http, url, f"{stream}", stream=stream))
            self.messages.append(await message(self.http, self.router.url))
            for turn in (0, 1):
                await self._turn(turn)
                await self._saved()
            await asyncio.gather(self._turn(2), self._kill())
            newcomer.ready()
            await self._add(newcomer)
            self.ds.append(newcomer)
            await self._turn(3)
            self.before_again = self.router.metrics()
            self.again = await ask(
                self.http, self.router.url, self.talks[0].prompts[3], stream=False
            )
            self.after_again = self.router.metrics()
            self.status = await self._get("/status")

    async def _expect(self) -> None:
        """Let the plain engine answer the next turn."""
        turn = len(self.talks[0].expected)
        answers = await asyncio.gather(
            *(ask(self.http, self.plain.url, t.next(turn), stream=False) for t in self.talks)
        )
        for talk, answer in zip(self.talks, answers, strict=True):
            talk.expected.append(answer)

    async def _turn(self, turn: int) -> None:
        """Ask for all conversations' turn at once, every other as a stream."""
        self.answers.append(
            await asyncio.gather(
                *(self._one(talk, turn, talk.number % 2 == 1) for talk in self.talks)
            )
        )

    async def _one(self, talk: Conversation, turn: int, stream: bool) -> dict[str, Any]:
        try:
            return await ask(self.http, self.router.url, talk.next(turn), stream=stream)
        except Broken as error:
            # A client asks again when what it was reading breaks off.
            self.broken.append(error)
            return await ask(self.http, self.router.url, talk.next(turn), stream=False)

    async def _kill(self) -> None:
        """Kill one engine of both kinds while they have work."""

        async def busy() -> bool:
            shown = (await self._get("/status"))["instances"]
            work = {each["url"]: each["in_flight"] for each in shown}
            self.dead = [max(some, key=lambda e: work[e.url]) for some in (self.ps, self.ds)]
            p, d = (work[each.url] for each in self.dead)
            return bool(p > 0 and d > 2)

        await until(busy)
        for each in self.dead:
            each.kill()

    async def _saved(self) -> None:
        """Wait until all engines have given the pool what they had for it."""

        async def idle() -> bool:
            jobs = [e.metric("vllm:moonpool_save_jobs") for e in (*self.ps, *self.ds)]
            return not any(jobs)

        await until(idle)

    async def _add(self, server: Server) -> None:
        body = {"type": "decode", "instance": server.url.removeprefix("http://")}
        headers = {"X-API-Key": KEY}
        async with self.http.post(
            f"{self.router.url}/instances/add", json=body, headers=headers
        ) as response:
            assert response.status == 200, await response.text()

    async def _get(self, path: str) -> Any:
        async with self.http.get(f"{self.router.url}{path}") as response:
            return await response.json()


async def until(happened: Callable[[], Awaitable[bool]]) -> None:
    """Wait for something that will be."""
    async with asyncio.timeout(WAIT_S):
        while not await happened():  # noqa: ASYNC110
            await asyncio.sleep(0.01)


@pytest.fixture(scope="module")
def story(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Story]:
    """All of it, told once."""
    pytest.importorskip("vllm")
    if not NEW:
        pytest.skip("block hashes of several processes are the same from vLLM 0.29 on")
    folder = tmp_path_factory.mktemp("xpyd")
    with ExitStack() as stack:
        master, _ = stack.enter_context(pool(folder, size="256MB"))
        told = Story(stack, folder, master.address)
        try:
            asyncio.run(told.run())
        except BaseException:
            sys.stdout.write(told.router.text()[-6000:])
            raise
        yield told


@pytest.mark.parametrize("turn", range(4))
def test_every_answer_is_that_of_a_plain_engine(story: Story, turn: int) -> None:
    worst = [
        difference(answer, talk.expected[turn])
        for answer, talk in zip(story.answers[turn], story.talks, strict=True)
    ]
    assert max(worst) < SAME


def test_several_answers_of_a_chat_are_those_of_a_plain_engine(story: Story) -> None:
    plain, *others = story.chats
    assert plain[0] != plain[1]
    for answers in others:
        for (text, logprobs), expected in zip(answers, plain, strict=True):
            assert text == expected[0]
            assert logprobs == pytest.approx(expected[1], abs=SAME)
            assert 0 < len(logprobs) <= CHAT["max_tokens"]


def test_a_message_is_that_of_a_plain_engine_and_its_prompt_was_not_cached(story: Story) -> None:
    plain, split = story.messages
    assert split == plain
    assert split[1] > 200


def test_nothing_fails_that_had_not_begun_to_stream(story: Story) -> None:
    assert [str(each) for each in story.broken if not each.begun] == []


def test_what_was_decoded_is_cached_for_the_next_prefill(story: Story) -> None:
    found = [
        answer["cached"] > len(talk.prompts[0])
        for answer, talk in zip(story.answers[1], story.talks, strict=True)
    ]
    # One that had to wait too long for the pool's answer computes its prompt.
    assert sum(found) > 0.7 * len(found)
    # And what a first prompt brings along is not called cached.
    assert all(answer["cached"] == 0 for answer in story.answers[0])


def test_requests_were_split(story: Story) -> None:
    page = story.after_again
    assert count(page, "pd_requests_total", path="split") >= CONVERSATIONS
    assert count(page, "prefill_seconds_count") >= CONVERSATIONS


def test_what_is_cached_already_is_decoded_at_once(story: Story) -> None:
    def bypassed(page: str) -> float:
        return count(page, "pd_requests_total", path="bypassed")

    assert bypassed(story.after_again) == bypassed(story.before_again) + 1
    assert difference(story.again, story.talks[0].expected[3]) < SAME


def test_the_dead_are_named_and_the_newcomer_works(story: Story) -> None:
    text = story.router.text()
    for dead in story.dead:
        # On a machine that has too much to do an engine may seem gone before.
        assert re.findall(rf"{dead.url} \(\w+\) is (gone|back)", text)[-1] == "gone"
    newcomer = story.ds[-1].url
    assert count(story.after_again, "requests_total", instance=newcomer, status="200") > 0
    (shown,) = [each for each in story.status["instances"] if each["url"] == newcomer]
    assert (shown["role"], shown["up"]) == ("decode", True)
    assert story.status["prefill_node_count"] == 2
