"""The composite's scheduler side: who fills which blocks of a request, and what peers may be told.

Nothing here raises for what a request says. All methods are called by the scheduler's thread.
"""

from __future__ import annotations

import contextlib
import itertools
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

from moonpool.vllm.log import logger
from moonpool.vllm.pd import joins
from moonpool.vllm.pd.meta import PDMetadata, PDResults
from moonpool.vllm.pd.params import Asked, Dialect, address_of
from moonpool.vllm.pd.peers import PeerSettings
from moonpool.vllm.pd.quarantine import Quarantine
from moonpool.vllm.pd.suffix import Suffix
from moonpool.vllm.pd.transfers import Fetched, Transfers
from moonpool.vllm.stats import Tally

REASONS_LOGGED = 64


@dataclass(frozen=True, slots=True)
class _Offer:
    """Tokens of a request: its own, the pool's after them, the peer's after those."""

    local: int
    pool: int
    peer: int


class PDScheduler:
    """Decides. pool and peer are connectors; what the peer raises is kept from the engine."""

    def __init__(
        self,
        pool: Any,
        peer: Any,
        dialect: Dialect,
        settings: PeerSettings,
        block_size: int,
        tally: Tally,
    ) -> None:
        """block_size: tokens in one of vLLM's blocks."""
        self._pool, self._peer, self._dialect, self._settings = pool, peer, dialect, settings
        self._block_size, self._tally = block_size, tally
        self.quarantine = Quarantine(settings.peer_held_ratio)
        self._serials = itertools.count(1)
        self._offers: dict[str, _Offer] = {}
        self._new: list[joins.Join] = []
        self._open: dict[int, joins.Join] = {}
        self._abandoned: dict[int, str] = {}
        self._planned = ("", 0)
        self._begun: set[str] = set()
        self._sending: dict[str, int] = {}
        self._transfers, self._fetched = Transfers(), Fetched()
        self._block_pool: Any = None
        self._refused = 0

    def bind(self, block_pool: Any) -> None:
        """Take vLLM's block pool."""
        self._block_pool = block_pool
        self.quarantine.bind(block_pool)

    # --- a request arrives ---------------------------------------------------------------------

    def on_new_request(self, request: Any) -> None:
        """Replace the request's parameters by what is valid of them."""
        tokens = int(request.num_prompt_tokens)
        asked = Asked(tokens, -(-tokens // self._block_size))
        params, why = self._dialect.clean(request.kv_transfer_params, asked)
        request.kv_transfer_params = None
        if params is not None:
            params, why = self._accepted(request, params)
        if why:
            self._refuse(request, why)
        with self._hidden(request):
            self._pool.on_new_request(request)
        if params is not None:
            request.kv_transfer_params = params
            self._peer.on_new_request(request)

    def _accepted(self, request: Any, params: dict[str, Any]) -> tuple[dict[str, Any] | None, str]:
        if params["do_remote_prefill"] and not self._fetched.first(params):
            return None, "fetched before"
        transfer = params.get("transfer_id")
        if not params["do_remote_decode"] or transfer is None:
            return params, ""
        if not self._transfers.take(transfer, request.request_id):
            return None, "transfer_id is in use"
        return params, ""

    def _refuse(self, request: Any, why: str) -> None:
        self._tally.count("peer_params_refused")
        self._refused += 1
        if self._refused <= REASONS_LOGGED:
            logger.warning(
                "moonpool: kv_transfer_params of request %s are not used: %s",
                request.request_id,
                why,
            )

    @contextlib.contextmanager
    def _hidden(self, request: Any) -> Iterator[None]:
        """Keep the parameters from the pool's connector: they are the peer's."""
        params = request.kv_transfer_params
        request.kv_transfer_params = None
        try:
            yield
        finally:
            request.kv_transfer_params = params

    # --- it is admitted ------------------------------------------------------------------------

    def matched(self, request: Any, local: int) -> tuple[int | None, bool]:
        """Return how many tokens past the engine's own pool and peer bring together."""
        self._offers.pop(request.request_id, None)
        with self._hidden(request):
            gain, is_async = self._pool.get_num_new_matched_tokens(request, local)
        if gain is None:
            return None, False
        if not self._may_ask(request):
            return gain, is_async
        count, _ = self._peer.get_num_new_matched_tokens(request, local + gain)
        count = min(count or 0, request.num_tokens - local - gain)
        self._offers[request.request_id] = _Offer(local, gain, max(0, count))
        return (gain + count, True) if count > 0 else (gain, is_async)

    def _may_ask(self, request: Any) -> bool:
        params = request.kv_transfer_params
        if not params or not params.get("do_remote_prefill"):
            return False
        return not self.quarantine.full and request.request_id not in self._abandoned.values()

    def after_alloc(self, request: Any, blocks: Any, tokens: int) -> None:
        """Divide the blocks of the tokens that were offered."""
        offer = self._offers.pop(request.request_id, None)
        if tokens <= 0 or offer is None:
            with self._hidden(request):
                self._pool.update_state_after_alloc(request, blocks, max(0, tokens))
            if request.kv_transfer_params:
                self._begun.add(request.request_id)
                self._peer.update_state_after_alloc(request, blocks, 0)
            return
        from_pool = min(offer.pool, tokens)
        from_peer = tokens - from_pool
        self._planned = (request.request_id, from_pool)
        if from_peer:
            self._join(request, blocks, offer, from_pool, tokens)
        with self._hidden(request):
            self._pool.update_state_after_alloc(request, blocks, from_pool)
        first = (offer.local + from_pool) // self._block_size
        last = -(-(offer.local + tokens) // self._block_size)
        suffix = Suffix(blocks, first, last) if from_peer else blocks
        self._peer.update_state_after_alloc(request, suffix, from_peer)

    def pool_tokens(self, request: Any) -> int:
        """Return how many of the tokens that were just given blocks the pool brings."""
        request_id, tokens = self._planned
        return tokens if request_id == request.request_id else 1 << 62

    def _join(self, request: Any, blocks: Any, offer: _Offer, from_pool: int, tokens: int) -> None:
        (ids,) = blocks.get_block_ids()
        first = offer.local // self._block_size
        last = -(-(offer.local + tokens) // self._block_size)
        serial = next(self._serials)
        join = joins.make(
            serial,
            request.request_id,
            list(ids[first:last]),
            from_pool // self._block_size,
            self._settings.peer_timeout_s,
            address_of(request.kv_transfer_params),
        )
        self._open[serial] = join
        self._new.append(join)
        self._tally.count("peer_loads")

    # --- each step -----------------------------------------------------------------------------

    def metadata(self, output: Any) -> PDMetadata:
        """Return what begins in this step."""
        joins_now, self._new = self._new, []
        self._transfers.new_step()
        return PDMetadata(
            self._pool.build_connector_meta(output),
            self._peer.build_connector_meta(output),
            joins_now,
        )

    def update(self, output: Any) -> None:
        """Take in the worker's results, before vLLM frees blocks for them."""
        results = output.kv_connector_worker_meta
        own = results if isinstance(results, PDResults) else PDResults()
        for serial in own.abandoned:
            self._abandon(serial)
        for serial in own.ended:
            self._open.pop(serial, None)
        for serial in own.released:
            self._abandoned.pop(serial, None)
            self.quarantine.release(serial)
        self._tally.count("peer_failures", len(own.failed))
        self._tally.count("peer_timeouts", len(own.abandoned))
        if own.abandoned or own.released:
            self._tally.set("peer_held_blocks", self.quarantine.blocks)
        try:
            for part, said in ((self._pool, own.pool), (self._peer, own.peer)):
                output.kv_connector_worker_meta = said
                part.update_connector_output(output)
        finally:
            output.kv_connector_worker_meta = results
        self._sent(output)

    def _abandon(self, serial: int) -> None:
        join = self._open.get(serial)
        if join is None:
            return
        self._abandoned[serial] = join.request_id
        self.quarantine.hold(serial, [int(block) for block in join.block_ids[join.split :]])
        logger.warning(
            "moonpool: the peer did not fill %d blocks of request %s; they are computed",
            len(join.block_ids) - join.split,
            join.request_id,
        )

    def _sent(self, output: Any) -> None:
        """vLLM ends itself if it is told of a request that it does not hold."""
        told = output.finished_sending or ()
        known = {request_id for request_id in told if self._sending.pop(request_id, None)}
        if len(known) < len(told):
            output.finished_sending = known or None
        for request_id in known:
            self._transfers.give_back(request_id)

    # --- it ends -------------------------------------------------------------------------------

    def finished(self, request: Any, block_ids: tuple[list[int], ...]) -> tuple[bool, Any]:
        """Return whether the peer still needs the blocks, and what it says to the client."""
        self._offers.pop(request.request_id, None)
        with self._hidden(request):
            self._pool.request_finished_all_groups(request, block_ids)
        delays, said = False, None
        if request.kv_transfer_params:
            delays, said = self._peer_finished(request, block_ids)
        self._begun.discard(request.request_id)
        if delays:
            self._sending[request.request_id] = max(1, len(block_ids[0]) if block_ids else 1)
        else:
            self._transfers.give_back(request.request_id)
        return delays, said

    def _peer_finished(self, request: Any, block_ids: tuple[list[int], ...]) -> tuple[bool, Any]:
        sends = bool(request.kv_transfer_params.get("do_remote_decode"))
        if sends and request.request_id not in self._begun:
            # The peer has not heard of it, and would stumble over its end.
            return False, None
        if sends and self._too_much_waits(block_ids):
            self._refuse(request, "too many blocks wait to be fetched already")
            return self._as_aborted(request, block_ids)
        delays, said = self._peer.request_finished_all_groups(request, block_ids)
        return bool(delays), said

    def _too_much_waits(self, block_ids: tuple[list[int], ...]) -> bool:
        if self._block_pool is None:
            return False
        more = len(block_ids[0]) if block_ids else 0
        most = self._settings.peer_held_ratio * self._block_pool.num_gpu_blocks
        return bool(sum(self._sending.values()) + more > most)

    def _as_aborted(self, request: Any, block_ids: tuple[list[int], ...]) -> tuple[bool, Any]:
        """Have the peer forget the request, as if it had not come to its end."""
        from vllm.v1.request import RequestStatus

        status, request.status = request.status, RequestStatus.FINISHED_ABORTED
        try:
            delays, _ = self._peer.request_finished_all_groups(request, block_ids)
        finally:
            request.status = status
        return bool(delays), None
