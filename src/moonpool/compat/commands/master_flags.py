"""The flags of ``mooncake_master`` and what becomes of them here."""

from __future__ import annotations

import os
import socket
from typing import Any, Final

from moonpool.compat.commands.gflags import Flag
from moonpool.config import MasterConfig
from moonpool.config_values import is_loopback
from moonpool.errors import ConfigError

REPORT_S = 10.0
"""Its master logs its state so often."""

FLAGS: Final[dict[str, Flag]] = {
    "config_path": Flag("str", ""),
    "rpc_port": Flag("int", 0),
    "port": Flag("int", 50051),
    "rpc_address": Flag("str", "0.0.0.0"),
    "rpc_interface": Flag("str", ""),
    "metrics_port": Flag("int", 9003),
    "metrics_host": Flag("str", "0.0.0.0"),
    "enable_metric_reporting": Flag("bool", True),
    "default_kv_lease_ttl": Flag("ms", 10_000.0),
    "default_kv_soft_pin_ttl": Flag("ms", 1_800_000.0),
    "max_kv_soft_pin_ttl": Flag("ms", 86_400_000.0),
    "allow_evict_soft_pinned_objects": Flag("bool", True),
    "eviction_ratio": Flag("float", 0.05),
    "eviction_high_watermark_ratio": Flag("float", 0.90),
    "client_ttl": Flag("int", 10),
    "put_start_discard_timeout_sec": Flag("int", 30),
    "put_start_release_timeout_sec": Flag("int", 600),
    "enable_multi_tenants": Flag("bool", False),
    "tenant_quota_connector_type": Flag("str", "file"),
    "tenant_quota_connector_uri": Flag("str", ""),
    "enable_ha": Flag("bool", False),
    "ha_backend_type": Flag("str", "etcd"),
    "ha_backend_connstring": Flag("str", ""),
    "etcd_endpoints": Flag("str", ""),
    "cluster_id": Flag("str", "mooncake_cluster"),
    "enable_http_metadata_server": Flag("bool", False),
    "http_metadata_server_host": Flag("str", "0.0.0.0"),
    "http_metadata_server_port": Flag("int", 8080),
}
"""Those that have a meaning here."""

ALIASES: Final = {"client_live_ttl_sec": "client_ttl"}
"""Names that its configuration files have for them."""

HERE_ANYWAY: Final[dict[str, str]] = {
    "rpc_thread_num": "the master has one loop and needs no threads",
    "max_threads": "the master has one loop and needs no threads",
    "rpc_enable_tcp_no_delay": "always so",
    "rpc_conn_timeout_seconds": "a peer's host that is silent for client_ttl is taken for gone",
    "memory_allocator": "there is one allocator",
    "allocation_strategy": "puts go where most is free, or where their client prefers",
    "enable_offload": "each node says for itself whether it has a disk (moonpool node --ssd)",
    "offload_on_evict": "each node says for itself (moonpool node --ssd-policy)",
    "promotion_on_hit": "objects on disks come back to memory when they are read",
    "enable_disk_eviction": "always so",
    "put_start_release_timeout_sec": "space is given to others when its writer has ended, "
    "not after a time",
    "enable_metadata_cleanup_on_timeout": "no metadata server is needed",
    "enable_oplog": "nodes tell a new leader what they hold",
    "enable_snapshot": "nodes tell a new master what they hold",
    "enable_snapshot_restore": "nodes tell a new master what they hold",
}
"""Those whose purpose is met in another way; nobody needs to be warned."""

WITHOUT_EFFECT: Final[dict[str, Flag]] = {
    **dict.fromkeys(
        (
            "rpc_enable_tcp_no_delay", "enable_offload", "offload_on_evict", "promotion_on_hit",
            "enable_disk_eviction", "enable_metadata_cleanup_on_timeout", "enable_oplog",
            "enable_snapshot", "enable_snapshot_restore", "offload_force_evict",
            "enable_kv_events", "kv_events_emit_legacy_compat", "kv_events_emit_object_key",
            "enable_cxl", "use_mmap_arena_allocator", "logtostderr",
            "alsologtostderr", "colorlogtostderr", "log_prefix",
        ),
        Flag("bool", False),
    ),
    **dict.fromkeys(
        (
            "rpc_thread_num", "max_threads", "rpc_conn_timeout_seconds", "memory_allocator",
            "allocation_strategy", "oplog_poll_interval_ms", "oplog_batch_max_entries",
            "batch_oplog_retry_timeout_sec", "offloading_queue_limit", "offload_cap_ratio",
            "promotion_admission_threshold", "promotion_queue_limit",
            "promotion_max_per_heartbeat", "dynamic_replication_mode",
            "dynamic_replication_heat_window_seconds",
            "dynamic_replication_admission_qps_threshold",
            "dynamic_replication_max_memory_replicas", "kv_events_bind_endpoint",
            "kv_events_queue_capacity", "kv_events_backend_id", "kv_events_block_size",
            "kv_events_additional_salt", "kv_events_dp_rank", "kv_events_lora_name",
            "kv_events_model_name", "kv_events_tenant_id", "root_fs_dir",
            "global_file_segment_size", "quota_bytes", "snapshot_interval_seconds",
            "snapshot_child_timeout_seconds",
            "snapshot_retention_count", "snapshot_object_store_type",
            "snapshot_catalog_store_type", "snapshot_catalog_store_connstring",
            "snapshot_backup_dir", "max_total_finished_tasks", "max_total_pending_tasks",
            "max_total_processing_tasks", "pending_task_timeout_sec",
            "processing_task_timeout_sec", "max_retry_attempts", "nof_eviction_ratio",
            "nof_eviction_high_watermark_ratio", "nof_heartbeat_interval_sec",
            "nof_heartbeat_probe_timeout_ms", "nof_heartbeat_failures_threshold", "cxl_path",
            "cxl_size", "pod_name", "pod_namespace", "mmap_arena_pool_size", "minloglevel",
            "stderrthreshold", "log_dir", "v", "vmodule",
        ),
        Flag("str", ""),
    ),
}  # fmt: skip
"""Those that are taken and change nothing; a warning says so, except for HERE_ANYWAY."""

