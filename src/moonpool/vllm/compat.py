"""What differs between the releases of vLLM that are supported, found by looking, not by number.

vLLM before 0.29 (best effort, 0.24 on): no block tables in the scheduler's output, hashes from a
random seed, KV tensors of five dimensions, all layers of a block together only on request.
"""

from __future__ import annotations

import dataclasses
import importlib.util
from typing import Any

from moonpool.errors import ConfigError
from moonpool.vllm.shards import WHOLE, Split

UNSPLIT_TOKENS_MAX = 64
"""All attention kernels take blocks of 16 to 64 tokens whole."""


def has_named_layouts() -> bool:
    """Whether vLLM knows KV layouts such as BLHNC (0.29 on)."""
    return importlib.util.find_spec("vllm.v1.kv_cache_layout") is not None


def has_fixed_hash_seed() -> bool:
    """Whether block hashes of sha256 start from a fixed seed (0.29 on), not from a random one."""
    from vllm.v1.core import kv_cache_utils

    return hasattr(kv_cache_utils, "DEFAULT_NONE_HASH_SEED") or has_named_layouts()


def can_begin_anew(connector: type) -> bool:
    """Whether a request whose load failed can be computed from its beginning (0.30 on)."""
    return hasattr(connector, "get_transfer_results")


def transfer_results(loaded: set[str], failed: set[str]) -> Any:
    """Return the results of a step as vLLM 0.30 and newer take them."""
    from vllm.distributed.kv_transfer.kv_connector.v1.base import KVConnectorTransferResults

    return KVConnectorTransferResults(finished_recving=loaded, failed_recving=failed)


def frees_in_order(vllm_config: Any) -> bool:
    """Whether vLLM gives a block to another request only when no step that is under way can still
    write to it. Otherwise a load must wait for the steps that were launched before it."""
    if getattr(vllm_config, "max_concurrent_batches", 2) <= 1:
        return True
    try:
        from vllm.v1.core.sched.scheduler import Scheduler
    except ImportError:
        return False
    transfer = getattr(_whole(vllm_config), "kv_transfer_config", None)
    consumes = bool(getattr(transfer, "is_kv_consumer", False))
    return consumes and hasattr(Scheduler, "_drain_deferred_frees")


def _whole(vllm_config: Any) -> Any:
    """Return the engine's configuration: a child of MultiConnector is given a changed one."""
    try:
        from vllm.config import get_current_vllm_config_or_none
    except ImportError:
        return vllm_config
    return get_current_vllm_config_or_none() or vllm_config


class BlockTables:
    """The block table of each running request, kept from the scheduler's outputs (before 0.29)."""

    def __init__(self) -> None:
        self._tables: dict[str, list[int]] = {}

    def __len__(self) -> int:
        return len(self._tables)

    def follow(self, output: Any) -> None:
        """Take in a step's output: requests that ended, that are new, that grew."""
        tables = self._tables
        for gone in (output.finished_req_ids, getattr(output, "preempted_req_ids", None)):
            for request_id in gone or ():
                tables.pop(request_id, None)
        # Model runner V2 is given resumed requests as new ones; either way the table is whole.
        for new in output.scheduled_new_reqs:
            tables[new.req_id] = list(new.block_ids[0])
        cached = output.scheduled_cached_reqs
        resumed = cached.resumed_req_ids
        for request_id, blocks in zip(cached.req_ids, cached.new_block_ids, strict=True):
            if blocks is None:
                continue
            if request_id in resumed:
                tables[request_id] = list(blocks[0])
            elif request_id in tables:
                tables[request_id].extend(blocks[0])

    def get_block_ids(self, request_id: str) -> tuple[list[int], ...] | None:
        """Return a request's table, as ``KVConnectorBlockState`` does; None if it has none."""
        table = self._tables.get(request_id)
        return None if table is None else (table,)


