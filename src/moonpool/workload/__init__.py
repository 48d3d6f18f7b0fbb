"""Workloads: read traces, synthesise conversations, replay them against an endpoint."""
