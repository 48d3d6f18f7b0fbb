"""What an engine's workers report, joined: a job has ended when it has at every worker."""

from __future__ import annotations

from collections.abc import Callable
from typing import TypeVar

from moonpool.vllm.jobs import LoadDone, SaveDone, join_codes, join_loads
from moonpool.vllm.log import logger

Done = TypeVar("Done", LoadDone, SaveDone)


class Ranks:
    """Counts the reports of ``count`` workers. Called by the scheduler's thread."""

    def __init__(self, count: int = 1) -> None:
        """Nothing is reported yet."""
        self._count = count
        self._loads: dict[int, tuple[int, LoadDone]] = {}
        self._saves: dict[int, tuple[int, SaveDone]] = {}
        self._orders: dict[int, str] = {}

    def loaded(self, done: LoadDone) -> LoadDone | None:
        """Return how a load has ended if all workers have reported it."""
        return self._joined(self._loads, done.generation, done, join_loads)

    def saved(self, done: SaveDone) -> SaveDone | None:
        """Return how a save has ended if all workers have reported it."""
        return self._joined(self._saves, done.job_id, done, _join_saves)

    def order(self, rank: int, order: str) -> str:
        """Note what order of bytes a worker has, "" while it is not ready; return that of all."""
        self._orders[rank] = order
        orders = set(self._orders.values())
        if len(self._orders) < self._count or "" in orders:
            return ""
        if len(orders) > 1:
            logger.error(
                "moonpool: serving without the pool: the workers' memory differs in order (%s)",
                ", ".join(sorted(orders)),
            )
            return ""
        return orders.pop()

    def _joined(
        self,
        reports: dict[int, tuple[int, Done]],
        number: int,
        done: Done,
        join: Callable[[Done, Done], Done],
    ) -> Done | None:
        if self._count == 1:
            return done
        count, so_far = reports.pop(number, (0, done))
        joined = join(so_far, done) if count else done
        if count + 1 >= self._count:
            return joined
        reports[number] = count + 1, joined
        return None


def _join_saves(one: SaveDone, other: SaveDone) -> SaveDone:
    return SaveDone(one.job_id, join_codes(one.codes, other.codes))
