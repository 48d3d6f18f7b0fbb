"""vLLM's KV events for the pool: what this engine stored there, and what it learned is gone.

Published with the engine's own events, with medium "CPU". One event an object, with all of its
blocks. What other engines store, and what the master evicts, is not seen here: a removal is
published when a lookup or a load shows it.
"""

from __future__ import annotations

from collections import OrderedDict, deque
from collections.abc import Iterable
from typing import Any

from moonpool.vllm import objects
from moonpool.vllm.jobs import SaveDone, SaveJob

MEDIUM = "CPU"
PUBLISHED_MAX = 65_536
QUEUE_MAX = 65_536


def wanted(vllm_config: Any) -> bool:
    """Whether the engine publishes KV events at all."""
    events = getattr(vllm_config, "kv_events_config", None)
    return bool(events is not None and getattr(events, "enable_kv_cache_events", False))


class PoolEvents:
    """Collects events until ``take``. Called by the scheduler's thread."""

    def __init__(self, block_size: int, stride: int) -> None:
        """block_size: tokens in a block; stride: blocks in an object."""
        self._block_size, self._stride = block_size, stride
        self._saving: dict[int, list[Any]] = {}
        self._published: OrderedDict[bytes, list[Any]] = OrderedDict()
        self._queue: deque[Any] = deque(maxlen=QUEUE_MAX)

    def saving(self, job: SaveJob, ends: Iterable[int], request: Any) -> None:
        """A job begins that saves the objects that end at these blocks of a request."""
        self._saving[job.job_id] = [self._stored(int(end), request) for end in ends]

    def saved(self, done: SaveDone) -> None:
        """A job has ended: publish what it stored."""
        for code, event in zip(done.codes, self._saving.pop(done.job_id, []), strict=False):
            if code == 0:
                digest, stored = event
                self._published[digest] = list(stored.block_hashes)
                self._published.move_to_end(digest)
                self._queue.append(stored)
        while len(self._published) > PUBLISHED_MAX:
            self._published.popitem(last=False)

    def gone(self, digests: Iterable[bytes]) -> None:
        """Objects are not in the pool any more: publish that, for those published before."""
        hashes = [each for digest in digests for each in self._published.pop(digest, ())]
        if hashes:
            self._queue.append(_removed(hashes))

    def reset(self) -> None:
        """Nothing of what was published is found any more."""
        self._saving.clear()
        self.gone(list(self._published))

    def take(self) -> list[Any]:
        """Return the events since the last call."""
        taken = list(self._queue)
        self._queue.clear()
        return taken

    def _stored(self, end: int, request: Any) -> tuple[bytes, Any]:
        from vllm.distributed.kv_events import BlockStored

        start = (end - 1) // self._stride * self._stride
        hashes, size = request.block_hashes, self._block_size
        lora = getattr(request, "lora_request", None)
        event = BlockStored(
            block_hashes=[_external(each) for each in hashes[start:end]],
            parent_block_hash=_external(hashes[start - 1]) if start else None,
            token_ids=list(request.all_token_ids[start * size : end * size]),
            block_size=size,
            lora_id=lora.adapter_id if lora else None,
            medium=MEDIUM,
            lora_name=lora.name if lora else None,
            **_extra_keys(request, [at * size for at in range(start, end)], size),
        )
        return objects.digest_of(hashes[end - 1]), event


def _removed(hashes: list[Any]) -> Any:
    from vllm.distributed.kv_events import BlockRemoved

    return BlockRemoved(block_hashes=hashes, medium=MEDIUM)


def _external(block_hash: bytes) -> Any:
    from vllm.v1.core.kv_cache_utils import maybe_convert_block_hash

    return maybe_convert_block_hash(block_hash)


def _extra_keys(request: Any, starts: list[int], size: int) -> dict[str, Any]:
    """Return what else is in the hashes (LoRA, images, salt), as vLLM's own events say it."""
    try:
        from vllm.v1.core.kv_cache_utils import (
            generate_block_hash_extra_keys,
            to_event_extra_keys,
        )
    except ImportError:  # before vLLM 0.31
        return {}
    keys = [generate_block_hash_extra_keys(request, at, at + size, 0)[0] for at in starts]
    return {"extra_keys": to_event_extra_keys(keys)}
