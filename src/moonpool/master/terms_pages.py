"""The HTTP side of a master among several: the leader's pages, or that this one stands by."""

from __future__ import annotations

from collections.abc import Callable

import msgspec
from prometheus_client import CONTENT_TYPE_LATEST, CollectorRegistry, Metric
from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily
from prometheus_client.registry import Collector

from moonpool.master.admin import ADMIN_PATHS
from moonpool.master.admin_answers import failure
from moonpool.master.drain_pages import DRAIN_PATHS
from moonpool.master.http import Asked, Page, Pages, Route
from moonpool.master.metrics import render
from moonpool.master.pages import pages_of
from moonpool.master.terms import Lead, Term

PATHS = ADMIN_PATHS | DRAIN_PATHS


class LeadCollector(Collector):
    """What a master says of its part in the election, whether it leads or not."""

    def __init__(self, lead: Lead) -> None:
        self._lead = lead

    def collect(self) -> list[Metric]:
        """Return the metrics of this moment."""
        leads = float(self._lead.epoch() is not None)
        return [
            GaugeMetricFamily("moonpool_leads", "1 if this master leads.", value=leads),
            CounterMetricFamily(
                "moonpool_terms", "Times that this master began to lead.", value=self._lead.terms
            ),
        ]

    def describe(self) -> list[Metric]:
        """Return nothing: there is no need to."""
        return []


def pages_of_lead(lead: Lead) -> Pages:
    """Return what there is to read, by path."""
    registry = CollectorRegistry(auto_describe=False)
    registry.register(LeadCollector(lead))
    of_term: dict[Term, Pages] = {}

    def pages() -> Pages:
        """Return those of the term, none while this master stands by."""
        term = lead.term
        if term is not None and term not in of_term:
            of_term.clear()
            of_term[term] = pages_of(term)
        elif term is None:
            of_term.clear()
        return {} if term is None else of_term[term]

    def standing_by() -> Page:
        leader = lead.election.leader
        body = {"status": "standby", "leader": "" if leader is None else leader.address}
        return Page(msgspec.json.encode(body))

    def page(path: str) -> Page:
        found = pages().get(path)
        return found() if callable(found) else standing_by()

    def metrics() -> Page:
        body = b"" if lead.term is None else page("/metrics").body
        own = body if isinstance(body, bytes) else b""
        return Page(own + render(registry), CONTENT_TYPE_LATEST)

    def admin(path: str) -> Callable[[Asked], Page]:
        def serve(asked: Asked) -> Page:
            found = pages().get(path)
            return found.serve(asked) if isinstance(found, Route) else _at_rest(path, standing_by)

        return serve

    return {
        "/metrics": metrics,
        "/health": lambda: page("/health"),
        "/status": lambda: page("/status"),
        **{path: Route(methods, admin(path)) for path, methods in PATHS.items()},
    }


def _at_rest(path: str, standing_by: Callable[[], Page]) -> Page:
    """Return what a master that stands by says on one of Mooncake's pages."""
    if path in ("/role", "/ha_status"):
        return Page(b"standby", "text/plain; version=0.0.4")
    if path == "/leader":
        return standing_by()
    return failure(-1010, status=503)
