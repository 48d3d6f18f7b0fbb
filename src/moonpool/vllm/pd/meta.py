"""What the composite's two sides tell each other in each step, around what its parts tell."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

from vllm.distributed.kv_transfer.kv_connector.v1.base import (
    KVConnectorMetadata,
    KVConnectorWorkerMetadata,
)

from moonpool.vllm.pd.joins import Join


@dataclass(slots=True)
class PDMetadata(KVConnectorMetadata):  # type: ignore[misc]
    """Scheduler to worker. peer is None if the peer's part could not be made."""

    pool: Any = None
    peer: Any = None
    joins: list[Join] = field(default_factory=list)


@dataclass(slots=True)
class PDResults(KVConnectorWorkerMetadata):  # type: ignore[misc]
    """Worker to scheduler. Lists of serials: joins that ended, those whose peer failed, those that
    were given up, and those given up earlier whose blocks are safe now."""

    pool: Any = None
    peer: Any = None
    ended: list[int] = field(default_factory=list)
    failed: list[int] = field(default_factory=list)
    abandoned: list[int] = field(default_factory=list)
    released: list[int] = field(default_factory=list)

    def aggregate(self, other: KVConnectorWorkerMetadata) -> PDResults:
        """Join the results of two workers (one worker is all that is supported now)."""
        return PDResults(
            _joined(self.pool, other.pool),
            _joined(self.peer, other.peer),
            self.ended + other.ended,
            self.failed + other.failed,
            self.abandoned + other.abandoned,
            self.released + other.released,
        )


def _joined(one: Any, other: Any) -> Any:
    if one is None or other is None:
        return one if other is None else other
    return one.aggregate(other)
