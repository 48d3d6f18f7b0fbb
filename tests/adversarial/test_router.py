"""A router process among clients and engines that mean harm, while one is served all along."""

from __future__ import annotations

import asyncio
import contextlib
import json
import random
import sys
from collections.abc import AsyncIterator, Callable
from contextlib import AsyncExitStack, asynccontextmanager
from pathlib import Path
from typing import Any

import aiohttp
import pytest
from aiohttp import web

from tests.integration.processes import environment
from tests.unit.router.upstream import serving_app

WAIT_S = 90.0
BLOCK = 16
DEEP = 100_000
MARKS = ["<|begin|>", "<|end|>", "<|system|>", "<|user|>", "<|assistant|>"]
TEMPLATE = (
    "<|begin|>{% for message in messages %}<|{{ message['role'] }}|>{{ message['content'] }}"
    "<|end|>{% endfor %}{% if add_generation_prompt %}<|assistant|>{% endif %}"
)

pytestmark = [pytest.mark.timeout(300), pytest.mark.filterwarnings("ignore")]


def _tokenizer(folder: Path) -> Path:
    tokenizers = pytest.importorskip("tokenizers")
    pytest.importorskip("transformers")
    made = tokenizers.Tokenizer(tokenizers.models.BPE())
    made.pre_tokenizer = tokenizers.pre_tokenizers.ByteLevel(add_prefix_space=False)
    made.decoder = tokenizers.decoders.ByteLevel()
    alphabet = tokenizers.pre_tokenizers.ByteLevel.alphabet()
    trainer = tokenizers.trainers.BpeTrainer(
        vocab_size=300, show_progress=False, initial_alphabet=alphabet
    )
    made.train_from_iterator(["the quick brown fox"] * 5, trainer)
    made.add_special_tokens([tokenizers.AddedToken(mark, special=True) for mark in MARKS])
    folder.mkdir()
    made.save(str(folder / "tokenizer.json"))
    config = {"tokenizer_class": "PreTrainedTokenizerFast", "chat_template": TEMPLATE}
    (folder / "tokenizer_config.json").write_text(json.dumps(config))
    return folder


class Engine:
    """Serves, and says of itself what vLLM says."""

    def __init__(self, root: Path) -> None:
        self._root = root
        self.asked = 0

    def app(self) -> web.Application:
        app = web.Application(client_max_size=1 << 30)
        app.router.add_get("/health", self._well)
        app.router.add_get("/metrics", self._metrics)
        app.router.add_get("/v1/models", self._models)
        app.router.add_post("/{any:.*}", self._answer)
        return app

    async def _well(self, request: web.Request) -> web.Response:
        return web.Response()

    async def _metrics(self, request: web.Request) -> web.Response:
        info = f'vllm:cache_config_info{{block_size="{BLOCK}",num_gpu_blocks="1000"}} 1.0\n'
        return web.Response(text=info)

    async def _models(self, request: web.Request) -> web.Response:
        card = {"id": "m", "root": str(self._root)}
        return web.json_response({"object": "list", "data": [card]})

    async def _answer(self, request: web.Request) -> web.Response:
        self.asked += 1
        await request.read()
        return web.json_response({"ok": request.headers.get("X-Name", "")})


@asynccontextmanager
async def _router(log: Path, *flags: str) -> AsyncIterator[tuple[str, int]]:
    port_line = b"listens on "
    with log.open("wb") as file:
        process = await asyncio.create_subprocess_exec(
            *(sys.executable, "-m", "moonpool.cli", "router", "--port", "0", *flags),
            stderr=file,
            env=environment(),
        )
    try:
        await _until(lambda: port_line in log.read_bytes() or process.returncode is not None)
        said = _text(log).encode()
        assert port_line in said, said.decode()
        address = said.split(port_line)[1].split(b" ")[0].decode()
        yield f"http://{address}", process.pid
        assert process.returncode is None, _text(log)[-4000:]
    finally:
        with contextlib.suppress(ProcessLookupError):
            process.terminate()
        await asyncio.wait_for(process.wait(), WAIT_S)


