"""The connector's counts as vLLM wants them: for its log line and for its Prometheus page.

Both or neither: MultiConnector fails on a child that has only one.
"""

from __future__ import annotations

import math
from typing import Any

from vllm.distributed.kv_transfer.kv_connector.v1.metrics import (
    KVConnectorPromMetrics,
    KVConnectorStats,
)

from moonpool.vllm import stats

PREFIX = "vllm:moonpool_"


class MoonpoolStats(KVConnectorStats):  # type: ignore[misc]
    """Counts of one interval. ``data`` holds plain numbers and lists of them."""

    data: dict[str, Any]

    def reset(self) -> None:
        """Forget everything."""
        self.data = {}

    def aggregate(self, other: KVConnectorStats) -> MoonpoolStats:
        """Add another interval's or worker's counts to this one's."""
        stats.merge(self.data, other.data)
        return self

    def reduce(self) -> dict[str, int | float]:
        """Return one number for each count."""
        return stats.summary(self.data)

    def is_empty(self) -> bool:
        """Return whether nothing was counted."""
        return not self.data

    def __getitem__(self, name: str) -> Any:
        """Return an attribute: before vLLM 0.29 MultiConnector asks in this way, in one process."""
        return getattr(self, name)


class MoonpoolPromMetrics(KVConnectorPromMetrics):  # type: ignore[misc]
    """Prometheus metrics named ``vllm:moonpool_*``, one series for each engine."""

    def __init__(
        self,
        vllm_config: Any,
        metric_types: dict[Any, Any],
        labelnames: list[str],
        per_engine_labelvalues: dict[int, list[object]],
    ) -> None:
        """Create all metrics at once, so that zeros are visible."""
        super().__init__(vllm_config, metric_types, labelnames, per_engine_labelvalues)
        self._metrics = {
            name: self._per_engine(self._counter_cls, name, about)
            for name, about in stats.COUNTERS.items()
        }
        self._metrics |= {
            name: self._per_engine(self._gauge_cls, name, about)
            for name, about in stats.GAUGES.items()
        }
        self._metrics |= {
            name: self._per_engine(self._histogram_cls, name, about, buckets=stats.BUCKETS_S)
            for name, about in stats.HISTOGRAMS.items()
        }

    def observe(self, transfer_stats_data: dict[str, Any], engine_idx: int = 0) -> None:
        """Add one interval's counts."""
        for name, value in (transfer_stats_data or {}).items():
            series = self._metrics.get(name)
            if series is None or engine_idx not in series:
                continue
            if isinstance(value, list):
                _observe_cells(series[engine_idx], value)
            elif name in stats.GAUGES:
                series[engine_idx].set(value)
            else:
                series[engine_idx].inc(value)

    def _per_engine(self, cls: Any, name: str, about: str, **extra: Any) -> dict[int, Any]:
        metric = cls(
            name=PREFIX + name,
            documentation=f"moonpool: {about}",
            labelnames=self._labelnames,
            **extra,
        )
        return {
            engine: metric.labels(*values) for engine, values in self.per_engine_labelvalues.items()
        }


def _observe_cells(histogram: Any, cells: list[float]) -> None:
    """Replay merged cells: each observation in its own bucket, as near to the mean as it allows.

    A single observation is replayed exactly; of several the sum is approximate.
    """
    *counts, total = cells
    observations = sum(counts)
    low = 0.0
    for high, count in zip((*stats.BUCKETS_S, float("inf")), counts, strict=True):
        for _ in range(int(count)):
            histogram.observe(min(max(total / observations, math.nextafter(low, 1.0)), high))
        low = high
