"""What the two sides of the connector tell each other in each step: small, pickled, no tensors."""

from __future__ import annotations

from dataclasses import dataclass, field

from vllm.distributed.kv_transfer.kv_connector.v1.base import (
    KVConnectorMetadata,
    KVConnectorWorkerMetadata,
)

from moonpool.vllm.jobs import LoadDone, LoadJob, SaveDone, SaveJob


@dataclass(slots=True)
class StepMetadata(KVConnectorMetadata):  # type: ignore[misc]
    """Scheduler to worker: the jobs that begin in this step, the loads (by generation) that nobody
    wants any more (they end all the same, as soon as they can), and whether the step computes
    nothing."""

    loads: list[LoadJob] = field(default_factory=list)
    saves: list[SaveJob] = field(default_factory=list)
    cancels: list[int] = field(default_factory=list)
    idle: bool = False


@dataclass(slots=True)
class StepResults(KVConnectorWorkerMetadata):  # type: ignore[misc]
    """Worker to scheduler: the jobs that ended since the last step.

    orders: of each worker (by rank) for which that has changed, the payload's order
    (``layout.RegionTable.order``), "" when it is not ready any more.
    """

    loads: list[LoadDone] = field(default_factory=list)
    saves: list[SaveDone] = field(default_factory=list)
    orders: dict[int, str] = field(default_factory=dict)

    def aggregate(self, other: KVConnectorWorkerMetadata) -> StepResults:
        """Join the results of two workers."""
        return StepResults(
            self.loads + other.loads, self.saves + other.saves, self.orders | other.orders
        )
