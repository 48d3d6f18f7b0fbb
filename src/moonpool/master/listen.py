"""The master's sockets: the port, a Unix socket beside it, and the HTTP side."""

from __future__ import annotations

import asyncio
import contextlib
import errno
import logging
import os
import secrets
import socket
from collections.abc import AsyncIterator, Callable

from moonpool.errors import ConfigError
from moonpool.master.http import HttpSession, Pages
from moonpool.master.session import Session

BACKLOG = 1024

log = logging.getLogger("moonpool.master")


def listen(key: str, host: str, port: int) -> socket.socket:
    """Return a socket that listens. Raises ConfigError that names the key."""
    try:
        family = socket.getaddrinfo(host, port, type=socket.SOCK_STREAM)[0][0]
        return socket.create_server((host, port), family=family, backlog=BACKLOG)
    except OSError as error:
        raise ConfigError(_why_not(key, host, port, error)) from None


def _why_not(key: str, host: str, port: int, error: OSError) -> str:
    if error.errno == errno.EADDRINUSE:
        return f"{key}: {port} on {host} is in use; allowed: a free port, or 0 for any"
    if error.errno == errno.EACCES:
        return f"{key}: {port} on {host} is not permitted; allowed: 1024 to 65535, or 0 for any"
    return f"host: {host!r} cannot be listened on ({error.strerror}); allowed: an own address"


def _listen_locally() -> socket.socket | None:
    """Return an abstract Unix socket, which costs a request half of what loopback TCP costs.

    It is open to whoever can reach the loopback port, and gone with the process.
    """
    name = f"\0moonpool-{os.getpid()}-{secrets.token_hex(8)}"
    try:
        local = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
        local.bind(name)
        local.listen(BACKLOG)
    except OSError as error:
        log.info("no Unix socket for clients on this host: %s", error)
        return None
    return local


@contextlib.asynccontextmanager
async def serving_rpc(
    make: Callable[[], Session], sock: socket.socket, named: Callable[[str], None]
) -> AsyncIterator[None]:
    """Give every connection a session; ``named`` is told the Unix socket's name, if there is one.

    Connections that are open at the end are the caller's to close.
    """
    loop = asyncio.get_running_loop()
    server = await loop.create_server(make, sock=sock)
    local = _listen_locally()
    near = None
    if local is not None:
        near = await loop.create_unix_server(make, sock=local)
        named(local.getsockname()[1:].decode())
    try:
        yield
    finally:
        server.close()
        if near is not None:
            near.close()


@contextlib.asynccontextmanager
async def serving_http(pages: Pages, sock: socket.socket) -> AsyncIterator[None]:
    """Answer with the pages."""
    server = await asyncio.get_running_loop().create_server(lambda: HttpSession(pages), sock=sock)
    try:
        yield
    finally:
        server.close()