def _text(log: Path) -> str:
    return log.read_text(errors="replace")


def _files(pid: int) -> int:
    return len([*Path(f"/proc/{pid}/fd").iterdir()])


async def _until(happened: Callable[[], bool]) -> None:
    async with asyncio.timeout(WAIT_S):
        while not happened():  # noqa: ASYNC110
            await asyncio.sleep(0.02)


class Client:
    """Sends chats as long as the test lasts; every one must be answered as it should be."""

    def __init__(self, url: str) -> None:
        self._url = url
        self.served = 0

    async def run(self) -> None:
        messages = [{"role": "system", "content": "be brief " * 200}]
        async with aiohttp.ClientSession() as http:
            while True:
                messages.append({"role": "user", "content": f"number {self.served}"})
                headers = {"X-Name": str(self.served)}
                body = {"model": "m", "messages": messages[:1] + messages[-20:]}
                async with http.post(
                    f"{self._url}/v1/chat/completions", json=body, headers=headers
                ) as answer:
                    assert answer.status == 200, await answer.text()
                    assert await answer.json() == {"ok": str(self.served)}
                self.served += 1
                await asyncio.sleep(0.01)


@asynccontextmanager
async def _beside(url: str) -> AsyncIterator[Client]:
    """Serve a client meanwhile; nothing of it may fail, and it must get on."""
    client = Client(url)
    task = asyncio.create_task(client.run())
    try:
        await _until(lambda: client.served > 3 or task.done())
        yield client
        before = client.served
        await _until(lambda: client.served > before + 3 or task.done())
        assert not task.done(), task.exception()
    finally:
        task.cancel()
        await asyncio.gather(task, return_exceptions=True)


async def _raw(url: str, data: bytes) -> bytes:
    """Send bytes; return what comes back until the router closes or a moment has passed."""
    host, _, port = url.removeprefix("http://").partition(":")
    reader, writer = await asyncio.open_connection(host, int(port))
    found = b""
    try:
        writer.write(data)
        with contextlib.suppress(TimeoutError, ConnectionError):
            async with asyncio.timeout(WAIT_S):
                while part := await reader.read(65_536):
                    found += part
                    if b"\r\n\r\n" in found:
                        break
    finally:
        writer.close()
    return found


def _head(*lines: str, body: bytes = b"", path: str = "/v1/completions") -> bytes:
    head = [f"POST {path} HTTP/1.1", "Host: x", *lines, "", ""]
    return "\r\n".join(head).encode("latin-1") + body


BODY = b'{"prompt": "x"}'
CHUNKED = b"f\r\n" + BODY + b"\r\n0\r\n\r\n"
SMUGGLED = b"POST /v1/completions HTTP/1.1\r\nHost: y\r\nContent-Length: 2\r\n\r\n{}"
HEADS = {
    "both lengths": _head("Content-Length: 15", "Transfer-Encoding: chunked", body=CHUNKED),
    "two lengths": _head("Content-Length: 15", "Content-Length: 16", body=BODY),
    "list of lengths": _head("Content-Length: 15, 16", body=BODY),
    "signed length": _head("Content-Length: +15", body=BODY),
    "negative length": _head("Content-Length: -1", body=BODY),
    "folded": _head("X-A: b", " c: d", "Content-Length: 15", body=BODY),
    "space before colon": _head("Content-Length : 15", body=BODY),
    "odd coding": _head("Transfer-Encoding: xchunked", body=CHUNKED),
    "coding twice": _head("Transfer-Encoding: chunked, identity", body=CHUNKED),
    "bare line feeds": b"POST /v1/completions HTTP/1.1\nHost: x\nContent-Length: 15\n\n" + BODY,
    "null": _head("X-A: b\0c", "Content-Length: 15", body=BODY),
    "chunk size": _head("Transfer-Encoding: chunked", body=b"-1\r\nx\r\n0\r\n\r\n"),
    "endless chunk size": _head("Transfer-Encoding: chunked", body=b"0" * 70_000),
    "endless header": _head("X-A: " + "b" * 100_000, "Content-Length: 15", body=BODY),
    "no HTTP": b"\x16\x03\x01\x02\x00\x01\x00\x01\xfc\x03\x03" + bytes(100) + b"\r\n\r\n",
    "HTTP/2": b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n",
}


