"""Exchanging what the product takes from the system, while a simulation runs."""

from __future__ import annotations

import contextlib
import importlib
import os as real_os
import random as real_random
import secrets as real_secrets
import select as real_select
import socket as real_socket
import sys
import threading as real_threading
import time as real_time
from collections.abc import AsyncIterator, Callable, Iterator, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from pathlib import Path
from types import ModuleType
from typing import Any

from moonpool.client.attachment import AttachedTransport
from moonpool.client.connection import Connection
from moonpool.master.service import Service
from moonpool.master.session import Session
from moonpool.ssd.pace import Pace
from moonpool.transport.copy import Kernels
from moonpool.transport.host import host_identity, shares_memory
from moonpool.transport.lane import Lane
from moonpool.transport.wire import Wire
from tests.sim.world import clocks, sockets
from tests.sim.world.disk import SimVolume
from tests.sim.world.hub import hub

PACKAGES = ("client", "core", "ha", "master", "node", "protocol", "ssd", "transport")
_PRODUCT = (
    "client.store",
    "master.daemon",
    "node.daemon",
    "node.tiering",
    "ssd.shelf",
    "transport.small",
)


class Os:
    """In the place of the module ``os``: descriptors end with their process."""

    def __getattr__(self, name: str) -> Any:
        return getattr(real_os, name)

    def open(self, *args: Any, **options: Any) -> int:
        fd = real_os.open(*args, **options)
        process = hub().process
        if process is not None:
            process.fds.add(fd)
        return fd

    def pipe2(self, flags: int) -> tuple[int, int]:
        made = real_os.pipe2(flags)
        process = hub().process
        if process is not None:
            process.fds.update(made)
        return made

    def close(self, fd: int) -> None:
        process = hub().process
        if process is not None and fd in process.fds:
            process.fds.discard(fd)
            real_os.close(fd)

    def getpid(self) -> int:
        return 1

    def setpriority(self, *_: int) -> None:
        pass


class Gc:
    """In the place of the module ``gc``."""

    def collect(self, _generation: int = 2) -> int:
        return 0


class Executor:
    """concurrent.futures.ThreadPoolExecutor, with a thread for each call."""

    def __init__(self, _workers: int = 1, _name: str = "") -> None:
        self._running: list[clocks.SimThread] = []

    def submit(self, call: Callable[..., Any], *args: Any) -> Future[Any]:
        future: Future[Any] = Future()

        def work() -> None:
            try:
                future.set_result(call(*args))
            except Exception as error:  # noqa: BLE001 - the future's
                future.set_exception(error)

        thread = clocks.SimThread(work, "pool")
        future.thread = thread  # type: ignore[attr-defined]
        self._running = [each for each in self._running if each.is_alive()]
        self._running.append(thread)
        thread.start()
        return future

    def shutdown(self, wait: bool = True) -> None:
        for each in self._running:
            each.join()


def wait(futures: Sequence[Any]) -> None:
    """concurrent.futures.wait."""
    for each in futures:
        each.thread.join()


def _serial(made: Any) -> int:
    number: int | None = made.__dict__.get("_serial_of_sim")
    if number is None:
        number = made._serial_of_sim = hub().number()
    return number


@contextlib.asynccontextmanager
async def _no_http(_pages: object, _sock: object) -> AsyncIterator[None]:
    yield


def _modules() -> list[ModuleType]:
    for name in _PRODUCT:
        importlib.import_module(f"moonpool.{name}")
    wanted = tuple(f"moonpool.{package}" for package in PACKAGES)
    return [sys.modules[name] for name in sorted(sys.modules) if name.startswith(wanted)]


_HASHED = (Session, Connection, Lane, Wire, AttachedTransport)
"""What is kept in sets: walked in an order that does not depend on where things lie in memory."""

_plan: list[tuple[ModuleType, str, object]] = []
_bound: dict[str, Callable[..., Any]] = {}
_defaults: list[dict[str, Any]] = []
"""Default values of arguments that are a clock."""


def _changes() -> list[tuple[ModuleType, str, object]]:
    """Return what is exchanged: module, name, what takes its place."""
    if _plan:
        return _plan
    threading = clocks.Threading()
    stead = {
        real_time: clocks.Time(),
        real_threading: threading,
        real_secrets: clocks.Secrets(),
        real_random: clocks.Random(),
        real_socket: sockets.SocketModule(),
        real_select: sockets.SelectModule(),
        real_os: Os(),
        ThreadPoolExecutor: Executor,
    }
    for module in _modules():
        for name, value in list(vars(module).items()):
            with contextlib.suppress(TypeError):
                if value in stead:
                    _plan.append((module, name, stead[value]))

    def put(module: str, **names: object) -> None:
        found = sys.modules[f"moonpool.{module}"]
        _plan.extend((found, name, value) for name, value in names.items())

    put(
        "transport.wire",
        _send=sockets.send_memory,
        _recv=sockets.receive_memory,
        _sendmsg=sockets.send_message,
        _recvmsg=sockets.receive_message,
    )
    put("transport.copy", _kernels=Kernels(never=True))
    put("ssd.shelf", wait=wait)
    put("node.tiering", LocalVolume=SimVolume)
    put(
        "master.daemon",
        TICK_S=0.4,
        gc=Gc(),
        default_segment_dir=_home,
        serving_http=_no_http,
        backend_for=_backend_for,
    )
    put("client.ways", shares_memory=_shares_memory)
    put("client.reach", shares_memory=_shares_memory)
    put("client.board", host_identity=_host_identity)
    put("ha.seeker", look_in=_look_in)
    put("master.terms", gc=Gc())
    _defaults.extend((each.__kwdefaults__ or {}) for each in (Service.__init__, Pace.__init__))
    return _plan


def bind(backend: Callable[[], Any], look: Callable[[float], Any], home: Callable[[], str]) -> None:
    """Say where elections are held, and where a host has its shared memory."""
    _bound.update(backend=backend, look=look, home=home)


def _backend_for(_store: object) -> Any:
    return _bound["backend"]()


def _home() -> str:
    """Return the shared memory of the host that asks."""
    return str(_bound["home"]())


def _shares_memory(host: str, path: str) -> bool:
    """As transport.host, where only a host's own directory is in its shared memory."""
    return Path(path).is_relative_to(_home()) and shares_memory(host, path)


def _host_identity(directory: Any) -> str:
    return host_identity(directory) if Path(directory).is_relative_to(_home()) else ""


def _look_in(_store: object, timeout_s: float) -> Any:
    return _bound["look"](timeout_s)


@contextlib.contextmanager
def exchanged() -> Iterator[None]:
    """Run the product on the simulated system inside the block."""
    before = []
    for module, name, value in _changes():
        before.append((module, name, getattr(module, name)))
        setattr(module, name, value)
    for each in _defaults:
        each["clock"] = clocks.Time().monotonic
    for kind in _HASHED:
        setattr(kind, "__hash__", _serial)  # noqa: B010
    try:
        yield
    finally:
        for kind in _HASHED:
            setattr(kind, "__hash__", object.__hash__)  # noqa: B010
        for each in _defaults:
            each["clock"] = real_time.monotonic
        for module, name, value in reversed(before):
            setattr(module, name, value)
