"""The master as a process: sockets, clock, signals."""

from __future__ import annotations

import asyncio
import contextlib
import errno
import gc
import itertools
import json
import logging
import os
import secrets
import signal
import socket
import time
from collections.abc import AsyncIterator
from dataclasses import dataclass
from pathlib import Path

import uvloop

from moonpool.config import MasterConfig, default_segment_dir
from moonpool.config_values import is_loopback
from moonpool.core.marks import Marks
from moonpool.core.master import MasterConfig as Settings
from moonpool.core.master import MasterState
from moonpool.errors import ConfigError
from moonpool.master.board import Board
from moonpool.master.http import HttpSession, pages_of
from moonpool.master.service import Service
from moonpool.master.session import Session

TICK_S = 0.1
COLLECT_TICKS = 50
BACKLOG = 1024
CLOCK_SLACK_S = 0.01

log = logging.getLogger("moonpool.master")


@dataclass(frozen=True)
class Running:
    """A master that serves."""

    service: Service
    port: int
    http_port: int


def run(config: MasterConfig) -> None:
    """Serve until SIGINT or SIGTERM. Raises ConfigError for a port that cannot be had."""
    with asyncio.Runner(loop_factory=uvloop.new_event_loop) as runner:
        runner.run(_serve_until_signal(config))


async def _serve_until_signal(config: MasterConfig) -> None:
    stop = asyncio.Event()
    loop = asyncio.get_running_loop()
    for number in (signal.SIGINT, signal.SIGTERM):
        loop.add_signal_handler(number, stop.set)
    async with serving(config) as running:
        # The index is long-lived and has no cycles to speak of: do not scan it again and again.
        gc.freeze()
        gc.set_threshold(10_000, 4, 1000)
        _report(config, running)
        try:
            await stop.wait()
        finally:
            _remove_ready_file(config)
    log.info("master stopped")


@contextlib.asynccontextmanager
async def serving(config: MasterConfig) -> AsyncIterator[Running]:
    """Serve in the running loop for as long as the context lasts."""
    rpc = _listen("port", config.host, config.port)
    with contextlib.closing(rpc):
        http = _listen("http_port", config.http_host or config.host, config.http_port)
        with contextlib.closing(http):
            epoch = await _new_epoch()
            with contextlib.closing(
                Board(config.board_dir or default_segment_dir(), epoch)
            ) as board:
                state = _state(config, epoch, Marks(board.seed, board))
                service = Service(state, epoch, token=config.token, board=board)
                async with _http(service, http), _rpc(service, rpc), _ticking(service):
                    yield Running(service, rpc.getsockname()[1], http.getsockname()[1])


def _state(config: MasterConfig, epoch: int, marks: Marks) -> MasterState:
    settings = Settings(
        watermark_high=config.watermark_high,
        watermark_low=config.watermark_low,
        put_timeout_s=config.put_timeout_s,
    )
    return MasterState(settings, epoch, marks)


async def _new_epoch() -> int:
    """Return the next whole second since 1970, once it has begun.

    The port is ours by now, so a master before us is dead, and it served only after its own epoch
    had begun: ours is larger.
    """
    epoch = int(time.time()) + 1
    await asyncio.sleep(epoch - time.time() + CLOCK_SLACK_S)
    return epoch


def _listen(key: str, host: str, port: int) -> socket.socket:
    try:
        family = socket.getaddrinfo(host, port, type=socket.SOCK_STREAM)[0][0]
        return socket.create_server((host, port), family=family, backlog=BACKLOG)
    except OSError as error:
        raise ConfigError(_why_not(key, host, port, error)) from None


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


def _why_not(key: str, host: str, port: int, error: OSError) -> str:
    if error.errno == errno.EADDRINUSE:
        return f"{key}: {port} on {host} is in use; allowed: a free port, or 0 for any"
    if error.errno == errno.EACCES:
        return f"{key}: {port} on {host} is not permitted; allowed: 1024 to 65535, or 0 for any"
    return f"host: {host!r} cannot be listened on ({error.strerror}); allowed: an own address"


@contextlib.asynccontextmanager
async def _rpc(service: Service, sock: socket.socket) -> AsyncIterator[None]:
    loop = asyncio.get_running_loop()
    server = await loop.create_server(lambda: Session(service), sock=sock)
    local = _listen_locally()
    near = None
    if local is not None:
        near = await loop.create_unix_server(lambda: Session(service), sock=local)
        service.local = local.getsockname()[1:].decode()
    try:
        yield
    finally:
        server.close()
        if near is not None:
            near.close()
        service.close()
        await asyncio.sleep(0)


@contextlib.asynccontextmanager
async def _http(service: Service, sock: socket.socket) -> AsyncIterator[None]:
    pages = pages_of(service)
    server = await asyncio.get_running_loop().create_server(lambda: HttpSession(pages), sock=sock)
    try:
        yield
    finally:
        server.close()


@contextlib.asynccontextmanager
async def _ticking(service: Service) -> AsyncIterator[None]:
    async def tick() -> None:
        for count in itertools.count():
            await asyncio.sleep(TICK_S)
            service.tick()
            if count % COLLECT_TICKS == 0:
                gc.collect(1)

    task = asyncio.create_task(tick())
    try:
        yield
    finally:
        task.cancel()
        with contextlib.suppress(asyncio.CancelledError):
            await task


def _report(config: MasterConfig, running: Running) -> None:
    log.info(
        "master listens on %s:%d, HTTP on port %d, epoch %d",
        config.host,
        running.port,
        running.http_port,
        running.service.epoch,
    )
    if not config.token and not is_loopback(config.host):
        log.warning(
            "token: %s is not loopback and no token is set, so anyone who reaches this port may "
            "change the pool",
            config.host,
        )
    if config.ready_file:
        _write_ready_file(Path(config.ready_file), running)


def _remove_ready_file(config: MasterConfig) -> None:
    if config.ready_file:
        Path(config.ready_file).unlink(missing_ok=True)


def _write_ready_file(path: Path, running: Running) -> None:
    """Write the file under another name first, so that whoever waits for it sees all of it."""
    ready = {"port": running.port, "http_port": running.http_port, "pid": os.getpid()}
    draft = path.with_name(f"{path.name}.{os.getpid()}")
    draft.write_text(json.dumps(ready))
    draft.replace(path)
