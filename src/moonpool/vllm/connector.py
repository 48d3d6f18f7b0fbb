"""MoonpoolConnector: vLLM's interface, delegated to the scheduler's or the worker's side.

vLLM's API server imports this module as well: nothing here connects to anything before vLLM makes
a connector object.
"""

from __future__ import annotations

import functools
from collections.abc import Callable, Iterable
from typing import TYPE_CHECKING, Any, ParamSpec, TypeVar, cast

import vllm
from vllm.distributed.kv_transfer.kv_connector.v1.base import (
    KVConnectorBase_V1,
    KVConnectorRole,
    SupportsHMA,
)

from moonpool.vllm import compat, namespace, parts, pool_events, pools, settings, support
from moonpool.vllm.jobs import SaveJob
from moonpool.vllm.link import Link
from moonpool.vllm.log import logger
from moonpool.vllm.meta import StepMetadata, StepResults
from moonpool.vllm.metrics import MoonpoolPromMetrics, MoonpoolStats
from moonpool.vllm.parts import Keyspace
from moonpool.vllm.pool_events import PoolEvents
from moonpool.vllm.pools import LOOKUP_TIMEOUT_S
from moonpool.vllm.ranks import Ranks
from moonpool.vllm.scheduler import SchedulerSide, stride_of
from moonpool.vllm.stats import Tally
from moonpool.vllm.worker import WorkerSide

try:
    from vllm.v1.metrics.cache_hit_source import CacheHitSource
except ImportError:  # before vLLM 0.32
    CacheHitSource = None

if TYPE_CHECKING:
    import torch

P = ParamSpec("P")
R = TypeVar("R")


def _guarded(instead: Callable[[], Any]) -> Callable[[Callable[P, R]], Callable[P, R]]:
    """Keep exceptions from the engine: log, count, and go on as if there were no pool."""

    def decorate(method: Callable[P, R]) -> Callable[P, R]:
        @functools.wraps(method)
        def call(*args: P.args, **kwargs: P.kwargs) -> R:
            try:
                return method(*args, **kwargs)
            except Exception:  # noqa: BLE001 - a cache must never end the engine
                connector = args[0]
                assert isinstance(connector, MoonpoolConnector)
                connector._note_error(method.__name__)  # noqa: SLF001
                return cast("R", instead())

        return call

    return decorate


