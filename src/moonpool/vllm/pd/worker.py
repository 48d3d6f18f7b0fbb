"""The composite's worker side: lets both parts work and says once when a request is filled."""

from __future__ import annotations

import time
from typing import Any

from moonpool.vllm.link import Clock
from moonpool.vllm.log import logger
from moonpool.vllm.pd.guard import Guarded
from moonpool.vllm.pd.joins import Joins, Outcome
from moonpool.vllm.pd.meta import PDMetadata, PDResults
from moonpool.vllm.pd.pulse import Address, Pulse


class PDWorker:
    """All methods are called by the worker's thread, in vLLM's order."""

    def __init__(
        self,
        pool: Any,
        peer: Guarded,
        clock: Clock = time.monotonic,
        pulse: Pulse | None = None,
    ) -> None:
        """pool and peer are connectors of the worker's role."""
        self._pool, self._peer, self._clock = pool, peer, clock
        self.pulse = pulse or Pulse()
        self.joins = Joins()
        self._bad: set[int] = set()
        self._over = Outcome()
        self._meta = PDMetadata()
        self._gone: set[Address] = set()

    def bind(self, meta: PDMetadata) -> None:
        """Take what begins in this step."""
        self._meta = meta
        self._pool.bind_connector_metadata(meta.pool)
        if meta.peer is not None:
            self._peer.call("bind_connector_metadata", None, meta.peer)
        now = self._clock()
        for join in meta.joins:
            self.joins.add(join, now)

    def clear(self) -> None:
        """Forget the step."""
        self._meta = PDMetadata()
        self._pool.clear_connector_metadata()
        self._peer.call("clear_connector_metadata", None)

    def ask_peer(self, name: str, *args: Any, **options: Any) -> None:
        """Call a method of the peer that needs the step's metadata."""
        if self._meta.peer is not None:
            self._peer.call(name, None, *args, **options)

    def results(self, finished: set[str]) -> Any:
        """Return vLLM's results of this step; ``bad_blocks`` belongs to them."""
        from vllm.distributed.kv_transfer.kv_connector.v1.base import KVConnectorTransferResults

        nothing = KVConnectorTransferResults()
        loaded = self._pool.get_transfer_results(finished)
        self.joins.pool_ended(loaded.finished_recving, self._pool.get_block_ids_with_load_errors())
        moved = self._peer.call("get_transfer_results", nothing, finished)
        wrong = self._peer.call("get_block_ids_with_load_errors", set())
        self.joins.peer_ended(moved.finished_recving, moved.failed_recving, wrong)
        now = self._clock()
        self.pulse.watch(self.joins.addresses(now))
        gone = self.pulse.gone()
        for host, port in gone - self._gone:
            logger.warning("moonpool: nobody listens at %s:%d any more", host, port)
        self._gone = gone
        self.joins.give_up(gone, now)
        self._over = self.joins.take(now)
        self._bad |= self._over.bad
        return KVConnectorTransferResults(
            finished_sending=set(moved.finished_sending),
            finished_recving=self._over.finished,
            failed_recving=self._over.restarted,
        )

    def bad_blocks(self) -> set[int]:
        """Return the blocks to compute."""
        bad, self._bad = self._bad, set()
        return bad

    def report(self) -> PDResults | None:
        """Return what the scheduler's side is told."""
        over, self._over = self._over, Outcome()
        told = PDResults(
            self._pool.build_connector_worker_meta(),
            self._peer.call("build_connector_worker_meta", None),
            over.ended,
            over.failed,
            over.abandoned,
            over.released,
        )
        news = told.pool or told.peer or told.ended or told.released
        return told if news else None
