"""The one line of ``/metrics/summary``, as Mooncake's master writes it."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Final

from moonpool.master.admin_metrics import samples
from moonpool.master.service import Service

_REQUESTS: Final = {
    "PutStart": "put_start",
    "PutEnd": "put_end",
    "PutRevoke": "put_revoke",
    "Get": "get_replica_list",
    "Exist": "exist_key",
    "Del": "remove",
    "DelAll": "remove_all",
}


class Summary:
    """Makes the line; rates are over the time since the line before."""

    def __init__(self, service: Service) -> None:
        self._service = service
        self._values: dict[str, float] = {}
        self._since = service.now() - service.status().uptime_s

    def line(self) -> str:
        """Return the line of this moment."""
        now = self._service.now()
        seconds = max(now - self._since, 1e-3)
        values = {name: value for name, _, value in samples(self._service)}
        before, self._values, self._since = self._values, values, now
        return " | ".join(_parts(values, before, seconds))


def _parts(values: dict[str, float], before: dict[str, float], seconds: float) -> Iterator[str]:
    def rate(name: str) -> float:
        return max(0.0, values[name] - before.get(name, 0.0)) / seconds

    memory = _filled(values["master_allocated_bytes"], values["master_total_capacity_bytes"])
    on_disk = _size(values["master_allocated_file_size_bytes"])
    disks = _size(values["master_total_file_capacity_bytes"])
    yield f"Mem Storage: {memory}"
    yield "NVMe-oF SSD: 0 B / 0 B"
    yield f"SSD Storage: {on_disk} / {disks}"
    pinned = values["master_soft_pin_key_count"]
    yield f"Keys: {values['master_key_count']:.0f} (soft-pinned: {pinned:.0f})"
    yield f"Clients: {values['master_active_clients']:.0f}"
    requests = ", ".join(_request(said, name, rate) for said, name in _REQUESTS.items())
    yield f"Requests (Success/Total per sec): {requests}"
    yield from _eviction(values, before)


def _eviction(values: dict[str, float], before: dict[str, float]) -> Iterator[str]:
    failed = "master_put_start_alloc_failures_total"
    fails = values[failed] - before.get(failed, 0.0)
    fewer = values["master_put_start_partial_allocations_total"]
    done, tried = (
        values[f"master_{which}_evictions_total"] for which in ("successful", "attempted")
    )
    share = f"Success/Attempts={done:.0f}/{tried:.0f}"
    keys, nbytes = values["master_evicted_key_count"], values["master_evicted_size_bytes"]
    gone = f"keys={keys:.0f}, size={_size(nbytes)}"
    yield f"Eviction: {share}, AllocFail={fails:.0f}, PartialAlloc={fewer:.0f}, {gone}"
    yield f"Mem Eviction: {share}, {gone}"
    released, discarded = (values[f"master_put_start_{n}_cnt"] for n in ("release", "discard"))
    staging = _size(values["master_put_start_discarded_staging_size"])
    yield f"Discard: Released/Total={released:.0f}/{discarded:.0f}, StagingSize={staging}"
    yield f"Promotion: in_flight={values['master_promotion_in_flight']:.0f}"


def _request(said: str, name: str, rate: Callable[[str], float]) -> str:
    total = rate(f"master_{name}_requests_total")
    failed = min(total, rate(f"master_{name}_failures_total"))
    return f"{said}={total - failed:.2f}/{total:.2f}"


def _filled(used: float, total: float) -> str:
    share = 100 * used / total if total else 0.0
    return f"{_size(used)} / {_size(total)} ({share:.1f}%)"


def _size(nbytes: float) -> str:
    if nbytes < 1024:
        return f"{nbytes:.0f} B"
    for unit in ("KB", "MB", "GB", "TB"):
        nbytes /= 1024
        if nbytes < 1024 or unit == "TB":
            break
    return f"{nbytes:.2f} {unit}"
