"""The master as a process: sockets, clock, signals."""

from __future__ import annotations

import asyncio
import contextlib
import gc
import itertools
import json
import logging
import os
import secrets
import signal
import time
from collections.abc import AsyncIterator, Callable
from dataclasses import dataclass
from pathlib import Path

import uvloop

from moonpool.config import MasterConfig, default_segment_dir
from moonpool.config_ha import advertised, parse_store
from moonpool.config_values import is_loopback
from moonpool.core.marks import Marks
from moonpool.core.master import MasterConfig as Settings
from moonpool.core.master import MasterState
from moonpool.ha.backends import backend_for
from moonpool.ha.campaign import Campaign
from moonpool.ha.election import Election
from moonpool.master.admin_summary import Summary
from moonpool.master.board import Board
from moonpool.master.epochs import forget_epoch, take_epoch
from moonpool.master.listen import listen, serving_http, serving_rpc
from moonpool.master.pages import pages_of
from moonpool.master.service import Service
from moonpool.master.session import Session
from moonpool.master.tenant_pages import read_quotas
from moonpool.master.terms import Lead, Term
from moonpool.master.terms_pages import pages_of_lead

TICK_S = 0.1
CATCH_UP_S = 0.004
"""Between steps of making the objects that were announced: requests come first."""
COLLECT_TICKS = 50
CLOCK_SLACK_S = 0.01

log = logging.getLogger("moonpool.master")


@dataclass(frozen=True)
class Running:
    """A master that serves, or stands by (``epoch`` 0)."""

    epoch: int
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
    how = serving_in_turn if config.ha else serving
    async with how(config) as running:
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
    rpc = listen("port", config.host, config.port)
    with contextlib.closing(rpc):
        http = listen("http_port", config.http_host or config.host, config.http_port)
        with contextlib.closing(http):
            epoch = await _new_epoch(rpc.getsockname()[1])
            with contextlib.closing(_board(config, epoch)) as board:
                state = _state(config, epoch, Marks(board.seed, board))
                service = Service(state, epoch, token=config.token, board=board)
                service.tenant_quotas = config.tenant_quotas

                def named(local: str) -> None:
                    service.local = local

                async with (
                    serving_http(pages_of(service), http),
                    serving_rpc(lambda: Session(service, config.client_ttl_s), rpc, named),
                    _ticking(_reporting(config, lambda: service, service.tick), service.catch_up),
                ):
                    try:
                        yield Running(epoch, rpc.getsockname()[1], http.getsockname()[1])
                    finally:
                        service.close()
                        await asyncio.sleep(0)
                        forget_epoch(default_segment_dir(), rpc.getsockname()[1])


@contextlib.asynccontextmanager
async def serving_in_turn(config: MasterConfig) -> AsyncIterator[Running]:
    """Stand by, and serve while this master is the one that leads."""
    rpc = listen("port", config.host, config.port)
    with contextlib.closing(rpc):
        http = listen("http_port", config.http_host or config.host, config.http_port)
        with contextlib.closing(http):
            address = advertised(config.host, config.advertise, rpc.getsockname()[1])
            life = f"{address}/{secrets.token_hex(8)}"
            lead = Lead(Election(life, address, config.ha_lease), _maker(config))
            backend = backend_for(parse_store(config.ha))

            def named(local: str) -> None:
                lead.local = local

            async with (
                serving_http(pages_of_lead(lead), http),
                serving_rpc(lambda: Session(lead.desk, config.client_ttl_s), rpc, named),
                _campaigning(Campaign(lead.election, backend, lead.look), lead),
                _ticking(_reporting(config, lambda: lead.term, lead.tick), lead.catch_up),
            ):
                log.info("stands by at %s; the election is held in %s", address, config.ha)
                yield Running(0, rpc.getsockname()[1], http.getsockname()[1])


@contextlib.asynccontextmanager
async def _campaigning(campaign: Campaign, lead: Lead) -> AsyncIterator[None]:
    """Take part in the election; at the end let another lead without waiting."""
    task = asyncio.create_task(campaign.run())
    try:
        yield
    finally:
        task.cancel()
        await asyncio.gather(task, return_exceptions=True)
        lead.close()
        await campaign.resign()
        await campaign.close()


def _maker(config: MasterConfig) -> Callable[[Lead, int], Term]:
    def make(lead: Lead, epoch: int) -> Term:
        board = _board(config, epoch)
        state = _state(config, epoch, Marks(board.seed, board))
        term = Term(lead, state, epoch, config.token, board)
        term.tenant_quotas = config.tenant_quotas
        return term

    return make


def _board(config: MasterConfig, epoch: int) -> Board:
    return Board(config.board_dir or default_segment_dir(), epoch)


def _state(config: MasterConfig, epoch: int, marks: Marks) -> MasterState:
    settings = Settings(
        watermark_high=config.watermark_high,
        watermark_low=config.watermark_low,
        put_timeout_s=config.put_timeout_s,
        eviction=config.eviction,
        kv_lease_s=config.kv_lease_s,
        copy_rate=config.copy_rate,
        repair_after_s=config.repair_after_s,
        hot_reads_per_s=config.hot_reads_per_s,
        hot_copies_max=config.hot_copies_max,
        soft_pin_s=config.soft_pin_s,
        hard_pin_share=config.hard_pin_share,
        soft_pin_s_max=config.soft_pin_s_max,
        evict_soft_pinned=config.evict_soft_pinned,
        tenants=bool(config.tenant_quotas),
    )
    made = MasterState(settings, epoch, marks)
    if config.tenant_quotas:
        for name, quota in read_quotas(config.tenant_quotas).items():
            made.state.tenants.register(name, quota, ())
    return made


async def _new_epoch(port: int) -> int:
    """Return an epoch above that of any master that had our port before, once it may be used."""
    epoch = take_epoch(default_segment_dir(), port, time.time())
    if epoch.wait_s:
        await asyncio.sleep(epoch.wait_s + CLOCK_SLACK_S)
    return epoch.number


@contextlib.asynccontextmanager
async def _ticking(turn: Callable[[], None], catch_up: Callable[[], bool]) -> AsyncIterator[None]:
    async def tick() -> None:
        clock = time.monotonic
        for count in itertools.count():
            due = clock() + TICK_S
            while (left_s := due - clock()) > 0:  # noqa: ASYNC110 - there is no event
                await asyncio.sleep(min(left_s, CATCH_UP_S if catch_up() else left_s))
            turn()
            if count % COLLECT_TICKS == 0:
                gc.collect(1)

    task = asyncio.create_task(tick())
    try:
        yield
    finally:
        task.cancel()
        with contextlib.suppress(asyncio.CancelledError):
            await task


def _reporting(
    config: MasterConfig, service: Callable[[], Service | None], turn: Callable[[], None]
) -> Callable[[], None]:
    """Return a turn that now and then also logs what happened."""
    if not config.summary_s:
        return turn
    summaries: dict[int, Summary] = {}
    due = time.monotonic() + config.summary_s

    def both() -> None:
        nonlocal due
        turn()
        now, there = time.monotonic(), service()
        if now >= due and there is not None:
            due = now + config.summary_s
            if there.epoch not in summaries:
                summaries.clear()
                summaries[there.epoch] = Summary(there)
            log.info("%s", summaries[there.epoch].line())

    return both


def _report(config: MasterConfig, running: Running) -> None:
    log.info(
        "master listens on %s:%d, HTTP on port %d, epoch %d",
        config.host,
        running.port,
        running.http_port,
        running.epoch,
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
