"""MoonpoolPDConnector: a request's prefix comes from the pool while a prefill instance sends the
rest. vLLM's interface, delegated to the two sides.

vLLM's API server imports this module as well: nothing here connects to anything before vLLM makes
a connector object.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import TYPE_CHECKING, Any

from vllm.distributed.kv_transfer.kv_connector.v1.base import (
    KVConnectorBase_V1,
    KVConnectorRole,
    SupportsHMA,
)

from moonpool.vllm import support
from moonpool.vllm.connector import MoonpoolConnector
from moonpool.vllm.log import logger
from moonpool.vllm.pd import metrics, peers
from moonpool.vllm.pd.guard import Guarded
from moonpool.vllm.pd.meta import PDMetadata, PDResults
from moonpool.vllm.pd.scheduler import PDScheduler
from moonpool.vllm.pd.worker import PDWorker

try:
    from vllm.v1.metrics.cache_hit_source import CacheHitSource
except ImportError:  # before vLLM 0.32
    CacheHitSource = None

if TYPE_CHECKING:
    import torch


class MoonpoolPDConnector(KVConnectorBase_V1, SupportsHMA):  # type: ignore[misc]
    """Joins a pool and a connector that passes KV from a prefill to a decode instance.

    Use: ``{"kv_connector":"MoonpoolPDConnector","kv_role":"kv_both","kv_connector_extra_config":
    {"peer":{"kv_connector":"NixlConnector","kv_role":"kv_consumer"}}}``; other keys are
    MoonpoolConnector's. Raises ConfigError at start for what is not supported (docs/pd.md).
    """

    def __init__(
        self, vllm_config: Any, role: KVConnectorRole, kv_cache_config: Any = None
    ) -> None:
        """Called by vLLM, once in the scheduler's process and once in each worker."""
        super().__init__(vllm_config, role, kv_cache_config)
        peers.check_version(KVConnectorBase_V1)
        support.check_pair(vllm_config, kv_cache_config)
        plan = peers.plan(vllm_config)
        self._errors, self._peer_name = 0, plan.peer_name
        self._pool = MoonpoolConnector(plan.pool, role, kv_cache_config)
        peer = peers.open_peer(plan, role, kv_cache_config)
        self._peer = Guarded(peer, self._note_error)
        self._scheduler: PDScheduler | None = None
        self._worker: PDWorker | None = None
        if role == KVConnectorRole.SCHEDULER:
            support.prefer_recompute(vllm_config)
            self._scheduler = PDScheduler(
                self._pool,
                self._peer,
                plan.dialect,
                plan.settings,
                vllm_config.cache_config.block_size,
                self._pool.tally,
            )
        else:
            self._worker = PDWorker(self._pool, self._peer)

    def _note_error(self, where: str) -> None:
        self._errors += 1
        self._pool.tally.count("errors")
        # Each power of two, so that a fault in every step does not fill the disk.
        if self._errors & (self._errors - 1) == 0:
            logger.exception("moonpool: the peer's %s failed (%d so far)", where, self._errors)

    def shutdown(self) -> None:
        """Stop both. Idempotent."""
        if self._worker is not None:
            self._worker.pulse.close()
        self._peer.call("shutdown", None)
        self._pool.shutdown()

    def get_kv_connector_stats(self) -> metrics.PDStats | None:
        """Return the counts since the last call."""
        parts = {
            peers.POOL: self._pool.get_kv_connector_stats(),
            self._peer_name: self._peer.call("get_kv_connector_stats", None),
        }
        found = {name: part for name, part in parts.items() if part is not None}
        return metrics.PDStats(data=found) if found else None

    # --- class methods, also called in other processes -----------------------------------------

    @classmethod
    def get_required_kvcache_layout(cls, vllm_config: Any) -> str | None:
        """Return the peer's layout, the pool's if the peer takes any."""
        plan = peers.plan(vllm_config)
        wanted = peers.peer_class(plan).get_required_kvcache_layout(plan.peer)
        found: str | None = wanted or MoonpoolConnector.get_required_kvcache_layout(plan.pool)
        return found

    @classmethod
    def build_kv_connector_stats(cls, data: dict[str, Any] | None = None) -> metrics.PDStats:
        """Return counts from their plain form."""
        return metrics.rebuild(data)

    @classmethod
    def build_prom_metrics(
        cls,
        vllm_config: Any,
        metric_types: dict[Any, Any],
        labelnames: list[str],
        per_engine_labelvalues: dict[int, list[object]],
    ) -> metrics.PDPromMetrics:
        """Return the Prometheus metrics of both."""
        plan = peers.plan(vllm_config)
        common = (metric_types, labelnames, per_engine_labelvalues)
        parts = {
            peers.POOL: MoonpoolConnector.build_prom_metrics(plan.pool, *common),
            plan.peer_name: peers.peer_class(plan).build_prom_metrics(plan.peer, *common),
        }
        return metrics.PDPromMetrics(parts, vllm_config, *common)

    # --- scheduler side ------------------------------------------------------------------------

    @property
    def requires_kv_delivery(self) -> bool:
        """Whether the peer hands over what must arrive: on an instance that only prefills."""
        return bool(self._peer.inner.requires_kv_delivery)

    def bind_kv_cache_manager(self, kv_cache_manager: Any) -> None:
        """Give both vLLM's cache manager, and with it the block pool."""
        self._kv_cache_manager = kv_cache_manager
        self._pool.bind_kv_cache_manager(kv_cache_manager)
        self._peer.call("bind_kv_cache_manager", None, kv_cache_manager)
        self._bind(kv_cache_manager.block_pool)

    def bind_gpu_block_pool(self, gpu_block_pool: Any) -> None:
        """Give both vLLM's block pool."""
        self._pool.bind_gpu_block_pool(gpu_block_pool)
        self._peer.call("bind_gpu_block_pool", None, gpu_block_pool)
        self._bind(gpu_block_pool)

    def _bind(self, block_pool: Any) -> None:
        if self._scheduler is not None:
            self._scheduler.bind(block_pool)

    def on_new_request(self, request: Any) -> None:
        """Drop what is wrong with its parameters; begin the lookup."""
        self._side.on_new_request(request)

    def get_num_new_matched_tokens(
        self, request: Any, num_computed_tokens: int
    ) -> tuple[int | None, bool]:
        """Return how many tokens both would bring."""
        return self._side.matched(request, num_computed_tokens)

    def update_state_after_alloc(self, request: Any, blocks: Any, num_external_tokens: int) -> None:
        """Tell each which blocks it fills."""
        self._side.after_alloc(request, blocks, num_external_tokens)

    def get_external_cache_hit_sources(
        self, request: Any, num_external_tokens: int
    ) -> dict[Any, int]:
        """Return how many of the tokens the pool brings and how many the peer."""
        from_pool = min(self._side.pool_tokens(request), num_external_tokens)
        counts = {
            CacheHitSource.HOST: from_pool,
            CacheHitSource.P2P: num_external_tokens - from_pool,
        }
        return {source: count for source, count in counts.items() if count}

    def build_connector_meta(self, scheduler_output: Any) -> PDMetadata:
        """Return what begins in this step."""
        return self._side.metadata(scheduler_output)

    def update_connector_output(self, connector_output: Any) -> None:
        """Take in the worker's results."""
        self._side.update(connector_output)

    def request_finished(
        self, request: Any, block_ids: list[int]
    ) -> tuple[bool, dict[str, Any] | None]:
        """Return whether the peer still needs the blocks, and what it says to the client."""
        return self._side.finished(request, (block_ids,))

    def request_finished_all_groups(
        self, request: Any, block_ids: tuple[list[int], ...]
    ) -> tuple[bool, dict[str, Any] | None]:
        """Like ``request_finished``; there is one group."""
        return self._side.finished(request, block_ids)

    def has_pending_push_work(self) -> bool:
        """Whether one of them needs the engine to step."""
        return self._pool.has_pending_push_work() or bool(
            self._peer.call("has_pending_push_work", False)
        )

    def has_pending_block_frees(self) -> bool:
        """Whether the peer will give blocks back soon."""
        return bool(self._peer.call("has_pending_block_frees", False))

    def reset_cache(self) -> bool | None:
        """Begin a new namespace of the pool."""
        return self._pool.reset_cache()

    def take_events(self) -> Iterable[Any]:
        """Return the pool's events."""
        return self._pool.take_events()

    def get_finished_count(self) -> int | None:
        """Return the peer's count."""
        count: int | None = self._peer.inner.get_finished_count()
        return count

    def set_xfer_handshake_metadata(self, metadata: dict[int, Any]) -> None:
        """Give the peer what its workers say of themselves."""
        self._peer.inner.set_xfer_handshake_metadata(metadata)

    def set_xfer_handshake_metadata_pp_aware(self, metadata: dict[tuple[int, int], Any]) -> None:
        """Give the peer what its workers say of themselves."""
        self._peer.inner.set_xfer_handshake_metadata_pp_aware(metadata)

    @property
    def _side(self) -> PDScheduler:
        assert self._scheduler is not None
        return self._scheduler

    # --- worker side ---------------------------------------------------------------------------

    @property
    def _work(self) -> PDWorker:
        assert self._worker is not None
        return self._worker

    def get_mem_pool_context(self) -> Any:
        """Return where the peer wants the KV memory to be."""
        return self._peer.inner.get_mem_pool_context()

    def register_kv_caches(self, kv_caches: dict[str, torch.Tensor]) -> None:
        """Give both the KV tensors; raises for a layout that cannot be used."""
        self._peer.inner.register_kv_caches(kv_caches)
        self._pool.register_kv_caches(kv_caches)

    def set_host_xfer_buffer_ops(self, copy_operation: Any) -> None:
        """Give the peer vLLM's way to copy blocks."""
        self._peer.inner.set_host_xfer_buffer_ops(copy_operation)

    def get_handshake_metadata(self) -> Any:
        """Return what the peer's worker says of itself."""
        return self._peer.inner.get_handshake_metadata()

    def bind_connector_metadata(self, connector_metadata: Any) -> None:
        """A step begins."""
        super().bind_connector_metadata(connector_metadata)
        self._work.bind(connector_metadata)

    def clear_connector_metadata(self) -> None:
        """A step ends."""
        super().clear_connector_metadata()
        self._work.clear()

    def handle_preemptions(self, kv_connector_metadata: Any) -> None:
        """A step begins: requests may have lost their blocks."""
        self._pool.handle_preemptions(kv_connector_metadata.pool)
        if kv_connector_metadata.peer is not None:
            self._peer.call("handle_preemptions", None, kv_connector_metadata.peer)

    def start_load_kv(self, forward_context: Any, **kwargs: Any) -> None:
        """Begin this step's loads."""
        self._pool.start_load_kv(forward_context, **kwargs)
        self._work.ask_peer("start_load_kv", forward_context, **kwargs)

    def finish_forward(self) -> None:
        """Let the peer know."""
        self._peer.call("finish_forward", None)

    def reset_capture_state(self) -> None:
        """Let the peer know."""
        self._peer.call("reset_capture_state", None)

    def wait_for_layer_load(self, layer_name: str) -> None:
        """Nothing: loads end before their requests are scheduled."""

    def save_kv_layer(
        self, layer_name: str, kv_layer: Any, attn_metadata: Any, **kwargs: Any
    ) -> None:
        """Nothing: saves begin after the step."""

    def wait_for_save(self) -> None:
        """Begin this step's saves; does not wait."""
        self._pool.wait_for_save()
        self._work.ask_peer("wait_for_save")

    def get_finished(self, finished_req_ids: set[str]) -> tuple[set[str] | None, set[str] | None]:
        """Return the requests that were sent, and those that are filled."""
        found = self.get_transfer_results(finished_req_ids)
        return found.finished_sending or None, found.finished_recving or None

    def get_transfer_results(self, finished_req_ids: set[str]) -> Any:
        """Return the requests that were sent, those that are filled, those that begin anew."""
        return self._work.results(finished_req_ids)

    def get_block_ids_with_load_errors(self) -> set[int]:
        """Return the blocks to compute, of the requests just reported."""
        return self._work.bad_blocks()

    def build_connector_worker_meta(self) -> PDResults | None:
        """Return the results for the scheduler's side."""
        return self._work.report()
