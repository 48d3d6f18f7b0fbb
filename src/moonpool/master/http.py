"""The master's HTTP side: /metrics, /health and /status."""

from __future__ import annotations

import msgspec
from aiohttp import web
from prometheus_client import CONTENT_TYPE_LATEST

from moonpool.master.metrics import registry_of, render
from moonpool.master.service import Service


def app_of(service: Service) -> web.Application:
    """Return the application; it reads the service and changes nothing."""
    registry = registry_of(service)

    async def metrics(_: web.Request) -> web.Response:
        return web.Response(body=render(registry), headers={"Content-Type": CONTENT_TYPE_LATEST})

    async def health(_: web.Request) -> web.Response:
        ready = any(segment.ready for segment in service.status().segments)
        body = {"status": "ok", "epoch": service.epoch, "pool": "ready" if ready else "empty"}
        return _json(body)

    async def status(_: web.Request) -> web.Response:
        return _json(as_plain(service.status()))

    app = web.Application(client_max_size=1 << 16)
    app.add_routes(
        [
            web.get("/metrics", metrics),
            web.get("/health", health),
            web.get("/status", status),
        ]
    )
    return app


def as_plain(value: object) -> object:
    """Return structs as dictionaries with their fields' names (on the wire they are arrays)."""
    if isinstance(value, msgspec.Struct):
        return {name: as_plain(getattr(value, name)) for name in value.__struct_fields__}
    if isinstance(value, list | tuple):
        return [as_plain(item) for item in value]
    if isinstance(value, dict):
        return {key: as_plain(item) for key, item in value.items()}
    return value


def _json(body: object) -> web.Response:
    return web.Response(body=msgspec.json.encode(body), content_type="application/json")
