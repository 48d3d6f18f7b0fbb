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

    order: the payload's order (``layout.RegionTable.order``) when the worker has become ready, ""
    when it is not ready any more, None while nothing has changed.
    """

    loads: list[LoadDone] = field(default_factory=list)
    saves: list[SaveDone] = field(default_factory=list)
    order: str | None = None

    def aggregate(self, other: KVConnectorWorkerMetadata) -> StepResults:
        """Join the results of two workers (one worker is all that is supported now)."""
        order = self.order if other.order is None else other.order
        return StepResults(self.loads + other.loads, self.saves + other.saves, order)