ALL: Final = FLAGS | WITHOUT_EFFECT


def config_of(values: dict[str, Any]) -> MasterConfig:
    """Return the master's configuration. Raises ConfigError for what cannot be."""
    said = {name: flag.default for name, flag in FLAGS.items()} | values
    high = said["eviction_high_watermark_ratio"]
    ratio = said["eviction_ratio"]
    for name in ("eviction_high_watermark_ratio", "eviction_ratio"):
        if not 0.0 <= said[name] <= 1.0:
            raise ConfigError(f"--{name}: {said[name]} is not allowed; allowed: 0.0 to 1.0")
    ports = {"port": said["rpc_port"] or said["port"], "metrics_port": said["metrics_port"]}
    for name, number in ports.items():
        if not 0 <= number <= 65_535:
            raise ConfigError(f"--{name}: {number} is not allowed; allowed: 0 to 65535")
    host = said["rpc_address"]
    if said["rpc_interface"]:
        host = _address_of(said["rpc_interface"])
    ha = _ha(said)
    return MasterConfig(
        host=host,
        port=ports["port"],
        http_host=said["metrics_host"],
        http_port=ports["metrics_port"],
        watermark_high=high,
        watermark_low=max(0.01, high - ratio),
        put_timeout_s=_positive("put_start_discard_timeout_sec", said),
        kv_lease_s=max(0.001, said["default_kv_lease_ttl"] / 1000),
        soft_pin_s=max(0.001, said["default_kv_soft_pin_ttl"] / 1000),
        soft_pin_s_max=max(0.001, said["max_kv_soft_pin_ttl"] / 1000),
        evict_soft_pinned=said["allow_evict_soft_pinned_objects"],
        client_ttl_s=_positive("client_ttl", said),
        summary_s=REPORT_S if said["enable_metric_reporting"] else 0.0,
        tenant_quotas=_tenant_quotas(said),
        token=os.environ.get("MOONPOOL_TOKEN", ""),
        ha=ha,
        advertise=host if ha and host not in ("0.0.0.0", "::") and not is_loopback(host) else "",
    )


def _positive(name: str, said: dict[str, Any]) -> float:
    if said[name] <= 0:
        raise ConfigError(f"--{name}: {said[name]} is not allowed; allowed: 1 or more")
    return float(said[name])


def _tenant_quotas(said: dict[str, Any]) -> str:
    """Return where the quotas of tenants are, nothing without tenants."""
    if not said["enable_multi_tenants"]:
        return ""
    kind, where = said["tenant_quota_connector_type"], said["tenant_quota_connector_uri"]
    if kind != "file":
        raise ConfigError(
            f"--tenant_quota_connector_type: {kind!r} is not allowed; allowed: file, with its path "
            "in --tenant_quota_connector_uri"
        )
    return where.removeprefix("file://") or "memory"


def _ha(said: dict[str, Any]) -> str:
    """Return the election's store of the flags, empty without one."""
    if not said["enable_ha"]:
        return ""
    kind = said["ha_backend_type"]
    where = said["ha_backend_connstring"] or said["etcd_endpoints"]
    if kind == "etcd" and where:
        hosts = where.replace(";", ",").replace("http://", "").removeprefix("etcd://")
        cluster = said["cluster_id"]
        return f"etcd://{hosts}" + (f"/{cluster}" if cluster != "mooncake_cluster" else "")
    if kind == "k8s" and where:
        return f"kubernetes://{where.removeprefix('k8s://')}"
    raise ConfigError(
        f"--ha_backend_type: {kind!r} with {where!r} is not allowed; allowed: etcd with its "
        "endpoints in --ha_backend_connstring or --etcd_endpoints, or k8s with namespace/lease"
    )


def _address_of(interface: str) -> str:
    """Return an IPv4 address of a network interface. Raises ConfigError."""
    import fcntl
    import struct

    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as probe:
        try:
            asked = struct.pack("256s", interface.encode()[:15])
            answer = fcntl.ioctl(probe.fileno(), 0x8915, asked)  # SIOCGIFADDR
        except OSError:
            raise ConfigError(f"--rpc_interface: {interface!r} has no IPv4 address") from None
    return socket.inet_ntoa(answer[20:24])
