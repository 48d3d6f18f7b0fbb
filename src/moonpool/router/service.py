"""The front as a service: a listening socket, and an end without long good-byes."""

from __future__ import annotations

import asyncio
import contextlib
import errno
import logging
import signal
import socket
from collections.abc import AsyncIterator

from aiohttp import web

from moonpool.errors import ConfigError
from moonpool.router.front import Front

BACKLOG = 1024
SHUTDOWN_TIMEOUT_S = 2.0
log = logging.getLogger("moonpool.router")


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
        shutdown_timeout=SHUTDOWN_TIMEOUT_S,
    )
    await runner.setup()
    try:
        await web.SockSite(runner, sock).start()
        yield
    finally:
        await runner.cleanup()


def serve_until_signal(front: Front, sock: socket.socket) -> None:
    """Serve until SIGINT or SIGTERM."""
    import uvloop

    uvloop.run(_serve(front, sock))


async def _serve(front: Front, sock: socket.socket) -> None:
    stop = asyncio.Event()
    loop = asyncio.get_running_loop()
    for number in (signal.SIGINT, signal.SIGTERM):
        loop.add_signal_handler(number, stop.set)
    async with serving(front, sock):
        host, port = sock.getsockname()[:2]
        log.info("router listens on %s:%d for %d instances", host, port, len(front.instances))
        await stop.wait()
    log.info("router stopped")
