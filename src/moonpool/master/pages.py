"""What the master's HTTP side answers, by path."""

from __future__ import annotations

import msgspec
from prometheus_client import CONTENT_TYPE_LATEST

from moonpool.master.admin import admin_pages
from moonpool.master.admin_metrics import mooncake_metrics
from moonpool.master.drain_pages import drain_pages
from moonpool.master.http import Page, Pages
from moonpool.master.metrics import registry_of, render
from moonpool.master.service import Service


def pages_of(service: Service) -> Pages:
    """Return what there is to read, by path."""
    registry = registry_of(service)

    def health() -> Page:
        ready = any(segment.ready for segment in service.status().segments)
        body = {"status": "ok", "epoch": service.epoch, "pool": "ready" if ready else "empty"}
        # The rest is what Mooncake's master says.
        more = {"role": "leader", "ha_state": "serving", "service_ready": True}
        more |= {"leader_address": None, "view_version": None}
        return Page(msgspec.json.encode(body | more))

    def metrics() -> Page:
        return Page(render(registry) + mooncake_metrics(service), CONTENT_TYPE_LATEST)

    return {
        "/metrics": metrics,
        "/health": health,
        "/status": lambda: Page(msgspec.json.encode(as_plain(service.status()))),
        **drain_pages(service),
        **admin_pages(service),
    }


def as_plain(value: object) -> object:
    """Return structs as dictionaries with their fields' names (on the wire they are arrays)."""
    if isinstance(value, msgspec.Struct):
        return {name: as_plain(getattr(value, name)) for name in value.__struct_fields__}
    if isinstance(value, list | tuple):
        return [as_plain(item) for item in value]
    if isinstance(value, dict):
        return {key: as_plain(item) for key, item in value.items()}
    return value