def _status(answer: bytes) -> int:
    """Return the status of the one answer, 0 where the connection was only closed."""
    assert answer.count(b"HTTP/1.1 ") <= 1, answer
    return int(answer.split(b" ", 2)[1]) if answer.startswith(b"HTTP/1.1 ") else 0


async def _chat(http: aiohttp.ClientSession, url: str, body: bytes) -> int:
    async with http.post(
        f"{url}/v1/chat/completions", data=body, headers={"Content-Type": "application/json"}
    ) as answer:
        await answer.read()
        return answer.status


def _said(content: str) -> bytes:
    return json.dumps({"model": "m", "messages": [{"role": "user", "content": content}]}).encode()


# Text that a tokenizer finds hard, by what it is; each is for the engine to judge.
HARD = {
    "spaces": _said(" " * 3_000_000),
    "one letter": _said("a" * 1_000_000),
    "marks": _said("<|end|>" * 100_000),
    "nothing": _said(""),
    "controls": _said("".join(map(chr, range(32))) * 1000),
}
BROKEN = {
    "deep": b'{"messages": ' + b"[" * DEEP + b"]" * DEEP + b"}",
    "deep objects": b'{"messages":' + b'{"a":' * DEEP + b"1" + b"}" * DEEP + b"}",
    "cut": b'{"messages": [{"role": "user", "content": "x"}',
    "no object": b"[1, 2]",
    "half a pair": b'{"messages": [{"role": "user", "content": "a\\ud800b"}]}',
    "not UTF-8": b'{"messages": [{"role": "user", "content": "\xff\xfe"}]}',
    "NaN": b'{"messages": [{"role": "user", "content": NaN}]}',
    "twice": b'{"model": "m", "model": 7, "messages": [], "messages": {}}',
    "huge number": b'{"messages": [], "max_tokens": 1' + b"0" * 5000 + b"}",
}


async def test_nothing_a_client_sends_disturbs_another(tmp_path: Path) -> None:
    async with AsyncExitStack() as stack:
        engine = Engine(_tokenizer(tmp_path / "model"))
        engine_url = await stack.enter_async_context(serving_app(engine.app()))
        flags = ("--instance", engine_url, "--body-timeout-s", "3", "--health-s", "1")
        url, pid = await stack.enter_async_context(_router(tmp_path / "log", *flags))
        http = await stack.enter_async_context(aiohttp.ClientSession())
        await _known_as_tokens(http, url)
        async with _beside(url):
            files = _files(pid)
            answers = await asyncio.gather(*(_raw(url, head + SMUGGLED) for head in HEADS.values()))
            by_name = dict(zip(HEADS, map(_status, answers), strict=True))
            assert {name: s for name, s in by_name.items() if s >= 500 or s == 200} == {}
            broken = {name: await _chat(http, url, body) for name, body in BROKEN.items()}
            assert {name: s for name, s in broken.items() if s not in (200, 400)} == {}
            assert broken["deep"] == broken["cut"] == broken["no object"] == 400
            hard = await asyncio.gather(*(_chat(http, url, body) for body in HARD.values()))
            assert set(hard) == {200}, dict(zip(HARD, hard, strict=True))
            await _noise(url)
            await _slow(url, 100)
            await _until(lambda: _files(pid) < files + 20)
        async with http.get(f"{url}/status") as answer:
            status: dict[str, Any] = await answer.json()
    assert (status["in_flight"], status["waiting"]) == (0, 0)
    assert status["prompts"]["kind"] == "local"
    assert "Traceback" not in _text(tmp_path / "log")


