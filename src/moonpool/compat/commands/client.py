"""``mooncake_client``: a process that lends memory, and tells dummy clients of its host where the
pool is. They map the pool's segments themselves, so it is not in their way."""

from __future__ import annotations

import asyncio
import logging
import sys
from collections.abc import Sequence
from typing import Any, Final

from aiohttp import web

from moonpool.compat.commands import gflags
from moonpool.compat.commands.gflags import Flag
from moonpool.compat.commands.signals import stop_event
from moonpool.compat.dummy import PATH
from moonpool.errors import ConfigError, MoonpoolError

FLAGS: Final[dict[str, Flag]] = {
    "host": Flag("str", "0.0.0.0"),
    "port": Flag("int", 50052),
    "global_segment_size": Flag("size", 4 << 30),
    "local_buffer_size": Flag("size", 0),
    "master_server_address": Flag("str", "127.0.0.1:50051"),
    "metadata_server": Flag("str", "P2PHANDSHAKE"),
    "protocol": Flag("str", "tcp"),
    "device_names": Flag("str", ""),
    "tenant_id": Flag("str", "default"),
    "enable_http_server": Flag("bool", False),
    "http_port": Flag("int", 9300),
    "threads": Flag("int", 1),
    "enable_offload": Flag("bool", False),
    "start_offload_rpc_server": Flag("bool", True),
    "use_mmap_arena_allocator": Flag("bool", False),
    "mmap_arena_pool_size": Flag("str", ""),
}
SETUP_TRIES: Final = 30
SETUP_WAIT_S: Final = 1.0

log = logging.getLogger("moonpool.compat")


def main(arguments: Sequence[str] | None = None) -> int:
    """Serve until a signal; return 0, or 2 for what cannot be."""
    logging.basicConfig(level=logging.INFO, format="%(asctime)s %(name)s %(levelname)s %(message)s")
    try:
        given = gflags.parse(sys.argv[1:] if arguments is None else arguments, FLAGS)
        for warning in given.warnings:
            log.warning("mooncake_client: %s", warning)
        said = {name: flag.default for name, flag in FLAGS.items()} | given.values
        asyncio.run(_serve(said))
    except MoonpoolError as error:
        print(f"mooncake_client: {error}", file=sys.stderr)  # noqa: T201
        return 2
    return 0


async def _serve(said: dict[str, Any]) -> None:
    stop = stop_event()
    store = await _store(said, stop)
    if store is None:
        return
    try:
        runner = web.AppRunner(_app(said, store), access_log=None)
        await runner.setup()
        try:
            await _listen(runner, said)
            await stop.wait()
        finally:
            await runner.cleanup()
    finally:
        await asyncio.to_thread(store.close)


async def _store(said: dict[str, Any], stop: asyncio.Event) -> Any:
    """Return a store that lends the segment; wait a while for the master. None after a signal."""
    from moonpool.compat.store import MooncakeDistributedStore

    host = "127.0.0.1" if said["host"] in ("0.0.0.0", "::", "") else said["host"]
    code = 0
    for _ in range(SETUP_TRIES):
        store = MooncakeDistributedStore()
        code = await asyncio.to_thread(
            store.setup,
            host,
            said["metadata_server"],
            said["global_segment_size"],
            said["local_buffer_size"],
            said["protocol"],
            said["device_names"],
            said["master_server_address"],
            tenant_id=said["tenant_id"],
        )
        if code == 0:
            log.info("mooncake_client: lends %d bytes", said["global_segment_size"])
            return store
        try:
            await asyncio.wait_for(stop.wait(), SETUP_WAIT_S)
        except TimeoutError:
            continue
        return None
    raise ConfigError(f"--master_server_address: setup with it ended with {code}")


def _app(said: dict[str, Any], store: Any) -> web.Application:
    async def about(_: web.Request) -> web.Response:
        names = ("master_server_address", "metadata_server", "tenant_id")
        return web.json_response({name: said[name] for name in names})

    async def health(_: web.Request) -> web.Response:
        code = await asyncio.to_thread(store.health_check)
        return web.json_response({"status": code}, status=200 if code == 0 else 503)

    app = web.Application()
    app.router.add_get(PATH, about)
    app.router.add_get("/health", health)
    return app


async def _listen(runner: web.AppRunner, said: dict[str, Any]) -> None:
    ports = [said["port"]] + ([said["http_port"]] if said["enable_http_server"] else [])
    for port in ports:
        try:
            await web.TCPSite(runner, said["host"], port).start()
        except OSError as error:
            raise ConfigError(f"--port: {port} on {said['host']}: {error.strerror}") from None
    log.info("mooncake_client: dummy clients find it at port %d", runner.addresses[0][1])


if __name__ == "__main__":
    sys.exit(main())
