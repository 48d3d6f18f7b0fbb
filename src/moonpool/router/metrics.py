"""Counters of the front, in Prometheus' text format."""

from __future__ import annotations

from prometheus_client import CollectorRegistry, Counter, Gauge, Histogram, generate_latest

SECONDS_BUCKETS = (0.01, 0.03, 0.1, 0.3, 1.0, 3.0, 10.0, 30.0, 100.0)


class RouterMetrics:
    """What the front counts. Every front has a registry of its own."""

    def __init__(self) -> None:
        registry = CollectorRegistry()
        self._registry = registry
        self.requests = Counter(
            "moonpool_router_requests",
            "Requests answered, by instance and HTTP status",
            ["instance", "status"],
            registry=registry,
        )
        self.retries = Counter(
            "moonpool_router_retries",
            "Attempts that found an instance dead and went on to another",
            ["instance"],
            registry=registry,
        )
        self.disconnects = Counter(
            "moonpool_router_client_disconnects",
            "Requests whose client left before the end",
            registry=registry,
        )
        self.broken_streams = Counter(
            "moonpool_router_broken_streams",
            "Answers that an instance broke off after the first byte",
            ["instance"],
            registry=registry,
        )
        self.refused = Counter(
            "moonpool_router_refused",
            "Requests refused by the front itself, by reason",
            ["reason"],
            registry=registry,
        )
        self.in_flight = Gauge(
            "moonpool_router_in_flight", "Requests being answered", registry=registry
        )
        self.first_byte_seconds = Histogram(
            "moonpool_router_first_byte_seconds",
            "Time from the request to the first byte of the answer's body",
            buckets=SECONDS_BUCKETS,
            registry=registry,
        )

    def text(self) -> bytes:
        """Return all counters in Prometheus' text format."""
        return generate_latest(self._registry)