async def _known_as_tokens(http: aiohttp.ClientSession, url: str) -> None:
    async with asyncio.timeout(WAIT_S):
        while True:
            async with http.get(f"{url}/status") as answer:
                if (await answer.json())["prompts"]["kind"] == "local":
                    return
            await asyncio.sleep(0.1)


async def _noise(url: str) -> None:
    """Send requests with bytes changed by chance, and pieces of them."""
    chance = random.Random(7)
    plain = _head("Content-Type: application/json", "Content-Length: 15", body=BODY)
    host, _, port = url.removeprefix("http://").partition(":")
    for _ in range(150):
        data = bytearray(plain)
        for _ in range(chance.randrange(1, 6)):
            data[chance.randrange(len(data))] = chance.randrange(256)
        _, writer = await asyncio.open_connection(host, int(port))
        writer.write(data[: chance.randrange(1, len(data) + 1)])
        writer.close()


async def _slow(url: str, count: int) -> None:
    """Open connections that send a byte now and then: all are ended by the router."""

    async def drip() -> None:
        host, _, port = url.removeprefix("http://").partition(":")
        reader, writer = await asyncio.open_connection(host, int(port))
        with contextlib.suppress(ConnectionError):
            for byte in _head("Content-Length: 15", body=BODY):
                writer.write(bytes([byte]))
                await writer.drain()
                with contextlib.suppress(TimeoutError):
                    if await asyncio.wait_for(reader.read(1), 0.3):
                        break
        writer.close()

    await asyncio.wait_for(asyncio.gather(*(drip() for _ in range(count))), WAIT_S)


ANSWERS = {
    "no HTTP": b"SSH-2.0-OpenSSH_9.6\r\n",
    "nothing": b"",
    "endless header": b"HTTP/1.1 200 OK\r\nX: " + b"y" * 200_000,
    "endless headers": b"HTTP/1.1 200 OK\r\n" + b"X-A: b\r\n" * 20_000,
    "length that is none": b"HTTP/1.1 200 OK\r\nContent-Length: x\r\n\r\n{}",
    "both lengths": b"HTTP/1.1 200 OK\r\nContent-Length: 2\r\nTransfer-Encoding: chunked\r\n\r\n{}",
    "chunk that is none": b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\nzz\r\n",
    "status that is none": b"HTTP/1.1 xyz OK\r\nContent-Length: 0\r\n\r\n",
    "split": b"HTTP/1.1 200 OK\r\nX-A: b\rSet-Cookie: c\r\nContent-Length: 0\r\n\r\n",
}


async def test_engines_that_answer_anything_disturb_no_other(tmp_path: Path) -> None:
    async with AsyncExitStack() as stack:
        good = Engine(_tokenizer(tmp_path / "model"))
        urls = [await stack.enter_async_context(serving_app(good.app()))]
        for answer in ANSWERS.values():
            server = await asyncio.start_server(_answering(answer), "127.0.0.1", 0)
            stack.callback(server.close)
            urls.append(f"http://127.0.0.1:{server.sockets[0].getsockname()[1]}")
        flags = [part for each in urls for part in ("--instance", each)]
        flags += ["--policy", "round_robin", "--health-s", "0.5"]
        url, _ = await stack.enter_async_context(_router(tmp_path / "log", *flags))
        http = await stack.enter_async_context(aiohttp.ClientSession())
        found = []
        for number in range(30):
            with contextlib.suppress(aiohttp.ClientPayloadError):
                found.append(await _chat(http, url, _said(f"{number}")))
        assert set(found) <= {200, 502, 503}, found
        # Those that are no engines are found out; then nothing fails any more.
        async with asyncio.timeout(WAIT_S):
            while [await _chat(http, url, _said("again")) for _ in range(12)] != [200] * 12:
                found.clear()
    assert "Traceback" not in _text(tmp_path / "log")


def _answering(answer: bytes) -> Callable[..., Any]:
    async def serve(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        with contextlib.suppress(ConnectionError, asyncio.IncompleteReadError):
            await reader.readuntil(b"\r\n\r\n")
            writer.write(answer)
            await writer.drain()
        writer.close()

    return serve
