"""``mc_store_rest_server``: the pool behind a REST API, and a segment that it lends."""

from __future__ import annotations

import argparse
import asyncio
import logging
import os
import sys
import time
from collections.abc import Sequence
from typing import Any

from aiohttp import web

from moonpool.compat.commands.rest_answers import body_of, done, error
from moonpool.compat.commands.rest_segments import RestSegments
from moonpool.compat.commands.signals import stop_event
from moonpool.config_sources import read_file
from moonpool.errors import ConfigError, MoonpoolError

BODY_BYTES_MAX = 100 << 20
RETRY_S = 1.0
NAMES = {"device_name": "rdma_devices", "master_server_address": "master_server_addr"}
"""What the configuration calls arguments of ``setup``."""
DEFAULTS = {"global_segment_size": "3355443200", "local_buffer_size": "1073741824"}
_ENVIRONMENT = {
    "MOONCAKE_MASTER": "master_server_address",
    "MOONCAKE_TE_META_DATA_SERVER": "metadata_server",
    "MOONCAKE_PROTOCOL": "protocol",
    "MOONCAKE_DEVICE": "device_name",
    "MOONCAKE_GLOBAL_SEGMENT_SIZE": "global_segment_size",
    "MOONCAKE_LOCAL_BUFFER_SIZE": "local_buffer_size",
    "MOONCAKE_LOCAL_HOSTNAME": "local_hostname",
    "MOONCAKE_TENANT_ID": "tenant_id",
}

log = logging.getLogger("moonpool.compat")


def main(arguments: Sequence[str] | None = None) -> int:
    """Serve until a signal; return 0, or 2 for what cannot be."""
    logging.basicConfig(level=logging.INFO, format="%(asctime)s %(name)s %(levelname)s %(message)s")
    parser = argparse.ArgumentParser(prog="mc_store_rest_server")
    parser.add_argument("--config", help="JSON or YAML file, as MOONCAKE_CONFIG_PATH")
    parser.add_argument("-D", "--define", action="append", default=[], metavar="KEY=VALUE")
    parser.add_argument("--port", type=int, default=8080)
    parser.add_argument("--max-wait-time", type=float, default=60.0, help="seconds")
    said = parser.parse_args(arguments)
    try:
        settings = settings_of(said.config, said.define, os.environ)
        asyncio.run(_serve(settings, said.port, said.max_wait_time))
    except MoonpoolError as error:
        print(f"mc_store_rest_server: {error}", file=sys.stderr)  # noqa: T201
        return 2
    return 0


def settings_of(path: str | None, defined: Sequence[str], env: Any) -> dict[str, str]:
    """Return the arguments of ``setup`` from a file or variables, and definitions, which win.
    Raises ConfigError."""
    path = path or env.get("MOONCAKE_CONFIG_PATH")
    if path:
        found = {name: str(value) for name, value in read_file(path).items()}
    else:
        found = {name: env[key] for key, name in _ENVIRONMENT.items() if env.get(key)}
        found = {"local_hostname": "localhost", "metadata_server": "P2PHANDSHAKE"} | found
    for each in defined:
        name, equals, value = each.partition("=")
        if not equals:
            raise ConfigError(f"-D: {each!r} is not allowed; allowed: KEY=VALUE")
        found[name] = value
    return {NAMES.get(name, name): value for name, value in (DEFAULTS | found).items()}


async def _serve(settings: dict[str, str], port: int, patience_s: float) -> None:
    stop = stop_event()
    store = await _store(settings, patience_s, stop)
    if store is None:
        return
    runner = web.AppRunner(Rest(store).app(), access_log=None)
    try:
        await runner.setup()
        try:
            await web.TCPSite(runner, "0.0.0.0", port).start()
        except OSError as error:
            raise ConfigError(f"--port: {port}: {error.strerror}") from None
        log.info("mc_store_rest_server: REST API on port %d", runner.addresses[0][1])
        await stop.wait()
    finally:
        await runner.cleanup()
        await asyncio.to_thread(store.close)


async def _store(settings: dict[str, str], patience_s: float, stop: asyncio.Event) -> Any:
    from moonpool.compat.store import MooncakeDistributedStore

    deadline = time.monotonic() + patience_s
    while True:
        store = MooncakeDistributedStore()
        code = await asyncio.to_thread(store.setup, settings)
        if code == 0:
            return store
        if time.monotonic() >= deadline:
            raise ConfigError(f"setup with {settings} ended with {code}")
        try:
            await asyncio.wait_for(stop.wait(), RETRY_S)
        except TimeoutError:
            continue
        return None


class Rest:
    """The paths, as Mooncake's service has them."""

    def __init__(self, store: Any) -> None:
        self._store = store

    def app(self) -> web.Application:
        """Return the application."""
        app = web.Application(client_max_size=BODY_BYTES_MAX)
        app.router.add_put("/api/put", self.put)
        app.router.add_get("/api/get/{key}", self.get)
        app.router.add_get("/api/exist/{key}", self.exist)
        app.router.add_delete("/api/remove/{key}", self.remove)
        app.router.add_delete("/api/remove_all", self.remove_all)
        app.router.add_routes(RestSegments(self._store).routes())
        return app

    async def _call(self, name: str, *args: Any) -> Any:
        return await asyncio.to_thread(getattr(self._store, name), *args)

    async def put(self, request: web.Request) -> web.Response:
        """``{"key": ..., "value": ...}``, both text."""
        body = await body_of(request)
        key, value = body.get("key"), body.get("value")
        if not isinstance(key, str) or not key or not isinstance(value, str):
            return error(400, "Missing key or value")
        code = await self._call("put", key, value.encode())
        return done() if code == 0 else error(500, "PUT operation failed")

    async def get(self, request: web.Request) -> web.Response:
        """The bytes of a key, or 404."""
        value = await self._call("get", request.match_info["key"])
        if value == b"":
            there = await self._call("is_exist", request.match_info["key"])
            return error(500, "GET operation failed") if there else error(404, "Key not found")
        return web.Response(body=value, content_type="application/octet-stream")

    async def exist(self, request: web.Request) -> web.Response:
        """``{"exists": true}`` or false."""
        code = await self._call("is_exist", request.match_info["key"])
        if code < 0:
            return error(500, "Exist check failed")
        return web.json_response({"exists": code > 0})

    async def remove(self, request: web.Request) -> web.Response:
        """Remove a key that nobody leases."""
        code = await self._call("remove", request.match_info["key"])
        return done() if code == 0 else error(500, "Remove operation failed")

    async def remove_all(self, request: web.Request) -> web.Response:
        """Remove all that nobody leases."""
        count = await self._call("remove_all")
        if count < 0:
            return error(500, "RemoveAll operation failed")
        return web.json_response({"status": f"success removed {count} keys"})


if __name__ == "__main__":
    sys.exit(main())
