"""Mooncake's pages of tenants' quotas, and the file in which they last."""

from __future__ import annotations

import os
from collections.abc import Iterator
from pathlib import Path
from typing import Any, Final

import msgspec

from moonpool.config_sources import read_file
from moonpool.core import codes
from moonpool.core.catching import settle
from moonpool.core.state import State
from moonpool.core.tenants import NAME_CHARS_MAX, QUOTA_MAX, TENANTS_MAX, Quota
from moonpool.errors import ConfigError
from moonpool.master.admin_answers import failure, json_page
from moonpool.master.http import Asked, Page
from moonpool.master.service import Service

NOT_EMPTY, NO_MODE, FAILED = -1702, -1011, -1
MEMORY: Final = "memory"
"""In place of a file: quotas are forgotten with the master."""
_RANGE: Final = "Tenant quota must be in [1, 2^63 - 1] bytes"


class TenantPages:
    """What is asked and said about quotas."""

    def __init__(self, service: Service) -> None:
        self._service = service

    def serve(self, asked: Asked) -> Page:
        """Answer for the method that was used."""
        if not self._state.tenants.on:
            if asked.method != "GET" and not asked.query.get("tenant_id"):
                return failure(codes.INVALID, "Missing or invalid tenant_id")
            return failure(NO_MODE, status=409)
        name = asked.query.get("tenant_id", "")
        if asked.method in ("GET", "HEAD") and not name:
            return json_page({"success": True, "data": [*map(_about, self._all())]})
        if not name or len(name) > NAME_CHARS_MAX:
            return failure(codes.INVALID, "Missing or invalid tenant_id")
        serve = {"PUT": self._put, "DELETE": self._delete}.get(asked.method, self._get)
        return serve(name, asked)

    @property
    def _state(self) -> State:
        return self._service.state.state

    def _all(self) -> list[Quota]:
        tenants = self._state.tenants
        tenants.scale(self._state.segments.total_bytes())
        return tenants.all()

    def _get(self, name: str, _: Asked) -> Page:
        found = next((each for each in self._all() if each.name == name), None)
        if found is None:
            return failure(codes.NOT_FOUND, status=404)
        return json_page({"success": True, "data": _about(found)})

    def _put(self, name: str, asked: Asked) -> Page:
        try:
            body = msgspec.json.decode(asked.body)
        except (msgspec.DecodeError, UnicodeDecodeError):
            return failure(codes.INVALID, "Invalid JSON body: an object is expected")
        wanted = body.get("requested_quota_bytes") if isinstance(body, dict) else None
        if type(wanted) is not int or not 1 <= wanted <= QUOTA_MAX:
            return failure(codes.INVALID, _RANGE)
        tenants = self._state.tenants
        if tenants.named(name) is None and len(tenants.all()) >= TENANTS_MAX:
            return failure(codes.INVALID, f"over {TENANTS_MAX} tenants")
        if not self._save({each.name: each.requested for each in self._all()} | {name: wanted}):
            return failure(FAILED, status=500)
        settle(self._state)
        tenants.register(name, wanted, self._state.index)
        return self._get(name, asked)

    def _delete(self, name: str, _: Asked) -> Page:
        tenants = self._state.tenants
        found = tenants.named(name)
        if found is None:
            return failure(codes.NOT_FOUND, status=404)
        if found.charged:
            return failure(NOT_EMPTY, status=409)
        if not self._save({e.name: e.requested for e in tenants.all() if e is not found}):
            return failure(FAILED, status=500)
        tenants.drop(found)
        return json_page({"success": True, "data": None})

    def _save(self, quotas: dict[str, int]) -> bool:
        path = self._service.tenant_quotas
        if path in ("", MEMORY):
            return True
        try:
            write_quotas(Path(path), quotas)
        except OSError:
            return False
        return True


def _about(quota: Quota) -> dict[str, Any]:
    return {
        "tenant_id": quota.name,
        "requested_quota_bytes": quota.requested,
        "effective_quota_bytes": quota.effective,
        "charged_bytes": quota.charged,
        "admission_closed": False,
        "over_quota": quota.charged > quota.effective,
        "has_explicit_policy": True,
    }


def read_quotas(path: str) -> dict[str, int]:
    """Return the quotas of a file, none if it is not there yet. Raises ConfigError."""
    if path == MEMORY or not Path(path).exists():
        return {}
    found: dict[str, int] = {}
    listed = read_file(path).get("tenants") or []
    for each in listed if isinstance(listed, list) else [None]:
        name = each.get("name") if isinstance(each, dict) else None
        quota = each.get("quota") if isinstance(each, dict) else None
        sound = isinstance(name, str) and 0 < len(name) <= NAME_CHARS_MAX
        if not sound or type(quota) is not int or not 1 <= quota <= QUOTA_MAX:
            raise ConfigError(f"{path}: tenants: {each!r} has no name, or no quota of 1 or more")
        found[str(name)] = quota
    return found


def write_quotas(path: Path, quotas: dict[str, int]) -> None:
    """Write a file of quotas; there is always a whole one. Raises OSError."""
    lines = ["version: 1", "", "tenants:" if quotas else "tenants: []"]
    for name, quota in sorted(quotas.items()):
        lines += [f"  - name: {msgspec.json.encode(name).decode()}", f"    quota: {quota}"]
    part = path.with_name(f".{path.name}.{os.getpid()}")
    part.write_text("\n".join(lines) + "\n")
    part.replace(path)


def tenant_metrics(service: Service) -> Iterator[str]:
    """Yield Mooncake's metrics of tenants, if there are any."""
    state = service.state.state
    if not state.tenants.on:
        return
    state.tenants.scale(state.segments.total_bytes())
    quotas, prefix = state.tenants.all(), "mooncake_tenant_quota"
    columns = {
        "requested_bytes": [each.requested for each in quotas],
        "effective_bytes": [each.effective for each in quotas],
        "charged_bytes": [each.charged for each in quotas],
        "admission_closed": [0 for _ in quotas],
        "over_quota": [int(each.charged > each.effective) for each in quotas],
        "explicit_policy": [1 for _ in quotas],
    }
    for name, values in columns.items():
        yield f"# TYPE {prefix}_{name} gauge"
        for quota, value in zip(quotas, values, strict=True):
            yield f'{prefix}_{name}{{tenant_id="{_label(quota.name)}"}} {value}'
    sums = {
        "allocatable_capacity_bytes": state.tenants.capacity,
        "requested_bytes_sum": sum(columns["requested_bytes"]),
        "effective_bytes_sum": sum(columns["effective_bytes"]),
    }
    for name, value in sums.items():
        yield f"# TYPE {prefix}_{name} gauge"
        yield f"{prefix}_{name} {value}"
    yield "# TYPE mooncake_tenant_evict_bytes_total counter"
    for quota in quotas:
        who = f'tenant_id="{_label(quota.name)}"'
        yield f"mooncake_tenant_evict_bytes_total{{{who}}} {quota.evicted_bytes}"
    yield "# TYPE mooncake_tenant_quota_reject_total counter"
    for quota in quotas:
        who = f'tenant_id="{_label(quota.name)}",reason="quota_exceeded"'
        yield f"mooncake_tenant_quota_reject_total{{{who}}} {quota.refused}"


def _label(text: str) -> str:
    return text.replace("\\", r"\\").replace('"', r"\"").replace("\n", r"\n")
