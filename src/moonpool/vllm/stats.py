"""What the connector counts. Fixed-size counters and histograms that merge by addition."""

from __future__ import annotations

import bisect
import threading
from typing import Any

COUNTERS = {
    "lookups": "prefix lookups sent to the master",
    "lookups_late": "lookups whose answer did not come while the engine could wait",
    "lookups_unavailable": "lookups not sent because the pool was out of reach",
    "prefetches": "objects that were on disks only when a request that wants them arrived",
    "lookups_refused": "lookups not sent because too many were waiting",
    "lookups_failed": "lookups that ended in an error",
    "hit_tokens": "tokens that loads from the pool were planned for",
    "short_hits": "hits not loaded because they were shorter than min_load_tokens",
    "slow_hits": "hits not loaded because computing them was expected to be much faster",
    "loads": "loads that ended",
    "loads_failed": "loads of which at least one object could not be had",
    "load_bytes": "bytes loaded",
    "load_objects_failed": "objects that could not be loaded",
    "recomputed_blocks": "blocks reported to the engine for recomputing",
    "saves": "save jobs that ended",
    "save_bytes": "bytes saved",
    "save_objects": "objects saved",
    "save_objects_existing": "objects that somebody else had saved already",
    "save_objects_failed": "objects that could not be saved",
    "save_blocks_deferred": "blocks whose save was put off because too many were pinned",
    "save_blocks_dropped": "blocks whose save was given up",
    "params_ignored": "requests whose kv_transfer_params made no sense, wholly or in part",
    "sessions_ended": "sessions that clients said had ended",
    "session_objects_released": "objects that only those had used",
    "handoffs": "requests prefilled here for another engine",
    "claims": "objects that were said to be computed here",
    "claimed_hits": "hits of which a part was being computed by another engine",
    "handoffs_failed": "of these, those that ended before their prompt was computed",
    "remote_prefills": "loads that waited for another engine's prefill",
    "remote_prefills_failed": "of these, those of which not all came",
    "remote_tokens": "tokens that such loads brought",
    "remote_objects": "objects that came while a load waited, or were there",
    "remote_objects_early": "of these, those that came before their prefill was over",
    "peer_loads": "loads of which a peer connector brings the end, or all",
    "peer_failures": "of these, those that the peer said had failed",
    "peer_timeouts": "of these, those that the peer did not end in time",
    "peer_params_refused": "requests whose kv_transfer_params the peer was not given",
    "corrupt_objects": "objects whose bytes were not those that were saved",
    "mover_failures": "times the process that moves bytes ended by itself or was ended",
    "errors": "exceptions kept from the engine",
}
GAUGES = {
    "pinned_blocks": "blocks of the engine held by saves in progress",
    "save_jobs": "save jobs in progress",
    "loading_requests": "requests that wait for a load",
    "open_handoffs": "requests prefilled here for another engine that are not over",
    "peer_held_blocks": "blocks out of use because a peer that was given up may write to them",
    "pool_connected": "1 while the pool answers",
}
BUCKETS_S = (
    0.0005, 0.001, 0.002, 0.005, 0.01, 0.02, 0.05, 0.1, 0.2, 0.5, 1.0, 2.0, 5.0, 10.0,
)  # fmt: skip
HISTOGRAMS = {
    "lookup_seconds": "time of a lookup, from the courier to its answer",
    "wait_seconds": "time the scheduler waited for a lookup",
    "load_seconds": "time of a load, from its job's arrival at the worker",
    "handoff_seconds": "time of a handoff, from the request's arrival to its last save",
    "await_seconds": "time of a load that waited, from its arrival at the worker until the last "
    "object that came was there",
    "handover_seconds": "time from then until that load ended",
    "save_seconds": "time of a save, from its job's arrival at the worker",
}


class Tally:
    """Counts from several threads until ``take``."""

    def __init__(self) -> None:
        """Start at zero."""
        self._lock = threading.Lock()
        self._data: dict[str, Any] = {}

    def count(self, name: str, amount: int = 1) -> None:
        """Add to a counter."""
        if amount:
            with self._lock:
                self._data[name] = self._data.get(name, 0) + amount

    def set(self, name: str, value: float) -> None:
        """Set a gauge; an unchanged one is not sent again."""
        with self._lock:
            self._data[name] = value

    def observe(self, name: str, seconds: float) -> None:
        """Add an observation to a histogram: its bucket counts, then the sum."""
        with self._lock:
            cells = self._data.setdefault(name, [0] * (len(BUCKETS_S) + 1) + [0.0])
            cells[bisect.bisect_left(BUCKETS_S, seconds)] += 1
            cells[-1] += seconds

    def add(self, data: dict[str, Any]) -> None:
        """Add what another process counted."""
        with self._lock:
            merge(self._data, data)

    def take(self) -> dict[str, Any]:
        """Return what was counted since the last call; empty when nothing was."""
        if not self._data:
            return {}
        with self._lock:
            data, self._data = self._data, {}
        return data


def merge(into: dict[str, Any], other: dict[str, Any]) -> dict[str, Any]:
    """Add ``other`` to ``into`` and return it: counters and cells add up, gauges are the newer."""
    for name, value in other.items():
        if isinstance(value, list):
            old = into.get(name)
            into[name] = list(value) if old is None else [a + b for a, b in zip(old, value)]  # noqa: B905
        elif name in GAUGES:
            into[name] = value
        else:
            into[name] = into.get(name, 0) + value
    return into


def summary(data: dict[str, Any]) -> dict[str, int | float]:
    """Return one number for each thing counted: for the log line."""
    numbers: dict[str, int | float] = {}
    for name, value in data.items():
        if isinstance(value, list):
            count = sum(value[:-1])
            numbers[f"{name}_mean"] = round(value[-1] / count, 6) if count else 0.0
        else:
            numbers[name] = value
    return numbers
