"""A small engine around the composite: calls in vLLM's order, with vLLM's assertions.

Blocks are reference counted; a request that fails is computed in the blocks it has, or in others if
all of it begins anew, as vLLM's scheduler does.
"""

from __future__ import annotations

import pickle
import time
from collections.abc import Callable
from types import SimpleNamespace as Bag
from typing import Any

import numpy as np

from tests.unit.vllm.engine import truth
from tests.unit.vllm.fakes import Clock, FakeBlock, FakeBlockPool, FakePool, FakeRequest
from tests.unit.vllm.test_connector import BLOCK, BLOCKS, LAYERS, vllm_config

RECEIVES = {
    "do_remote_prefill": True,
    "do_remote_decode": False,
    "remote_engine_id": "p",
    "remote_request_id": "p-1",
    "remote_host": "127.0.0.1",
    "remote_port": 5600,
    "tp_size": 1,
}
SENDS = {"do_remote_decode": True, "do_remote_prefill": False}
TIMEOUT_S = 30.0


def config(**extra: Any) -> Bag:
    """Return vLLM's configuration with the composite and the scripted peer."""
    from vllm.config import KVTransferConfig

    made = vllm_config()
    peer = {
        "kv_connector": "NixlConnector",
        "kv_connector_module_path": "tests.unit.vllm.pd.scripted",
        **extra.pop("peer", {}),
    }
    chosen = {"object_tokens": 8, "lookup_wait_ms": 2000, "peer": peer, **extra}
    made.kv_transfer_config = KVTransferConfig(
        kv_connector="MoonpoolPDConnector", kv_role="kv_both", kv_connector_extra_config=chosen
    )
    return made


class PDRequest(FakeRequest):
    """A request with parameters, as the composite and the peer read it."""

    def __init__(self, name: str, tokens: int, params: Any = None, first: int = 0) -> None:
        super().__init__(name, range(first, first + tokens), BLOCK)
        self.kv_transfer_params = params
        self.prompt_token_ids = self.tokens
        self.status: Any = Bag(name="WAITING")


