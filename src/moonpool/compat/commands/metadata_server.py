"""``mooncake_http_metadata_server``: the key-value pages that transfer engines find each other by.

Keys and bodies are bounded: whoever reaches the port may write to it.
"""

from __future__ import annotations

import argparse
import asyncio
import logging
import sys
import threading
from collections.abc import Sequence

from aiohttp import web

KEYS_MAX = 65_536
KEY_CHARS_MAX = 4096
BODY_BYTES_MAX = 1 << 19
HELD_BYTES_MAX = 1 << 28
START_S = 10.0

log = logging.getLogger("moonpool.compat")


class MetadataServer:
    """Serves ``/metadata?key=`` (GET, PUT, DELETE) and ``/health`` from a thread of its own."""

    def __init__(self, host: str, port: int) -> None:
        self.host = host
        self.port = port
        self._store: dict[str, bytes] = {}
        self._held_bytes = 0
        self._thread: threading.Thread | None = None
        self._loop: asyncio.AbstractEventLoop | None = None
        self._stop: asyncio.Event | None = None
        self._started = threading.Event()
        self._error: OSError | None = None

    def start(self) -> None:
        """Listen; ``port`` is the real one afterwards. Raises OSError."""
        self._thread = threading.Thread(target=self._run, name="moonpool-metadata", daemon=True)
        self._thread.start()
        if not self._started.wait(START_S):
            raise OSError("the metadata server did not start in time")
        if self._error is not None:
            raise self._error
        log.info("metadata server listens on %s:%d", self.host, self.port)

    def close(self) -> None:
        """Stop. May be called twice."""
        loop, stop, thread = self._loop, self._stop, self._thread
        if loop is not None and stop is not None and not loop.is_closed():
            loop.call_soon_threadsafe(stop.set)
        if thread is not None:
            thread.join(START_S)

    @property
    def alive(self) -> bool:
        """Whether it serves."""
        return self._thread is not None and self._thread.is_alive() and self._error is None

    def _run(self) -> None:
        try:
            asyncio.run(self._serve())
        except OSError as error:
            self._error = error
        finally:
            self._started.set()

    async def _serve(self) -> None:
        self._loop, self._stop = asyncio.get_running_loop(), asyncio.Event()
        app = web.Application(client_max_size=BODY_BYTES_MAX)
        app.router.add_route("*", "/metadata", self._metadata)
        app.router.add_get("/health", self._health)
        runner = web.AppRunner(app, access_log=None)
        await runner.setup()
        try:
            await web.TCPSite(runner, self.host, self.port).start()
            self.port = runner.addresses[0][1]
            self._started.set()
            await self._stop.wait()
        finally:
            await runner.cleanup()

    async def _health(self, _request: web.Request) -> web.Response:
        return _answer("OK")

    async def _metadata(self, request: web.Request) -> web.Response:
        key = request.query.get("key", "").strip()
        if not key or len(key) > KEY_CHARS_MAX:
            return _answer("metadata key is required", 400)
        if request.method == "GET":
            found = self._store.get(key)
            return _answer("metadata not found", 404) if found is None else _answer(found)
        if request.method == "PUT":
            return self._put(key, await request.read())
        if request.method == "DELETE":
            if key not in self._store:
                return _answer("metadata not found", 404)
            self._held_bytes -= len(self._store.pop(key))
            return _answer("metadata deleted")
        return _answer("Method not allowed", 405)

    def _put(self, key: str, body: bytes) -> web.Response:
        before = self._store.get(key)
        # Two engines of one name would take each other's connections.
        if before is not None and before != body and "rpc_meta" in key:
            return _answer("Duplicate rpc_meta key not allowed", 400)
        held = self._held_bytes + len(body) - len(before or b"")
        if held > HELD_BYTES_MAX or (before is None and len(self._store) >= KEYS_MAX):
            return _answer("the metadata server is full", 507)
        self._store[key], self._held_bytes = body, held
        return _answer("metadata updated")


def _answer(body: str | bytes, status: int = 200) -> web.Response:
    raw = body.encode() if isinstance(body, str) else body
    return web.Response(body=raw, status=status, content_type="application/json")


def main(arguments: Sequence[str] | None = None) -> int:
    """Serve until a signal; return 0, or 2 for a port that cannot be had."""
    parser = argparse.ArgumentParser(prog="mooncake_http_metadata_server")
    parser.add_argument("--port", type=int, default=8080, help="port to listen on")
    parser.add_argument("--host", default="0.0.0.0", help="address to listen on")
    parser.add_argument("--log-level", default="INFO", type=str.upper)
    said = parser.parse_args(arguments)
    logging.basicConfig(level=getattr(logging, said.log_level, logging.INFO))
    return asyncio.run(_until_signal(MetadataServer(said.host, said.port)))


async def _until_signal(server: MetadataServer) -> int:
    from moonpool.compat.commands.signals import stop_event

    stop = stop_event()
    try:
        await asyncio.to_thread(server.start)
    except OSError as error:
        print(f"mooncake_http_metadata_server: {error}", file=sys.stderr)  # noqa: T201
        return 2
    try:
        await stop.wait()
    finally:
        await asyncio.to_thread(server.close)
    return 0


if __name__ == "__main__":
    sys.exit(main())
