"""Stand-ins for engines: they answer at once, say what vLLM says of itself, and compute nothing.

``python -m moonpool.bench.router_engine``; the first line on standard output is their ports.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import sys
from collections.abc import Iterator
from typing import Any, cast

import msgspec

from moonpool.bench.router_wire import LAST_CHUNK, Reader, chunk

STREAM_HEAD = (
    b"HTTP/1.1 200 OK\r\nContent-Type: text/event-stream; charset=utf-8\r\n"
    b"Transfer-Encoding: chunked\r\n\r\n"
)


class Asked(msgspec.Struct):
    """What a stand-in reads of a request. user: ``ID/PROMPT_TOKENS``."""

    user: str = ""
    max_tokens: int = 1


_asked = msgspec.json.Decoder(Asked)


def event(ident: str, number: int) -> bytes:
    """Return the event of one token of an answer."""
    return (
        b'data: {"id":"%b","object":"chat.completion.chunk","created":1,"model":"bench","choices":'
        b'[{"index":0,"delta":{"content":"%b:%d "},"finish_reason":null}]}\n\n'
        % (ident.encode(), ident.encode(), number)
    )


def last_event(ident: str, prompt_tokens: int, tokens: int) -> bytes:
    """Return the event that counts an answer's tokens, and the end."""
    return (
        b'data: {"id":"%b","object":"chat.completion.chunk","created":1,"model":"bench",'
        b'"choices":[],"usage":{"prompt_tokens":%d,"total_tokens":%d,"completion_tokens":%d}}\n\n'
        b"data: [DONE]\n\n" % (ident.encode(), prompt_tokens, prompt_tokens + tokens, tokens)
    )


def expected(user: str, tokens: int) -> bytes:
    """Return the whole body of an answer."""
    ident, _, count = user.rpartition("/")
    events = b"".join(event(ident, number) for number in range(tokens))
    return events + last_event(ident, int(count), tokens)


class Engine(asyncio.Protocol):
    """One connection to a stand-in."""

    def __init__(self, root: str, block_tokens: int, interval_s: float) -> None:
        self._root, self._block_tokens, self._interval_s = root, block_tokens, interval_s
        self._reader = Reader()
        self._transport: asyncio.Transport | None = None

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        """Keep the way back."""
        self._transport = cast("asyncio.Transport", transport)

    def connection_lost(self, exc: Exception | None) -> None:
        """Stop answering."""
        self._transport = None

    def data_received(self, data: bytes) -> None:
        """Read a request; answer it when it is whole."""
        self._reader.feed(data)
        if self._reader.done:
            asked, self._reader = self._reader, Reader()
            self._answer(asked)

    def _answer(self, asked: Reader) -> None:
        method, path, _ = asked.start.split(" ", 2)
        if method == "POST":
            self._stream(_asked.decode(asked.body))
            return
        found = self._told(path.partition("?")[0])
        status = b"404 Not Found" if found is None else b"200 OK"
        body = found or b"{}"
        self._write(
            b"HTTP/1.1 %b\r\nContent-Type: application/json\r\nContent-Length: %d\r\n\r\n%b"
            % (status, len(body), body)
        )

    def _told(self, path: str) -> bytes | None:
        if path == "/v1/models":
            card = {"id": "bench", "object": "model", "owned_by": "bench", "root": self._root}
            return json.dumps({"object": "list", "data": [card]}).encode()
        if path == "/metrics":
            return (
                f'vllm:cache_config_info{{block_size="{self._block_tokens}",'
                'num_gpu_blocks="65536",prefix_caching_hash_algo="sha256"} 1.0\n'
            ).encode()
        return b"{}" if path in ("/health", "/version") else None

    def _stream(self, asked: Asked) -> None:
        ident, _, count = asked.user.rpartition("/")
        steps = self._events(ident, int(count or 0), asked.max_tokens)
        if self._interval_s:
            self._write(STREAM_HEAD)
            self._step(steps)
        else:
            self._write(STREAM_HEAD + next(steps))
            self._write(b"".join(steps))

    def _events(self, ident: str, prompt_tokens: int, tokens: int) -> Iterator[bytes]:
        for number in range(tokens):
            yield chunk(event(ident, number))
        yield chunk(last_event(ident, prompt_tokens, tokens)) + LAST_CHUNK

    def _step(self, steps: Iterator[bytes]) -> None:
        data = next(steps, None)
        if data is not None and self._transport is not None:
            self._write(data)
            asyncio.get_running_loop().call_later(self._interval_s, self._step, steps)

    def _write(self, data: bytes) -> None:
        if self._transport is not None:
            self._transport.write(data)


async def _serve(options: Any) -> None:
    loop = asyncio.get_running_loop()
    ports = []
    for _ in range(options.engines):
        server = await loop.create_server(
            lambda: Engine(options.root, options.block_tokens, options.interval_ms / 1000),
            "127.0.0.1",
            0,
            backlog=2048,
        )
        ports.append(server.sockets[0].getsockname()[1])
    sys.stdout.write(json.dumps(ports) + "\n")
    sys.stdout.flush()
    await asyncio.Event().wait()


def main() -> None:
    """Serve until killed."""
    import uvloop

    parser = argparse.ArgumentParser()
    parser.add_argument("--engines", type=int, default=4)
    parser.add_argument("--root", default="")
    parser.add_argument("--block-tokens", type=int, default=16)
    parser.add_argument("--interval-ms", type=float, default=0.0)
    uvloop.run(_serve(parser.parse_args()))


if __name__ == "__main__":
    main()
