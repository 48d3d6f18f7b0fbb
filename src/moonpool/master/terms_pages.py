"""The HTTP side of a master among several: the leader's pages, or that this one stands by."""

from __future__ import annotations

import msgspec
from prometheus_client import CONTENT_TYPE_LATEST, CollectorRegistry, Metric
from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily
from prometheus_client.registry import Collector

from moonpool.master.http import Page, Pages, pages_of
from moonpool.master.metrics import render
from moonpool.master.terms import Lead, Term


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

    def metrics() -> Page:
        found = pages().get("/metrics")
        body = b"" if found is None else found().body
        return Page(body + render(registry), CONTENT_TYPE_LATEST)

    return {
        "/metrics": metrics,
        "/health": lambda: pages().get("/health", standing_by)(),
        "/status": lambda: pages().get("/status", standing_by)(),
    }
