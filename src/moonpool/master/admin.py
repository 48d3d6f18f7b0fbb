"""The pages of Mooncake's master, with its answers, so that scripts and dashboards go on working.

Names of segments are those of their nodes: that is what puts may prefer. What changes something
wants the master's token, if it has one, as ``Authorization: Bearer TOKEN``.
"""

from __future__ import annotations

import hmac
from collections.abc import Callable, Iterator, Mapping
from typing import Any, Final

from moonpool.core import codes
from moonpool.core.keys import parse, readable
from moonpool.core.messages import DrainStatus, List, Listed, Matched, RemoveAll, SegmentStatus
from moonpool.errors import InvalidKeyError
from moonpool.master.admin_answers import NAMES, failure, json_page
from moonpool.master.admin_drains import Drains
from moonpool.master.admin_summary import Summary
from moonpool.master.http import Asked, Page, Pages, Route
from moonpool.master.service import Service
from moonpool.master.tenant_pages import TenantPages

TEXT = "text/plain; version=0.0.4"
KEYS_A_PART = 1024
KEYS_ASKED_MAX = 1024
_GET, _POST = ("GET", "HEAD"), ("POST",)
ADMIN_PATHS: Final[dict[str, tuple[str, ...]]] = {
    "/metrics/summary": _GET,
    "/role": _GET,
    "/ha_status": _GET,
    "/leader": _GET,
    "/kv_events/status": _GET,
    "/query_key": _GET,
    "/batch_query_keys": _GET,
    "/get_all_keys": _GET,
    "/get_all_segments": _GET,
    "/get_segments_detail": _GET,
    "/query_segment": _GET,
    "/api/v1/segments/status": _GET,
    "/api/v1/drain_jobs": _POST,
    "/api/v1/drain_jobs/query": _GET,
    "/api/v1/drain_jobs/cancel": _POST,
    "/api/v1/tenant_quotas": ("GET", "PUT", "DELETE"),
    "/api/v1/remove_all": _POST,
}
"""Which methods each of the pages has."""


def admin_pages(service: Service) -> Pages:
    """Return the pages by path."""
    admin = Admin(service)
    serve: dict[str, Callable[[Asked], Page]] = {
        "/metrics/summary": admin.summary,
        "/role": lambda _: Page(b"leader", TEXT),
        "/ha_status": lambda _: Page(b"serving", TEXT),
        "/leader": admin.leader,
        "/kv_events/status": admin.kv_events,
        "/query_key": admin.query_key,
        "/batch_query_keys": admin.query_keys,
        "/get_all_keys": admin.all_keys,
        "/get_all_segments": admin.all_segments,
        "/get_segments_detail": admin.segments_detail,
        "/query_segment": admin.query_segment,
        "/api/v1/segments/status": admin.segment_status,
        "/api/v1/drain_jobs": admin.allowed(admin.drains.create),
        "/api/v1/drain_jobs/query": admin.drains.query,
        "/api/v1/drain_jobs/cancel": admin.allowed(admin.drains.cancel),
        "/api/v1/tenant_quotas": admin.tenant_quotas,
        "/api/v1/remove_all": admin.allowed(admin.remove_all),
    }
    return {path: Route(methods, serve[path]) for path, methods in ADMIN_PATHS.items()}