def receives(name: str, tokens: int = 20, first: int = 0) -> PDRequest:
    """A request whose prompt another instance has computed."""
    blocks = [[100 + n for n in range(-(-tokens // BLOCK))]]
    there = {"remote_block_ids": blocks, "remote_request_id": f"p-{name}"}
    return PDRequest(name, tokens, RECEIVES | there, first)


class Blocks:
    """vLLM's KVCacheBlocks of one request."""

    def __init__(self, ids: list[int], local: int) -> None:
        self._ids, self._local = ids, local
        self.blocks = ([Bag(block_hash=1 if n < local else None) for n in range(len(ids))],)

    def get_block_ids(self) -> tuple[list[int], ...]:
        return (self._ids,)

    def get_unhashed_block_ids_all_groups(self) -> tuple[list[int], ...]:
        return (self._ids[self._local :],)


def pool_of(connector: Any) -> Any:
    """Return the pool's connector below another."""
    children = getattr(connector, "_connectors", None) or [connector._pool]
    (found,) = [child for child in children if type(child).__name__ == "MoonpoolConnector"]
    return found


class PDEngine:
    """One instance: both roles of the composite, KV tensors, requests."""

    def __init__(
        self, make: Callable[..., Any], pool: FakePool, chosen: Bag | None = None, **extra: Any
    ) -> None:
        """chosen: vLLM's configuration if it is not the composite's, with ``extra`` keys."""
        import torch

        from tests.unit.vllm.pd.scripted import NixlConnector

        self.config, self.pool, self.clock = chosen or config(**extra), pool, Clock()
        self.worker = make("WORKER", self.config)
        if chosen is None:
            self.worker._worker._clock = self.clock
            self.listening = True
            self.worker._worker.pulse._connects = lambda _: self.listening
            self.worker._worker.pulse._every_s = 0.001
        self.tensors = {
            f"layers.{n}.attn": torch.zeros((BLOCKS, 1, BLOCK, 4), dtype=torch.float32)
            for n in range(LAYERS)
        }
        self.worker.register_kv_caches(self.tensors)
        self.scheduler = make("SCHEDULER", self.config)
        self.peer = NixlConnector.newest["WORKER"]
        self.peer_scheduler = NixlConnector.newest["SCHEDULER"]
        self.block_pool = FakeBlockPool(BLOCKS)
        self.scheduler.bind_kv_cache_manager(Bag(block_pool=self.block_pool))
        self.requests: dict[str, PDRequest] = {}
        self.waiting: set[str] = set()
        self.restarted: set[str] = set()
        self.tables: dict[str, list[int]] = {}
        self.reported: list[str] = []
        self.until(self.connected)
        self.step()

    def connected(self) -> bool:
        side, worker = pool_of(self.scheduler)._scheduler, pool_of(self.worker)._worker
        return bool(side._link.get() and worker.runner.link.get())

    def until(self, check: Callable[[], object]) -> None:
        for _ in range(5000):
            if check():
                return
            time.sleep(0.002)
        raise AssertionError("waited in vain")

    # --- requests ---

    def add(self, request: PDRequest, local: int = 0) -> int:
        """A request arrives and is admitted, with ``local`` blocks of its own hit."""
        self.requests[request.request_id] = request
        self.scheduler.on_new_request(request)
        return self.admit(request, local)

    def admit(self, request: PDRequest, local: int = 0) -> int:
        found, is_async = self.scheduler.get_num_new_matched_tokens(request, local * BLOCK)
        assert found is not None
        assert is_async == (found > 0)
        computed = local * BLOCK + found
        assert computed <= request.num_tokens
        table = self._allocate(request, -(-request.num_tokens // BLOCK))
        for at in range(local):
            self.write(table[at], request.block_hashes[at])
        self.scheduler.update_state_after_alloc(request, Blocks(table, local), found)
        request.num_computed_tokens = computed
        if found:
            self.waiting.add(request.request_id)
        return int(found)

    def _allocate(self, request: PDRequest, count: int) -> list[int]:
        free = [block for block in self.block_pool.blocks[1:] if block.ref_cnt == 0]
        table = self.tables[request.request_id] = [block.block_id for block in free[:count]]
        assert len(table) == count, "out of blocks"
        self.block_pool.touch(self._blocks(table))
        return table

    def _blocks(self, ids: list[int]) -> list[FakeBlock]:
        return [self.block_pool.blocks[block] for block in ids]

    def free(self, request_id: str) -> None:
        self.block_pool.free_blocks(self._blocks(self.tables.pop(request_id)))

    def compute(self, request: PDRequest) -> None:
        """Compute and save what is not computed yet."""
        tokens = request.num_tokens - request.num_computed_tokens
        table = self.tables[request.request_id]
        for at in range(request.num_computed_tokens // BLOCK, len(request.block_hashes)):
            self.write(table[at], request.block_hashes[at])
        self.step({request.request_id: tokens})
        request.num_computed_tokens += tokens

    def finish(self, request: PDRequest, status: str = "FINISHED_LENGTH_CAPPED") -> Any:
        """A request ends; return what its client is told."""
        from vllm.v1.request import RequestStatus

        request.status = RequestStatus[status]
        name = request.request_id
        loading = name in self.waiting
        delays, said = self.scheduler.request_finished_all_groups(request, (self.tables[name],))
        self.waiting.discard(name)
        if not delays and not loading:
            self._drop(name)
        return said

    def _drop(self, name: str) -> None:
        self.free(name)
        del self.requests[name]

    # --- memory ---

    def write(self, block: int, block_hash: bytes) -> None:
        content = truth(block_hash).view(np.float32).reshape(LAYERS, BLOCK, 4)
        for layer, tensor in zip(content, self.tensors.values(), strict=True):
            tensor[block, 0].numpy()[:] = layer

    def read(self, block: int) -> bytes:
        return b"".join(t[block].numpy().tobytes() for t in self.tensors.values())

    def scribble(self, blocks: list[int]) -> None:
        """A late transfer writes."""
        for block in blocks:
            for tensor in self.tensors.values():
                tensor[block] = 7.0

    def send(self, request: PDRequest, blocks: list[int]) -> None:
        """The prefill instance's bytes arrive in these, the last blocks of the prompt."""
        hashes = [*request.block_hashes, b"\0" * 32][: -(-request.num_prompt_tokens // BLOCK)]
        for block, block_hash in zip(blocks, hashes[-len(blocks) :], strict=True):
            self.write(block, block_hash)

    def right(self, request: PDRequest) -> bool:
        """Whether all computed full blocks of a request hold what they should."""
        table = self.tables[request.request_id]
        full = request.num_computed_tokens // BLOCK
        return all(
            self.read(table[at]) == truth(request.block_hashes[at]).tobytes() for at in range(full)
        )

    # --- steps ---

    def step(self, scheduled: dict[str, int] | None = None) -> Any:
        """One step: scheduler, worker, and vLLM's handling of the results."""
        from vllm.v1.core.sched.output import KVConnectorBlockState
        from vllm.v1.outputs import KVConnectorOutput

        state = KVConnectorBlockState(set(scheduled or {}), lambda r: (self.tables[r],), {})
        output = Bag(num_scheduled_tokens=scheduled or {}, kv_connector_block_state=state)
        meta = pickle.loads(pickle.dumps(self.scheduler.build_connector_meta(output)))
        worker = self.worker
        worker.handle_preemptions(meta)
        worker.bind_connector_metadata(meta)
        worker.start_load_kv(None)
        worker.wait_for_save()
        moved = worker.get_transfer_results(set())
        found = KVConnectorOutput(
            finished_sending=moved.finished_sending,
            finished_recving=moved.finished_recving,
            failed_recving=moved.failed_recving,
            invalid_block_ids=worker.get_block_ids_with_load_errors(),
            kv_connector_stats=worker.get_kv_connector_stats(),
            kv_connector_worker_meta=pickle.loads(
                pickle.dumps(worker.build_connector_worker_meta())
            ),
        )
        worker.clear_connector_metadata()
        self._take(found)
        return found

    def _take(self, found: Any) -> None:
        for name in found.failed_recving:
            if name in self.waiting:
                self.requests[name].num_computed_tokens = 0
                self.restarted.add(name)
        for name in self.waiting - found.failed_recving:
            table, request = self.tables[name], self.requests[name]
            known = table[: -(-request.num_computed_tokens // BLOCK)]
            hit = [at for at, block in enumerate(known) if block in found.invalid_block_ids]
            if hit:
                request.num_computed_tokens = min(hit) * BLOCK
        self.scheduler.update_connector_output(found)
        for name in found.finished_recving or ():
            assert name in self.requests, "vLLM ends itself"
            self.reported.append(name)
            if name in self.waiting:
                self.waiting.discard(name)
                if name in found.failed_recving:
                    self.free(name)
            else:
                assert self.requests[name].status.name.startswith("FINISHED")
                self._drop(name)
        for name in found.finished_sending or ():
            assert name in self.requests, "vLLM ends itself"
            self._drop(name)

    def until_reported(self, name: str, limit: int = 3000) -> None:
        for _ in range(limit):
            if name in self.reported:
                return
            self.step()
            time.sleep(0.001)
        raise AssertionError("never reported")

    def settle(self) -> None:
        """Step until saves are done."""
        self.until(lambda: self.step() and not self.scheduler.has_pending_push_work())
