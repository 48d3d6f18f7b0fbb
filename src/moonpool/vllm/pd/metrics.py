"""The counts of pool and peer side by side, each as its own connector has them."""

from __future__ import annotations

from typing import Any

from vllm.distributed.kv_transfer.kv_connector.factory import KVConnectorFactory
from vllm.distributed.kv_transfer.kv_connector.v1.metrics import (
    KVConnectorPromMetrics,
    KVConnectorStats,
)

from moonpool.vllm.connector import MoonpoolConnector
from moonpool.vllm.pd.peers import DIALECTS, POOL


class PDStats(KVConnectorStats):  # type: ignore[misc]
    """``data`` holds the stats of each part, under its name."""

    data: dict[str, Any]

    def to_dict(self) -> dict[str, Any]:
        """Return plain data."""
        return {name: part.to_dict() for name, part in self.data.items()}

    def reset(self) -> None:
        """Forget everything."""
        self.data = {}

    def aggregate(self, other: KVConnectorStats) -> PDStats:
        """Add another interval's or worker's counts to this one's."""
        for name, part in other.data.items():
            mine = self.data.get(name)
            self.data[name] = part if mine is None else mine.aggregate(part)
        return self

    def reduce(self) -> dict[str, int | float]:
        """Return one number for each count, all parts together."""
        numbers: dict[str, int | float] = {}
        for part in self.data.values():
            numbers |= part.reduce()
        return numbers

    def is_empty(self) -> bool:
        """Return whether nothing was counted."""
        return all(part.is_empty() for part in self.data.values())


def rebuild(data: dict[str, Any] | None) -> PDStats:
    """Return stats from their plain form, in which each part stands under its connector's name."""
    found = {}
    for name, part in (data or {}).items():
        if isinstance(part, KVConnectorStats):
            found[name] = part
        elif made := _class_of(name).build_kv_connector_stats(data=part):
            found[name] = made
    return PDStats(data=found)


def _class_of(name: str) -> Any:
    if name == POOL or name not in DIALECTS:
        return MoonpoolConnector
    return KVConnectorFactory.get_connector_class_by_name(name)


class PDPromMetrics(KVConnectorPromMetrics):  # type: ignore[misc]
    """The Prometheus metrics of those parts that have any."""

    def __init__(self, parts: dict[str, Any], *common: Any) -> None:
        """parts: the metrics of each part by name; common: as for any connector."""
        super().__init__(*common)
        self._parts = {name: part for name, part in parts.items() if part is not None}

    def observe(self, transfer_stats_data: dict[str, Any], engine_idx: int = 0) -> None:
        """Add one interval's counts."""
        for name, data in (transfer_stats_data or {}).items():
            if name in self._parts:
                self._parts[name].observe(data, engine_idx)