class Admin:
    """Answers out of the service."""

    def __init__(self, service: Service) -> None:
        self._service = service
        self._summary = Summary(service)
        self.drains = Drains(service)
        self._tenants = TenantPages(service)

    def allowed(self, serve: Callable[[Asked], Page]) -> Callable[[Asked], Page]:
        """Return what serves those who say the master's token, if it has one."""

        def checked(asked: Asked) -> Page:
            return self._refused(asked) or serve(asked)

        return checked

    # --- the master itself --------------------------------------------------------------------

    def summary(self, _: Asked) -> Page:
        """Return the line that Mooncake's users debug from."""
        line = self._summary.line()
        head = "role=leader, state=serving, service_ready=true, master="
        return Page(f"{head}{{{line}}}".encode(), TEXT)

    def leader(self, _: Asked) -> Page:
        """Return that no election is known here; see ``moonpool status`` for those there are."""
        return json_page({"present": False, "leader_address": None, "view_version": None})

    def kv_events(self, _: Asked) -> Page:
        """Return that events are not published by the master."""
        counts = ("published_batches", "published_events", "dropped_events")
        body: dict[str, Any] = {"enabled": False, **dict.fromkeys(counts, 0)}
        return json_page(body | {"skipped_unparsed_keys": 0})

    # --- keys -----------------------------------------------------------------------------------

    def query_key(self, asked: Asked) -> Page:
        """Return where the replicas of ``key`` are."""
        found = self._places(asked.query.get("key", ""))
        if found is None:
            return failure(codes.NOT_FOUND, status=404)
        return json_page({"success": True, "data": found})

    def query_keys(self, asked: Asked) -> Page:
        """Return the same for several ``keys``, with commas between them."""
        keys = [key for key in asked.query.get("keys", "").split(",") if key][:KEYS_ASKED_MAX]
        if not keys:
            text = "No keys provided. Use ?keys=key1,key2,..."
            return json_page({"success": False, "error": text}, 400)
        return json_page({"success": True, "data": {key: self._about(key) for key in keys}})

    def _about(self, key: str) -> dict[str, Any]:
        found = self._places(key)
        error = None if found is not None else NAMES[codes.NOT_FOUND]
        others = dict.fromkeys(("disk_values", "local_disk_values", "nof_values"))
        return {"ok": error is None, "error": error, "values": found, **others}

    def _places(self, key: str) -> list[dict[str, Any]] | None:
        state = self._service.state.state
        try:
            found = state.index.find(parse(key))
        except (InvalidKeyError, UnicodeEncodeError):
            return None
        if found is None:
            return None
        where = found.where
        return [
            {
                "size_": where.size,
                "buffer_address_": slot.offset,
                "protocol_": "tcp",
                "transport_endpoint_": state.segments.by_handle[slot.segment].info.address,
            }
            for slot in where.slots
        ]

    def all_keys(self, _: Asked) -> Page:
        """Return all keys, a line each. Newline and backslash are escaped."""
        return Page(self._keys(), TEXT)

    def _keys(self) -> Iterator[bytes]:
        after = 0
        while True:
            request = List(None, b"", after, KEYS_A_PART)
            page = self._service.state.handle(request, "", self._service.now()).reply
            if not isinstance(page, Listed):
                return
            yield b"".join(_line(each.key) for each in page.objects)
            after = page.next
            if not after:
                return

    def remove_all(self, asked: Asked) -> Page:
        """Remove everything that is not leased; with ``force`` the rest too."""
        force = asked.query.get("force", "").lower() in ("1", "true")
        request = RemoveAll(b"", force)
        reply = self._service.change(request)
        count = reply.count if isinstance(reply, Matched) else 0
        return json_page({"success": True, "removed_count": count})

    def _refused(self, asked: Asked) -> Page | None:
        token = self._service.token
        if not token or hmac.compare_digest(asked.token.encode(errors="replace"), token):
            return None
        return failure(codes.ILLEGAL_CLIENT, "the master's token is needed", 401)

    # --- segments -------------------------------------------------------------------------------

    def _named(self) -> dict[str, list[SegmentStatus]]:
        named: dict[str, list[SegmentStatus]] = {}
        for each in self._service.status().segments:
            named.setdefault(each.info.node, []).append(each)
        return named

    def _drains(self) -> dict[str, DrainStatus]:
        return {each.node: each for each in self._service.status().drains}

    def all_segments(self, _: Asked) -> Page:
        """Return the names of all segments, a line each."""
        return Page("".join(f"{name}\n" for name in self._named()).encode(), TEXT)

    def query_segment(self, asked: Asked) -> Page:
        """Return how full ``segment`` is."""
        name = asked.query.get("segment", "")
        parts = self._named().get(name)
        if parts is None:
            return Page(b"Failed to query segment", TEXT, 500)
        used, total = _filled(parts)
        body = f"{name}\nUsed(bytes): {used}\nCapacity(bytes) : {total}\n"
        return Page(body.encode(), TEXT)

    def segment_status(self, asked: Asked) -> Page:
        """Return whether ``segment`` takes puts."""
        name = asked.query.get("segment", "")
        if not name:
            return failure(codes.INVALID, "Missing segment query parameter")
        parts = self._named().get(name)
        if parts is None:
            return failure(-101, status=404)
        number, said = _status_of(parts, self._drains())
        body = {"success": True, "segment": name, "status": number, "status_name": said}
        return json_page(body | {"error_code": 0, "error_message": ""})

    def segments_detail(self, _: Asked) -> Page:
        """Return what is known of all segments."""
        drains = self._drains()
        segments = [
            _detail(name, parts, self._service.epoch) | {"status": _status_of(parts, drains)[1]}
            for name, parts in self._named().items()
        ]
        return json_page({"total_segments": len(segments), "segments": segments})

    def tenant_quotas(self, asked: Asked) -> Page:
        """Return or change the quotas of tenants."""
        refused = None if asked.method in _GET else self._refused(asked)
        return refused or self._tenants.serve(asked)


def _line(key: bytes) -> bytes:
    escaped = readable(key).replace("\\", "\\\\").replace("\n", "\\n")
    return escaped.encode("utf-8", "replace") + b"\n"


def _filled(parts: list[SegmentStatus]) -> tuple[int, int]:
    return sum(each.used_bytes for each in parts), sum(each.info.data_bytes for each in parts)


def _status_of(parts: list[SegmentStatus], drains: Mapping[str, DrainStatus]) -> tuple[int, str]:
    drain = drains.get(parts[0].info.node)
    if drain is not None:
        return (3, "DRAINED") if drain.empty else (2, "DRAINING")
    return (1, "OK") if all(each.ready for each in parts) else (0, "UNDEFINED")


def _detail(name: str, parts: list[SegmentStatus], epoch: int) -> dict[str, Any]:
    used, total = _filled(parts)
    info = parts[0].info
    return {
        "segment_name": name,
        "segment_id": f"{epoch}-{info.handle}",
        "client_id": info.node,
        "base_address": "0x0",
        "size_bytes": total,
        "size_human": f"{total / (1 << 30):.4f} GiB",
        "te_endpoint": info.address,
        "protocol": "tcp",
        "allocator_used_bytes": used,
        "allocator_capacity_bytes": total,
        "allocator_usage_percent": 100 * used / total if total else 0.0,
    }
