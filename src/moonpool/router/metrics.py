"""Counters of the front, in Prometheus' text format."""

from __future__ import annotations

from prometheus_client import CollectorRegistry, Counter, Gauge, Histogram, generate_latest

SECONDS_BUCKETS = (0.01, 0.03, 0.1, 0.3, 1.0, 3.0, 10.0, 30.0, 100.0)
OWN_BUCKETS = (0.0003, 0.001, 0.002, 0.003, 0.005, 0.01, 0.03, 0.1)
PREFIX = "moonpool_router_"


class RouterMetrics:
    """What the front counts. Every front has a registry of its own."""

    def __init__(self) -> None:
        self._registry = CollectorRegistry()
        count, level = self._counter, self._gauge
        self.requests = count("requests", "Requests answered", "instance", "status")
        self.retries = count("retries", "Attempts that went on to another instance", "instance")
        self.disconnects = count("client_disconnects", "Clients that left before the end")
        self.broken_streams = count(
            "broken_streams", "Answers that broke off after the first byte", "instance"
        )
        self.refused = count("refused", "Requests refused by the front itself", "reason")
        self.in_flight = level("in_flight", "Requests being answered")
        self.waiting = level("waiting", "Requests that wait for their turn")
        self.prompts = count("prompts", "Prompts routed, by how they are known", "kind")
        self.prompt_tokens = count("prompt_tokens", "Prompt tokens that instances counted")
        self.cached_tokens = count("cached_tokens", "Of these, tokens they had in a cache")
        self.foreseen_tokens = count(
            "foreseen_cached_tokens", "Prompt tokens that the router expected in a cache"
        )
        self.tokenizer_mismatches = count(
            "tokenizer_mismatches", "Prompts that an instance counted in other tokens"
        )
        self.pool_feed = level(
            "pool_feed",
            "The pool's changes: current (1 or 0), blocks, changes, gaps, snapshots",
            "what",
        )
        self.pool_lookups = count("pool_lookups", "Questions to the pool", "outcome")
        self.event_batches = count("kv_event_batches", "Batches of KV events", "instance")
        self.event_gaps = count("kv_event_gaps", "Gaps in an instance's KV events", "instance")
        self.events_lost = count(
            "kv_events_lost", "Batches that no replay could bring back", "instance"
        )
        self.events_alive = level("kv_events_alive", "Whether events are followed", "instance")
        self.index_blocks = level("index_blocks", "Blocks in the prefix index")
        self.exact = level("exact_prompts", "1: prompts are known as tokens, 0: as text only")
        self.health_checks = count("health_checks", "Health checks", "instance", "outcome")
        self.pd_requests = count(
            "pd_requests", "Requests where prefill and decode are split, by what became of them",
            "path", "reason",
        )  # fmt: skip
        self.pd_fallbacks = count(
            "pd_fallbacks", "Prefills that failed, by the engine and why", "instance", "reason"
        )
        self.pd_cancelled = count("pd_cancelled", "Prefills ended before they were done")
        self.reloads = count("reloads", "Configurations read again", "outcome")
        self.first_byte_seconds = self._histogram(
            "first_byte_seconds", "From the request to the answer's first byte", SECONDS_BUCKETS
        )
        self.prefill_seconds = self._histogram(
            "prefill_seconds", "What prefills on engines of their own took", SECONDS_BUCKETS
        )
        self.own_seconds = self._histogram(
            "own_seconds", "What the router itself takes before it sends", OWN_BUCKETS
        )

    def text(self) -> bytes:
        """Return all counters in Prometheus' text format."""
        return generate_latest(self._registry)

    def forget(self, instance: str) -> None:
        """Drop the gauges of an instance that has left; its counters stay."""
        self.events_alive.remove_by_labels({"instance": instance})

    def _counter(self, name: str, about: str, *labels: str) -> Counter:
        return Counter(PREFIX + name, about, labels, registry=self._registry)

    def _gauge(self, name: str, about: str, *labels: str) -> Gauge:
        return Gauge(PREFIX + name, about, labels, registry=self._registry)

    def _histogram(self, name: str, about: str, buckets: tuple[float, ...]) -> Histogram:
        return Histogram(PREFIX + name, about, buckets=buckets, registry=self._registry)
