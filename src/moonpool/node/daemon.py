"""``moonpool node``: segments, data port and session with the master, until a signal."""

from __future__ import annotations

import asyncio
import contextlib
import json
import logging
import os
import signal
import socket
import time
from collections.abc import AsyncIterator
from dataclasses import dataclass
from pathlib import Path

import uvloop

from moonpool.config import NodeConfig, default_segment_dir
from moonpool.config_values import is_loopback
from moonpool.errors import ConfigError, MoonpoolError
from moonpool.node.copier import Copier
from moonpool.node.copying import NodeCopies
from moonpool.node.disk import NodeDisk
from moonpool.node.onesided import OneSided, starter
from moonpool.node.saving import save
from moonpool.node.server import DataServer
from moonpool.node.session import MasterSession
from moonpool.node.storage import Storage, remove_stale
from moonpool.node.tier import Tier
from moonpool.node.tiering import disk_info, open_tier
from moonpool.node.touch import Toucher
from moonpool.node.verifying import Verifier
from moonpool.node.watching import watch_files
from moonpool.node.writers import Writers
from moonpool.ssd.pace import Pace
from moonpool.transport import huge

_log = logging.getLogger(__name__)

BEAT_S = 60.0


def run(config: NodeConfig) -> None:
    """Serve until SIGINT or SIGTERM, then leave nothing behind. Raises ConfigError, and
    TransferError when the file of a segment was cut short.

    A node that is killed leaves its segment files; the next one of its name takes them over.
    """
    with asyncio.Runner(loop_factory=uvloop.new_event_loop) as runner:
        runner.run(_run_until_signal(config))


async def _run_until_signal(config: NodeConfig) -> None:
    stop = asyncio.Event()
    loop = asyncio.get_running_loop()
    for number in (signal.SIGINT, signal.SIGTERM):
        loop.add_signal_handler(number, stop.set)
    async with serving(config) as running:
        stopped = asyncio.create_task(stop.wait())
        watch = asyncio.create_task(watch_files(running.storage))
        waiting = {stopped, watch, running.session}
        done, _ = await asyncio.wait(waiting, return_when=asyncio.FIRST_COMPLETED)
        stopped.cancel()
        watch.cancel()
        for each in done:
            each.result()
    _log.info("node stopped")


@dataclass(frozen=True)
class Running:
    """A node that serves; ``session`` only ends when it is cancelled."""

    storage: Storage
    server: DataServer
    session: asyncio.Task[None]


@contextlib.asynccontextmanager
async def serving(config: NodeConfig) -> AsyncIterator[Running]:
    """Run a node in the running loop for as long as the context lasts. Raises ConfigError."""
    name, directory = config.name or socket.gethostname(), config.segment_dir
    storage = Storage(
        name,
        directory or default_segment_dir(),
        config.size,
        config.segment_size,
        config.object_size,
    )
    writers = Writers()
    onesided = OneSided(storage, config.engines, starter(config, name))
    pace = Pace()
    server = DataServer(
        storage, writers, config.host, config.port, token=config.token, onesided=onesided, pace=pace
    )
    copier = Copier(writers, pace, config.token)
    toucher: Toucher | None = None
    tier: Tier | None = None
    served = False
    try:
        address = advertised(config, server.port)
        if config.ssd:
            tier = await asyncio.to_thread(open_tier, config, name, writers)
            server.disk = tier.direct
        await asyncio.to_thread(storage.open)
        await asyncio.to_thread(remove_stale, storage.root, storage.name, time.time())
        if config.touch_ahead:
            collapse = huge.collapse if config.huge_pages else None
            toucher = Toucher(storage.segments(), collapse=collapse)
            toucher.start()
        server.start()
        copier.start()
        onesided.prepare()
        served = True
        disk = None if tier is None else NodeDisk(tier, disk_info(config, name, address))
        copies = NodeCopies(copier)
        async with _session(config, storage, writers, address, server, disk, copies) as running:
            yield running
    finally:
        if toucher is not None:
            toucher.close()
        await asyncio.to_thread(copier.close)
        await asyncio.to_thread(onesided.close)
        await asyncio.to_thread(server.close)
        if tier is not None:
            if served and config.ssd_save_s:
                await asyncio.to_thread(_save, tier, storage, config.ssd_save_s)
            await asyncio.to_thread(tier.close)
        # What failed to start leaves the objects of the life before where they are.
        storage.close(delete=served)


@contextlib.asynccontextmanager
async def _session(
    config: NodeConfig,
    storage: Storage,
    writers: Writers,
    address: str,
    server: DataServer,
    disk: NodeDisk | None,
    copies: NodeCopies,
) -> AsyncIterator[Running]:
    _log.info("node %s serves at %s", storage.name, address)
    if not config.token and not is_loopback(config.host):
        _log.warning(
            "token: %s is not loopback and no token is set, so anyone who reaches the data port "
            "may read objects and overwrite their space",
            config.host,
        )

    def ready() -> None:
        verifier.start()
        if config.ready_file:
            _write_ready_file(Path(config.ready_file), server.port)

    session = MasterSession(
        config.ha or config.master,
        storage,
        writers,
        address,
        token=config.token,
        on_ready=ready,
        disk=disk,
        copies=copies,
    )
    verifier = Verifier(storage, session.damaged)
    tasks = [asyncio.create_task(session.run()), asyncio.create_task(_beating(storage))]
    try:
        yield Running(storage, server, tasks[0])
    finally:
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)
        await asyncio.to_thread(verifier.close)


def _save(tier: Tier, storage: Storage, within_s: float) -> None:
    """Keep what is in memory over a restart; the session with the master is over."""
    try:
        tier.rest()
        cut = storage.cut_short()
        whole = [each for each in storage.segments() if each.path not in cut]
        saved = save(tier.shelf, whole, within_s)
    except MoonpoolError as error:
        _log.warning("what is in memory only is not kept: %s", error)
        return
    _log.info(
        "wrote %d objects, %d bytes, of memory to the disk; %d are lost",
        saved.objects,
        saved.nbytes,
        saved.left,
    )


async def _beating(storage: Storage) -> None:
    while True:
        storage.beat()
        await asyncio.sleep(BEAT_S)


def advertised(config: NodeConfig, port: int) -> str:
    """Return the host:port under which others reach the node. Raises ConfigError."""
    host, colon, number = config.advertise.rpartition(":")
    if config.advertise and not colon:
        host, number = config.advertise, str(port)
    elif not config.advertise:
        host, number = config.host, str(port)
        if host in ("0.0.0.0", "::", ""):
            host = socket.gethostname()
    if not host or not number.isdecimal() or not 0 < int(number) < 65_536:
        raise ConfigError(f"advertise: {config.advertise!r} is not allowed; allowed: host[:port]")
    return f"{host}:{number}"


def _write_ready_file(path: Path, port: int) -> None:
    """Write the file under another name first, so that whoever waits for it sees all of it."""
    draft = path.with_name(f"{path.name}.{os.getpid()}")
    draft.write_text(json.dumps({"port": port, "pid": os.getpid()}))
    draft.replace(path)