class MoonpoolConnector(KVConnectorBase_V1, SupportsHMA):  # type: ignore[misc]
    """Keeps KV blocks in a moonpool pool that all engines share.

    Use: ``--kv-transfer-config '{"kv_connector":"MoonpoolConnector","kv_role":"kv_both"}'``.
    Raises ConfigError at start for settings and models that are not supported (docs/vllm.md).
    """

    def __init__(
        self, vllm_config: Any, role: KVConnectorRole, kv_cache_config: Any = None
    ) -> None:
        """Called by vLLM, once in the scheduler's process and once in each worker."""
        super().__init__(vllm_config, role, kv_cache_config)
        support.check_version(vllm.__version__)
        support.check_config(vllm_config)
        block_size = vllm_config.cache_config.block_size
        windows = compat.can_begin_anew(KVConnectorBase_V1)
        support.check_cache(kv_cache_config, block_size, windows=windows)
        self._parts = parts.parts_of(kv_cache_config, block_size)
        self._tables: compat.BlockTables | None = None
        transfer = vllm_config.kv_transfer_config
        self._settings = settings.read(transfer.kv_connector_extra_config, transfer.kv_role)
        self._split = compat.split_of(vllm_config, kv_cache_config, self._settings.head_shards)
        self._keys = Keyspace(self._parts, self._split.names)
        self._rank = 0 if role == KVConnectorRole.SCHEDULER else compat.tp_rank(vllm_config)
        support.check_sharing(self._settings.share_prefill_tokens, single=self._keys.single)
        self._errors = 0
        self._scheduler: SchedulerSide | None = None
        self._worker: WorkerSide | None = None
        if role == KVConnectorRole.SCHEDULER:
            support.prefer_recompute(vllm_config)
            self._scheduler = self._make_scheduler()
        else:
            self._worker = self._make_worker()

    if CacheHitSource is not None:
        _cache_hit_source = CacheHitSource.HOST

    # --- both sides ----------------------------------------------------------------------------

    def _make_scheduler(self) -> SchedulerSide:
        config, block_size = self._vllm_config, self._vllm_config.cache_config.block_size
        chosen = self._settings
        stride = stride_of(chosen.object_tokens, block_size)
        facts = namespace.build(
            config,
            self._kv_cache_config,
            user=chosen.namespace,
            object_tokens=stride * block_size,
            vllm_version=vllm.__version__,
            fixed_seed=compat.has_fixed_hash_seed(),
            split=self._split,
        )
        logger.info(
            "moonpool: pool at %s (%s), objects of %d tokens",
            chosen.master,
            facts.title,
            stride * block_size,
        )
        link = Link(
            lambda: pools.open_pool(chosen, self._name("scheduler"), LOOKUP_TIMEOUT_S),
            chosen.master,
        )
        link.start()
        side = SchedulerSide(chosen, facts, block_size, link, keyspace=self._keys)
        side.ranks = Ranks(self._split.workers)
        if pool_events.wanted(config):
            side.publish(PoolEvents(block_size, stride))
        return side

    def _make_worker(self) -> WorkerSide:
        config, cache = self._vllm_config, self._kv_cache_config
        if self._settings.pack_blocks and compat.pack_blocks(config, cache):
            logger.info("moonpool: asked for all layers of a block side by side")
        return WorkerSide(
            self._settings,
            self._name("worker"),
            cache.num_blocks,
            config.cache_config.block_size,
            self._parts,
            ordered=compat.frees_in_order(config),
            split=self._split,
            rank=self._rank,
        )

    def _name(self, side: str) -> str:
        rank = f"-{self._rank}" if self._split.workers > 1 else ""
        return f"vllm-{side}{rank}-{str(self._kv_transfer_config.engine_id)[:8]}"

    @property
    def tally(self) -> Tally:
        """Where this side counts."""
        side = self._scheduler or self._worker
        return side.tally if side is not None else Tally()

    def _note_error(self, where: str) -> None:
        self._errors += 1
        self.tally.count("errors")
        # Each power of two, so that a fault in every step does not fill the disk.
        if self._errors & (self._errors - 1) == 0:
            logger.exception("moonpool: %s failed (%d errors so far)", where, self._errors)

    def shutdown(self) -> None:
        """Stop threads and leave the pool. Idempotent."""
        for side in (self._scheduler, self._worker):
            if side is not None:
                side.shutdown()

    @_guarded(lambda: None)
    def get_kv_connector_stats(self) -> MoonpoolStats | None:
        """Return the counts since the last call."""
        if self._scheduler is not None:
            data = self._scheduler.take_stats()
        else:
            data = self._worker.tally.take() if self._worker is not None else {}
        return MoonpoolStats(data=data) if data else None

    # --- class methods, also called in other processes -----------------------------------------

    @classmethod
    def get_required_kvcache_layout(cls, vllm_config: Any) -> str | None:
        """Ask for a block in one run where the device's kernels allow it; the CPU's do not.

        Without ``pack_blocks`` any will do: below MultiConnector all children must ask for one.
        """
        device = str(getattr(vllm_config.device_config, "device_type", "cpu"))
        wanted = vllm_config.kv_transfer_config.kv_connector_extra_config.get("pack_blocks", True)
        return "BLHNC" if wanted and device != "cpu" and compat.has_named_layouts() else None

    @classmethod
    def build_kv_connector_stats(cls, data: dict[str, Any] | None = None) -> MoonpoolStats:
        """Return counts from their plain form."""
        return MoonpoolStats(data=data if data is not None else {})

    @classmethod
    def build_prom_metrics(
        cls,
        vllm_config: Any,
        metric_types: dict[Any, Any],
        labelnames: list[str],
        per_engine_labelvalues: dict[int, list[object]],
    ) -> MoonpoolPromMetrics:
        """Return the Prometheus metrics."""
        return MoonpoolPromMetrics(vllm_config, metric_types, labelnames, per_engine_labelvalues)

    # --- scheduler side ------------------------------------------------------------------------

    @property
    def requires_kv_delivery(self) -> bool:
        """A save that does not happen is a later miss, nothing worse."""
        return False

    @_guarded(lambda: None)
    def bind_gpu_block_pool(self, gpu_block_pool: Any) -> None:
        """Take the block pool in which saves hold their blocks."""
        if self._scheduler is not None:
            self._scheduler.pins.bind(gpu_block_pool, self._scheduler.stride)

    @_guarded(lambda: None)
    def on_new_request(self, request: Any) -> None:
        """Begin the lookup."""
        if not isinstance(getattr(request, "kv_transfer_params", None), dict | None):
            # A client can get anything here; vLLM's own code takes it for a dictionary.
            request.kv_transfer_params = None
        if self._scheduler is not None:
            self._scheduler.on_new_request(request)

    @_guarded(lambda: (0, False))
    def get_num_new_matched_tokens(
        self, request: Any, num_computed_tokens: int
    ) -> tuple[int | None, bool]:
        """Return how many tokens a load would bring, and that it runs beside the steps."""
        if self._scheduler is None:
            return 0, False
        if self._scheduler.is_early():
            return None, False
        tokens = self._scheduler.matched_tokens(request, num_computed_tokens)
        return tokens, tokens > 0

    @_guarded(lambda: None)
    def update_state_after_alloc(self, request: Any, blocks: Any, num_external_tokens: int) -> None:
        """Plan the load into these blocks."""
        if self._scheduler is not None and num_external_tokens > 0:
            self._scheduler.after_alloc(request, blocks.get_block_ids(), num_external_tokens)

    @_guarded(StepMetadata)
    def build_connector_meta(self, scheduler_output: Any) -> StepMetadata:
        """Return the jobs that begin in this step."""
        if self._scheduler is None:
            return StepMetadata()
        # First, and whatever happens to saves: a request waits for each load.
        loads, cancels = self._scheduler.take_loads(), self._scheduler.take_cancels()
        saves = self._saves(self._scheduler, scheduler_output)
        return StepMetadata(loads, saves, cancels, not scheduler_output.num_scheduled_tokens)

    @_guarded(list)
    def _saves(self, scheduler: SchedulerSide, output: Any) -> list[SaveJob]:
        scheduler.plan_saves(output.num_scheduled_tokens, self._block_state(output))
        return scheduler.take_saves()

    def _block_state(self, output: Any) -> Any:
        """Return the current block tables: vLLM's (0.29 on), or those kept from its outputs."""
        if hasattr(output, "kv_connector_block_state"):
            return output.kv_connector_block_state
        if self._tables is None:
            self._tables = compat.BlockTables()
        self._tables.follow(output)
        return self._tables

    @_guarded(lambda: None)
    def update_connector_output(self, connector_output: Any) -> None:
        """Take in the worker's results."""
        results = connector_output.kv_connector_worker_meta
        if self._scheduler is not None and isinstance(results, StepResults):
            for rank, order in results.orders.items():
                self._scheduler.worker_is(order, rank)
            self._scheduler.ended(results.loads, results.saves)

    @_guarded(lambda: (False, None))
    def request_finished(
        self, request: Any, block_ids: list[int]
    ) -> tuple[bool, dict[str, Any] | None]:
        """Save what is left of a finished request; its blocks may be freed at once."""
        return self.request_finished_all_groups(request, (block_ids,))

    @_guarded(lambda: (False, None))
    def request_finished_all_groups(
        self, request: Any, block_ids: tuple[list[int], ...]
    ) -> tuple[bool, dict[str, Any] | None]:
        """Like ``request_finished``, with the blocks of each group."""
        tables = block_ids or ((),) * sum(part.width for part in self._parts)
        return False, self._scheduler.finished(request, tables) if self._scheduler else None

    @_guarded(lambda: False)
    def has_pending_push_work(self) -> bool:
        """Keep the engine stepping while saves hold blocks; bounded by their deadlines."""
        return self._scheduler is not None and self._scheduler.has_work

    @_guarded(lambda: False)
    def reset_cache(self) -> bool | None:
        """Begin a new namespace: nothing saved so far is found any more."""
        if self._scheduler is not None:
            self._scheduler.reset()
        return True

    @_guarded(list)
    def take_events(self) -> Iterable[Any]:
        """Return the pool's KV events since the last call, where the engine publishes any."""
        events = self._scheduler.events if self._scheduler is not None else None
        return events.take() if events is not None else []

    # --- worker side ---------------------------------------------------------------------------

    @property
    def prefer_cross_layer_blocks(self) -> bool:
        """Ask model runner V1 before vLLM 0.29 for all layers of a block side by side."""
        device = str(getattr(self._vllm_config.device_config, "device_type", "cpu"))
        return self._settings.pack_blocks and device != "cpu"

    def register_kv_caches(self, kv_caches: dict[str, torch.Tensor]) -> None:
        """Take the KV tensors; raises ConfigError for a layout that cannot be used."""
        if self._worker is not None:
            self._worker.register(kv_caches)

    def register_cross_layers_kv_cache(self, kv_cache: torch.Tensor, attn_backend: Any) -> None:
        """Take one KV tensor of all layers (before vLLM 0.29); raises as above."""
        tensors = self._kv_cache_config.kv_cache_tensors
        layers = [tensor.shared_by[0] for tensor in tensors]
        if self._worker is not None:
            self._worker.register(compat.layers_of(kv_cache, attn_backend, layers))

    @_guarded(lambda: None)
    def handle_preemptions(self, kv_connector_metadata: Any) -> None:
        """A step begins: note what was launched before it."""
        if self._worker is not None and isinstance(kv_connector_metadata, StepMetadata):
            self._worker.before_step(bool(kv_connector_metadata.loads))

    def _metadata(self) -> StepMetadata:
        meta = self._connector_metadata
        return meta if isinstance(meta, StepMetadata) else StepMetadata()

    @_guarded(lambda: None)
    def start_load_kv(self, forward_context: Any, **kwargs: Any) -> None:
        """Begin this step's loads."""
        if self._worker is not None:
            self._worker.start_loads(self._metadata().loads)
            self._worker.cancel_loads(self._metadata().cancels)

    def wait_for_layer_load(self, layer_name: str) -> None:
        """Nothing: loads end before their requests are scheduled."""

    def save_kv_layer(
        self, layer_name: str, kv_layer: Any, attn_metadata: Any, **kwargs: Any
    ) -> None:
        """Nothing: saves begin after the step."""

    @_guarded(lambda: None)
    def wait_for_save(self) -> None:
        """Begin this step's saves; does not wait."""
        if self._worker is not None:
            self._worker.start_saves(self._metadata().saves)

    @_guarded(lambda: (None, None))
    def get_finished(self, finished_req_ids: set[str]) -> tuple[set[str] | None, set[str] | None]:
        """Return the requests whose loads ended; saves are reported by job, not by request."""
        # Before vLLM 0.29 a step without a forward pass does not call wait_for_save.
        self.wait_for_save()
        if self._worker is None:
            return None, None
        ended = self._worker.finished_loads()
        if not ended and self._metadata().idle:
            ended = self._worker.rest()
        return None, ended or None

    def get_transfer_results(self, finished_req_ids: set[str]) -> Any:
        """Return what ``get_finished`` does and which requests to compute from their beginning
        (vLLM 0.30 on)."""
        _, ended = self.get_finished(finished_req_ids)
        failed = self._worker.take_failed() if self._worker is not None else set()
        return compat.transfer_results(ended or set(), failed)

    @_guarded(set)
    def get_block_ids_with_load_errors(self) -> set[int]:
        """Return the blocks to recompute, of the loads just reported."""
        return self._worker.take_bad_blocks() if self._worker is not None else set()

    @_guarded(lambda: None)
    def build_connector_worker_meta(self) -> StepResults | None:
        """Return the results for the scheduler's side."""
        if self._worker is None:
            return None
        loads, saves = self._worker.take_results()
        order = self._worker.take_order()
        orders = {} if order is None else {self._rank: order}
        return StepResults(loads, saves, orders) if loads or saves or orders else None
