"""Mooncake's metrics, made from what the master counts, for the dashboards that show them.

Each of our requests is a batch: its count stands under the name of the single request and of the
batch. What has no counterpart here is 0, so that no panel is empty.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Final

from moonpool.core.state import VALUE_SIZES
from moonpool.master.service import Service
from moonpool.master.tenant_pages import tenant_metrics

_REQUESTS: Final = {
    "put_start": "PutStart",
    "put_end": "PutEnd",
    "put_revoke": "PutRevoke",
    "get_replica_list": "Get",
    "exist_key": "Exists",
    "remove": "Remove",
    "remove_all": "RemoveAll",
    "mount_segment": "Mount",
    "unmount_segment": "Unmount",
}
_BATCHES: Final = ("put_start", "put_end", "put_revoke", "get_replica_list", "exist_key")
_NO_REQUESTS: Final = (
    *("get_replica_list_by_regex", "remove_by_regex", "remount_segment", "ping", "query_task"),
    *("move_start", "move_end", "move_revoke"),
    *("create_copy_task", "create_move_task", "fetch_tasks", "update_task", "evict_disk_replica"),
)
_NO_BATCHES: Final = ("query_ip", "replica_clear")
_PROMOTIONS: Final = {
    "admitted": "promotions",
    "candidate_admitted": "promotions",
    "candidate_dropped_limit": "promotions_refused",
    "candidate_recorded": "promotions_waited",
    "completed": "promotions_ended",
    "completed_bytes": "promotion_bytes",
    "rejected_cap": "promotions_refused",
}
_NO_PROMOTIONS: Final = (
    *("cancelled", "expired", "rejected_frequency", "rejected_watermark"),
    *("candidate_admission_rejected", "candidate_expired_evaluated"),
    "candidate_expired_unevaluated",
)
_NO_GAUGES: Final = (
    *("ha_oplog_applied_sequence_id", "ha_oplog_last_sequence_id", "ha_oplog_pending_entries"),
    *("ha_oplog_standby_lag", "ha_pending_mutation_queue_size", "ha_standby_state"),
)
"""There is no oplog: nodes tell a new leader what they hold."""
_COPIES: Final = ("repair_copies", "drain_copies", "hot_copies", "asked_copies")
Sample = tuple[str, str, float]
"""Name, type and value."""


def mooncake_metrics(service: Service) -> bytes:
    """Return them in the text format."""
    lines: list[str] = []
    for name, kind, value in samples(service):
        lines += (f"# TYPE {name} {kind}", f"{name} {value:.0f}")
    lines += [*_segments(service), *_value_sizes(service), *tenant_metrics(service)]
    return ("\n".join(lines) + "\n").encode()


def samples(service: Service) -> Iterator[Sample]:
    """Yield all that have no labels."""
    yield from _pool(service)
    yield from _requests(service)
    yield from _eviction(service)


def _pool(service: Service) -> Iterator[Sample]:
    status, state = service.status(), service.state.state
    counters = status.counters
    disks = status.disks
    gauges: dict[str, float] = {
        "master_allocated_bytes": sum(each.used_bytes for each in status.segments),
        "master_total_capacity_bytes": sum(each.info.data_bytes for each in status.segments),
        "master_key_count": status.objects + status.disk_only,
        "master_soft_pin_key_count": len(state.soft),
        "master_active_clients": status.clients,
        "master_allocated_file_size_bytes": sum(each.used_bytes for each in disks),
        "master_total_file_capacity_bytes": sum(each.info.capacity_bytes for each in disks),
        "master_nof_allocated_bytes": 0,
        "master_total_nof_capacity_bytes": 0,
        "master_promotion_in_flight": len(state.disks.promotions),
        "master_put_start_discarded_staging_size": sum(e.pending_bytes for e in status.segments),
        "mem_cache_nums_": status.objects,
        "file_cache_nums_": sum(each.objects for each in disks),
    }
    for name, value in gauges.items():
        yield name, "gauge", value
    for name, counter in (
        ("mem_cache_hit_nums_", "get_hits"),
        ("valid_get_nums_", "get_hits"),
        ("total_get_nums_", "gets"),
        ("master_put_start_discard_cnt", "put_discarded"),
        ("master_put_start_release_cnt", "put_revoked"),
    ):
        yield name, "counter", counters.get(counter, 0)
    for name in ("mem_cache_hit_bytes_total", "file_cache_hit_nums_", "file_cache_hit_bytes_total"):
        yield name, "counter", 0
    yield from _promotions(service)
    for name in _NO_GAUGES:
        yield name, "gauge", 0


def _promotions(service: Service) -> Iterator[Sample]:
    state = service.state.state
    counters = state.counters
    for name, counter in _PROMOTIONS.items():
        yield f"master_promotion_{name}_total", "counter", counters[counter]
    over = counters["promotions"] - len(state.disks.promotions)
    yield "master_promotion_failed_total", "counter", max(0, over - counters["promotions_ended"])
    for name in _NO_PROMOTIONS:
        yield f"master_promotion_{name}_total", "counter", 0


def _requests(service: Service) -> Iterator[Sample]:
    counts, counters = service.counts.requests, service.state.state.counters
    failed = {
        "put_start": counters["put_refused"],
        "get_replica_list": counters["get_misses"],
    }
    items = {
        "put_end": counters["puts"] + counters["put_exists"],
        "put_revoke": counters["put_revoked"],
        "get_replica_list": counters["gets"],
    }
    for name, kind in _REQUESTS.items():
        yield f"master_{name}_requests_total", "counter", counts.get(kind, 0)
        yield f"master_{name}_failures_total", "counter", failed.get(name, 0)
    copies = counters["copies"], sum(counters[name] for name in _COPIES), counters["copies_failed"]
    for name, count in zip(("copy_start", "copy_end", "copy_revoke"), copies, strict=True):
        yield f"master_{name}_requests_total", "counter", count
        yield f"master_{name}_failures_total", "counter", 0
    for name in _NO_REQUESTS:
        yield f"master_{name}_requests_total", "counter", 0
        yield f"master_{name}_failures_total", "counter", 0
    for name in (*_BATCHES, *_NO_BATCHES):
        asked = counts.get(_REQUESTS.get(name, ""), 0)
        yield f"master_batch_{name}_requests_total", "counter", asked
        yield f"master_batch_{name}_failures_total", "counter", 0
        yield f"master_batch_{name}_items_total", "counter", items.get(name, asked)
        yield f"master_batch_{name}_failed_items_total", "counter", failed.get(name, 0)
        yield f"master_batch_{name}_partial_successes_total", "counter", 0
    yield "master_put_start_alloc_failures_total", "counter", counters["put_refused"]
    yield "master_put_start_partial_allocations_total", "counter", counters["put_thin"]


def _eviction(service: Service) -> Iterator[Sample]:
    counters = service.state.state.counters
    evicted = counters["evicted_objects"]
    yield "master_successful_evictions_total", "counter", evicted
    # An attempt without success is a put for which no room could be made.
    tried = evicted + counters["put_retry"] + counters["put_refused"]
    yield "master_attempted_evictions_total", "counter", tried
    yield "master_evicted_key_count", "counter", evicted
    yield "master_evicted_size_bytes", "counter", counters["evicted_bytes"]


def _segments(service: Service) -> Iterator[str]:
    used: dict[str, int] = {}
    total: dict[str, int] = {}
    for each in service.status().segments:
        node = each.info.node
        used[node] = used.get(node, 0) + each.used_bytes
        total[node] = total.get(node, 0) + each.info.data_bytes
    for name, values in (
        ("segment_allocated_bytes", used),
        ("segment_total_capacity_bytes", total),
    ):
        if values:
            yield f"# TYPE {name} gauge"
        for node, value in values.items():
            yield f'{name}{{segment="{_label(node)}"}} {value}'


def _label(text: str) -> str:
    return text.replace("\\", r"\\").replace('"', r"\"").replace("\n", r"\n")


def _value_sizes(service: Service) -> Iterator[str]:
    state = service.state.state
    name, below = "master_value_size_bytes", 0
    yield f"# TYPE {name} histogram"
    for bound, count in zip((*VALUE_SIZES, "+Inf"), state.value_sizes, strict=True):
        below += count
        said = bound if isinstance(bound, str) else f"{bound:.6f}"
        yield f'{name}_bucket{{le="{said}"}} {below}'
    yield f"{name}_sum {state.counters['put_bytes']}"
    yield f"{name}_count {below}"