def split_of(vllm_config: Any, kv_cache_config: Any, wanted: int) -> Split:
    """Return how the engine's workers split the KV heads, and its objects into ``wanted`` shards
    (0: as few as there can be). Raises ConfigError."""
    workers = int(getattr(vllm_config.parallel_config, "tensor_parallel_size", 1) or 1)
    if workers == 1 and not wanted:
        return WHOLE
    layers = [
        layer
        for group in kv_cache_config.kv_cache_groups
        for spec in [group.kv_cache_spec]
        for layer in getattr(spec, "kv_cache_specs", {"": spec}).values()
    ]
    latent = all(type(layer).__name__ == "MLAAttentionSpec" for layer in layers)
    heads = 1 if latent else int(vllm_config.model_config.get_total_num_kv_heads())
    split = Split.of(heads, workers, wanted)
    own = max(1, heads // workers)
    # A kernel may pack several heads into one slot: then they cannot be told apart.
    alike = latent or all(
        getattr(layer, "num_heads", None) == getattr(layer, "num_kv_heads", 0) == own
        for layer in layers
    )
    if not has_named_layouts() or not alike:
        raise ConfigError(
            f"MoonpoolConnector does not support tensor parallelism of {workers} here: it takes "
            "vLLM 0.29 or newer and the same number of KV heads in every layer; set "
            "tensor_parallel_size to 1 and head_shards to 0"
        )
    return split


def tp_rank(vllm_config: Any) -> int:
    """Return which of the engine's workers this process is."""
    if int(getattr(vllm_config.parallel_config, "tensor_parallel_size", 1) or 1) == 1:
        return 0
    from vllm.distributed import get_tensor_model_parallel_rank

    return int(get_tensor_model_parallel_rank())


def pack_blocks(vllm_config: Any, kv_cache_config: Any) -> bool:
    """Let vLLM 0.24 to 0.28 allocate all layers of a block side by side; return whether it will.

    Must be called before the KV tensors are made. The releases can do it (``block_stride``) but
    do it only for models with packed caches; model runner V1 asks connectors instead, see
    ``prefer_cross_layer_blocks``.
    """
    tensors = list(kv_cache_config.kv_cache_tensors)
    if has_named_layouts() or len(kv_cache_config.kv_cache_groups) != 1 or len(tensors) < 2:
        return False
    if not getattr(vllm_config, "use_v2_model_runner", False) or not _can_be_packed(tensors):
        return False
    spec = kv_cache_config.kv_cache_groups[0].kv_cache_spec
    page = int(spec.page_size_bytes)
    whole = page * int(kv_cache_config.num_blocks)
    strided = getattr(spec, "indexes_kv_by_block_stride", False)
    padded = getattr(spec, "page_size_padded", None) is not None
    if not strided or padded or any(tensor.size != whole for tensor in tensors):
        return False
    # vLLM can pack neither head-major rows nor blocks that a kernel splits.
    if spec.block_size > UNSPLIT_TOKENS_MAX or _rows_are_head_major():
        return False
    kv_cache_config.kv_cache_tensors = [
        dataclasses.replace(
            tensor,
            size=whole * len(tensors),
            offset=page * at,
            block_stride=page * len(tensors),
        )
        for at, tensor in enumerate(tensors)
    ]
    return True


def _rows_are_head_major() -> bool:
    try:
        from vllm.v1.attention.backends.utils import get_kv_cache_layout
    except ImportError:
        return True
    return bool(get_kv_cache_layout() != "NHD")


def _can_be_packed(tensors: list[Any]) -> bool:
    fields = {"size", "shared_by", "offset", "block_stride"}
    return all(
        dataclasses.is_dataclass(tensor)
        and fields <= {field.name for field in dataclasses.fields(tensor)}
        and not getattr(tensor, "block_stride", 0)
        for tensor in tensors
    )


def layers_of(tensor: Any, backend: Any, names: list[str]) -> dict[str, Any]:
    """Return each layer's part of a tensor that holds the blocks of all layers (before 0.29).

    names: the layers, in the tensor's order.
    """
    ndim = len(tensor.shape)
    try:
        order = tuple(backend.get_kv_cache_stride_order(include_num_layers_dimension=True))
    except (AttributeError, NotImplementedError, TypeError):
        order = tuple(range(ndim))
    if sorted(order) != list(range(ndim)):
        order = tuple(range(ndim))
    by_layer = tensor.permute(*(order.index(dim) for dim in range(ndim)))
    return {name: by_layer[at] for at, name in enumerate(names)}
