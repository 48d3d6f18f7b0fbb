"""The front as a service: a listening socket, and an end without long good-byes."""

from __future__ import annotations

import asyncio
import contextlib
import errno
import gc
import logging
import signal
import socket
from collections.abc import AsyncIterator, Callable
from pathlib import Path

from aiohttp import web
from aiohttp.http_exceptions import HttpProcessingError

from moonpool.config import RouterConfig
from moonpool.errors import ConfigError
from moonpool.router import build
from moonpool.router.blocks import BlockPrompts
from moonpool.router.discovery import FileWatch
from moonpool.router.front import UNHEARD, Front

BACKLOG = 1024
SHUTDOWN_TIMEOUT_S = 2.0
WATCH_S = 1.0
TOO_SLOW = b"HTTP/1.1 408 Request Timeout\r\nContent-Length: 0\r\nConnection: close\r\n\r\n"
log = logging.getLogger("moonpool.router")
http_log = logging.getLogger("moonpool.router.http")


def _is_ours(record: logging.LogRecord) -> bool:
    """Return whether a record is worth a line: what clients send that is no HTTP is not."""
    return not (record.exc_info and isinstance(record.exc_info[1], HttpProcessingError))


http_log.addFilter(_is_ours)


def listen(key: str, host: str, port: int) -> socket.socket:
    """Return a listening socket; raise ConfigError that names ``key`` where it cannot be had."""
    try:
        family = socket.getaddrinfo(host, port, type=socket.SOCK_STREAM)[0][0]
        return socket.create_server((host, port), family=family, backlog=BACKLOG)
    except OSError as error:
        if error.errno == errno.EADDRINUSE:
            reason = f"{port} on {host} is in use"
        else:
            reason = f"{host}:{port} cannot be listened on ({error.strerror})"
        raise ConfigError(f"{key}: {reason}; allowed: a free port, or 0 for any") from None


@contextlib.asynccontextmanager
async def serving(front: Front, sock: socket.socket) -> AsyncIterator[None]:
    """Serve the front on a listening socket for as long as the context lasts."""
    # With handler_cancellation a client that leaves ends its request upstream as well.
    runner = web.AppRunner(
        front.app(),
        handler_cancellation=True,
        access_log=None,
        logger=http_log,
        shutdown_timeout=SHUTDOWN_TIMEOUT_S,
    )
    await runner.setup()
    host, port = sock.getsockname()[:2]
    front.members.own = (str(host), int(port))
    server = None
    try:
        factory = HeadGuard(runner, front.options.body_timeout_s)
        server = await asyncio.get_running_loop().create_server(factory, sock=sock, backlog=BACKLOG)
        yield
    finally:
        if server is not None:
            server.close()
        await runner.cleanup()


class HeadGuard:
    """Makes the handlers of connections, and ends those that do not get a request out in time."""

    def __init__(self, runner: web.AppRunner, timeout_s: float) -> None:
        self._server = runner.server
        self._timeout_s = timeout_s

    def __call__(self) -> asyncio.Protocol:
        """Return the handler of a new connection."""
        assert self._server is not None, "the runner has been set up"
        handler = self._server()
        later = asyncio.get_running_loop().call_later
        UNHEARD[handler] = later(self._timeout_s, _end_unheard, handler)
        return handler


def _end_unheard(handler: web.RequestHandler) -> None:
    UNHEARD.pop(handler, None)
    transport = handler.transport
    if transport is not None:
        transport.write(TOO_SLOW)
        transport.close()


class Reloader:
    """Reads the configuration again on SIGHUP, and when its file changes.

    read: returns the configuration or raises ConfigError; then all stays as it is.
    """

    def __init__(
        self,
        front: Front,
        config: RouterConfig,
        read: Callable[[], RouterConfig],
        file: Path | None = None,
    ) -> None:
        self.config = config
        self._front, self._read = front, read
        self._watch = FileWatch(file) if file is not None else None
        if self._watch is not None:
            self._watch.changed()

    def reload(self) -> None:
        """Take the configuration as it is now."""
        try:
            new = self._read()
            fixed = build.reload(self._front, self.config, new)
        except ConfigError as error:
            self._front.metrics.reloads.labels("failed").inc()
            log.error("configuration not taken: %s", error)
            return
        self.config = new
        self._front.metrics.reloads.labels("ok").inc()
        log.info("configuration read again")
        if fixed:
            log.warning("these keys need a restart: %s", ", ".join(fixed))

    async def run(self) -> None:
        """Watch the file until cancelled."""
        while self._watch is not None:
            await asyncio.sleep(WATCH_S)
            if self._watch.changed():
                self.reload()


def settle() -> None:
    """Let the garbage collector never look again at what is there now.

    A tokenizer's libraries are half a million objects: to go through them took 170 ms each time.
    """
    gc.collect()
    gc.freeze()


def serve_until_signal(front: Front, sock: socket.socket, reloader: Reloader) -> None:
    """Serve until SIGINT or SIGTERM; SIGHUP reads the configuration again."""
    import uvloop

    front.background.append(reloader.run)
    if isinstance(front.knowledge.tokens, BlockPrompts):
        front.knowledge.tokens.on_load = settle
    settle()
    uvloop.run(_serve(front, sock, reloader))


async def _serve(front: Front, sock: socket.socket, reloader: Reloader) -> None:
    stop = asyncio.Event()
    loop = asyncio.get_running_loop()
    for number in (signal.SIGINT, signal.SIGTERM):
        loop.add_signal_handler(number, stop.set)
    loop.add_signal_handler(signal.SIGHUP, reloader.reload)
    async with serving(front, sock):
        host, port = sock.getsockname()[:2]
        count, name = len(front.instances), front.policy_name
        log.info("router listens on %s:%d for %d instances (%s)", host, port, count, name)
        await stop.wait()
    log.info("router stopped")
