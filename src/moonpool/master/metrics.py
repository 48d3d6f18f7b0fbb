"""Prometheus metrics, made from the state when they are asked for."""

from __future__ import annotations

from collections.abc import Iterable, Iterator

from prometheus_client import CollectorRegistry, Metric, generate_latest
from prometheus_client.core import (
    CounterMetricFamily,
    GaugeMetricFamily,
    HistogramMetricFamily,
)
from prometheus_client.registry import Collector

from moonpool.core.messages import Status
from moonpool.master.counts import BUCKETS, Counts
from moonpool.master.service import Service

FINEST_BUCKET = 10
"""Durations below 2**10 ns are not told apart."""


class PoolCollector(Collector):
    """Reads the service at scrape time, so that metrics cost requests next to nothing."""

    def __init__(self, service: Service) -> None:
        self._service = service

    def collect(self) -> Iterable[Metric]:
        """Return the metrics of this moment."""
        status = self._service.status()
        yield from _pool(status)
        yield from _segments(status)
        yield from _disks(status)
        yield from _drains(status)
        for name, count in sorted(status.counters.items()):
            yield CounterMetricFamily(f"moonpool_{name}", f"{name} since start.", value=count)
        yield from _requests(self._service.counts)
        yield GaugeMetricFamily(
            "moonpool_connections", "Open connections.", value=len(self._service.sessions)
        )

    def describe(self) -> Iterable[Metric]:
        """Return nothing: the names depend on the state."""
        return ()


def registry_of(service: Service) -> CollectorRegistry:
    """Return a registry of its own with the service's metrics."""
    registry = CollectorRegistry(auto_describe=False)
    registry.register(PoolCollector(service))
    return registry


def render(registry: CollectorRegistry) -> bytes:
    """Return the text exposition."""
    return generate_latest(registry)


def _pool(status: Status) -> Iterator[Metric]:
    capacity = sum(segment.info.data_bytes for segment in status.segments)
    used = sum(segment.used_bytes for segment in status.segments)
    pending = sum(segment.pending_bytes for segment in status.segments)
    for name, about, value in (
        ("epoch", "Epoch of the master; grows with each restart.", status.epoch),
        ("uptime_seconds", "Seconds since start.", status.uptime_s),
        ("capacity_bytes", "Space for payloads in all segments.", capacity),
        ("used_bytes", "Space taken.", used),
        ("pending_bytes", "Space that waits for a writer to be gone.", pending),
        ("objects", "Objects in memory.", status.objects),
        ("disk_only_objects", "Objects that are on a disk only.", status.disk_only),
        ("thin_objects", "Objects on fewer hosts than they were put for.", status.thin),
        ("spare_objects", "Objects with more copies, as they are read much.", status.spare),
        ("copying_objects", "Objects on their way from node to node.", status.copying),
        ("puts_in_progress", "Puts that were started and not ended.", status.puts_in_progress),
        ("leases", "Live leases.", status.leases),
        ("clients", "Clients that are connected.", status.clients),
    ):
        yield GaugeMetricFamily(f"moonpool_{name}", about, value=value)


def _segments(status: Status) -> Iterator[Metric]:
    labels = ("node", "segment")
    capacity = GaugeMetricFamily("moonpool_segment_capacity_bytes", "Space.", labels=labels)
    used = GaugeMetricFamily("moonpool_segment_used_bytes", "Space taken.", labels=labels)
    ready = GaugeMetricFamily("moonpool_segment_ready", "1 if it takes puts.", labels=labels)
    for segment in status.segments:
        where = (segment.info.node, segment.info.name)
        capacity.add_metric(where, segment.info.data_bytes)
        used.add_metric(where, segment.used_bytes)
        ready.add_metric(where, float(segment.ready))
    yield from (capacity, used, ready)


def _disks(status: Status) -> Iterator[Metric]:
    labels = ("node", "policy")
    families = [
        ("capacity_bytes", "Space on a node's disk.", "capacity"),
        ("used_bytes", "Bytes of the objects on it.", "used"),
        ("objects", "Objects on it.", "objects"),
        ("offloading_bytes", "On their way from memory.", "offloading"),
        ("promoting_bytes", "On their way to memory.", "promoting"),
    ]
    for name, about, what in families:
        family = GaugeMetricFamily(f"moonpool_disk_{name}", about, labels=labels)
        for disk in status.disks:
            values = {
                "capacity": disk.info.capacity_bytes,
                "used": disk.used_bytes,
                "objects": disk.objects,
                "offloading": disk.offloading_bytes,
                "promoting": disk.promoting_bytes,
            }
            family.add_metric((disk.info.node, disk.info.policy), values[what])
        if status.disks:
            yield family


def _drains(status: Status) -> Iterator[Metric]:
    families = [
        ("objects", "Objects and puts that a node still has, which is being drained."),
        ("nbytes", "Their bytes."),
        ("copying_bytes", "Of these on their way to other nodes."),
        ("stuck", "Objects for which other nodes have no room."),
        ("disk_only", "Objects that only its disk has."),
    ]
    for name, about in families if status.drains else ():
        shown = "bytes" if name == "nbytes" else name
        family = GaugeMetricFamily(f"moonpool_drain_{shown}", about, labels=("node",))
        for each in status.drains:
            family.add_metric((each.node,), getattr(each, name))
        yield family


def _requests(counts: Counts) -> Iterator[Metric]:
    requests = CounterMetricFamily("moonpool_requests", "Requests served.", labels=("kind",))
    seconds = HistogramMetricFamily(
        "moonpool_request_seconds", "Time in the master.", labels=("kind",)
    )
    for kind, count in counts.requests.items():
        if count:
            requests.add_metric((kind,), count)
            seconds.add_metric(
                (kind,), _buckets(counts.durations[kind]), counts.spent_ns[kind] / 1e9
            )
    yield from (requests, seconds)
    yield CounterMetricFamily(
        "moonpool_refused", "Connections closed for what their peer sent.", value=counts.refused
    )
    yield CounterMetricFamily("moonpool_bugs", "Requests that hit a bug.", value=counts.bugs)


def _buckets(durations: list[int]) -> list[tuple[str, float]]:
    total = sum(durations[:FINEST_BUCKET])
    buckets: list[tuple[str, float]] = []
    for power in range(FINEST_BUCKET, BUCKETS - 1):
        total += durations[power]
        buckets.append((repr((1 << power) / 1e9), total))
    return [*buckets, ("+Inf", total + durations[BUCKETS - 1])]
