"""vLLM's own schedulers of both peers, given what the composite lets through: they never raise.

Their asserts end the engine; without the composite ``test_what_the_checks_are_for`` shows how.
"""

from __future__ import annotations

from collections.abc import Callable
from types import ModuleType
from types import SimpleNamespace as Bag
from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from moonpool.vllm.pd.params import Dialect
from moonpool.vllm.pd.peers import PeerSettings
from moonpool.vllm.stats import Tally
from tests.unit.vllm.fakes import FakeBlockPool
from tests.unit.vllm.pd.engine import Blocks, PDRequest
from tests.unit.vllm.pd.test_params import (
    MOONCAKE_RECEIVES,
    MOONCAKE_SENDS,
    NIXL_RECEIVES,
    anything,
    hostile,
)
from tests.unit.vllm.test_connector import BLOCK, BLOCKS, kv_cache_config, vllm_config

Roles = pytest.mark.parametrize("role", ["kv_both", "kv_producer", "kv_consumer"])
Peers = pytest.mark.parametrize("peer", ["nixl", "mooncake"])


class NoPool:
    """A pool that holds the first blocks of every prompt, and forgets what it is told."""

    def __init__(self, blocks: int) -> None:
        self.blocks = blocks

    def get_num_new_matched_tokens(self, request: Any, computed: int) -> tuple[int, bool]:
        most = min(self.blocks * BLOCK, request.num_tokens // BLOCK * BLOCK)
        return max(0, most - computed), most > computed

    def request_finished_all_groups(self, request: Any, blocks: Any) -> tuple[bool, None]:
        return False, None

    def __getattr__(self, name: str) -> Callable[..., None]:
        return lambda *_: None


class RealPeer:
    """A facade as vLLM's connector has it, over vLLM's scheduler of that connector."""

    def __init__(self, peer: str, role: str) -> None:
        config = vllm_config()
        config.kv_transfer_config.kv_role = role
        config.parallel_config = Bag(
            tensor_parallel_size=1,
            decode_context_parallel_size=1,
            pipeline_parallel_size=1,
            data_parallel_index=0,
        )
        config.num_prefill_lookahead_tokens = 0
        if peer == "nixl":
            from vllm.distributed.kv_transfer.kv_connector.v1.nixl import pull_scheduler

            cls: Any = pull_scheduler.NixlPullConnectorScheduler
        else:
            from vllm.distributed.kv_transfer.kv_connector.v1.mooncake import mooncake_connector

            cls = mooncake_connector.MooncakeConnectorScheduler
        self.inner = cls(config, "me", kv_cache_config())

    def request_finished_all_groups(self, request: Any, blocks: Any) -> Any:
        return self.inner.request_finished(request, blocks)

    def __getattr__(self, name: str) -> Any:
        return getattr(self.inner, name, lambda *_: None)


def serve(peer: Any, request: PDRequest, status: str, *, local: int = 0) -> None:
    """Take a request through its life in vLLM's order."""
    from vllm.v1.request import RequestStatus

    table = list(range(1, 1 + -(-request.num_tokens // BLOCK)))
    peer.on_new_request(request)
    if status != "WAITING":
        count, is_async = peer.get_num_new_matched_tokens(request, local * BLOCK)
        assert count <= request.num_tokens - local * BLOCK
        assert is_async == (count > 0)
        blocks = ViewedBlocks(table, local)
        peer.update_state_after_alloc(request, blocks, count)
        peer.build_connector_meta(Bag())
        request.num_computed_tokens = request.num_tokens
        # Asked again when it is scheduled after its load.
        peer.update_state_after_alloc(request, blocks, 0)
    request.status = RequestStatus[status if status != "WAITING" else "FINISHED_ABORTED"]
    peer.request_finished_all_groups(request, (table,))
    peer.build_connector_meta(Bag())


class ViewedBlocks(Blocks):
    """With the flag that NIXL reads of each block."""

    def __init__(self, ids: list[int], local: int) -> None:
        super().__init__(ids, local)
        for block in self.blocks[0]:
            block.is_null = False


class Composite:
    """The composite's scheduler over a real peer, with the connector's method names."""

    def __init__(self, peer: str, role: str, pool_blocks: int) -> None:
        from moonpool.vllm.pd.scheduler import PDScheduler

        self.side = PDScheduler(
            NoPool(pool_blocks),
            RealPeer(peer, role),
            Dialect(peer, role),
            PeerSettings(),
            BLOCK,
            Tally(),
        )
        self.side.bind(FakeBlockPool(BLOCKS))
        self.on_new_request = self.side.on_new_request
        self.get_num_new_matched_tokens = self.side.matched
        self.update_state_after_alloc = self.side.after_alloc
        self.build_connector_meta = self.side.metadata
        self.request_finished_all_groups = self.side.finished


@Peers
@Roles
@settings(
    max_examples=150, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture]
)
@given(
    params=hostile(),
    status=st.sampled_from(
        ["WAITING", "FINISHED_ABORTED", "FINISHED_LENGTH_CAPPED", "FINISHED_STOPPED"]
    ),
    pool_blocks=st.sampled_from([0, 2, 4]),
    local=st.sampled_from([0, 1, 3, 4]),
)
def test_no_parameters_make_vllms_connectors_raise(
    connector: ModuleType,
    peer: str,
    role: str,
    params: Any,
    status: str,
    pool_blocks: int,
    local: int,
) -> None:
    made = Composite(peer, role, pool_blocks)
    serve(made, PDRequest("r", 16, params), status, local=local)
    # The same again, and with the same ids, as a client may.
    serve(made, PDRequest("s", 16, params), status, local=local)


@pytest.mark.parametrize(
    ("peer", "role", "params"),
    [
        ("nixl", "kv_both", {"do_remote_prefill": True}),
        ("nixl", "kv_both", NIXL_RECEIVES | {"remote_request_id": []}),
        ("mooncake", "kv_producer", MOONCAKE_RECEIVES),
        ("mooncake", "kv_consumer", MOONCAKE_SENDS),
        ("mooncake", "kv_both", "text"),
    ],
)
def test_what_the_checks_are_for(connector: ModuleType, peer: str, role: str, params: Any) -> None:
    """Without the composite each of these ends the engine."""
    with pytest.raises((AssertionError, TypeError, AttributeError)):
        serve(RealPeer(peer, role), PDRequest("r", 100, params), "FINISHED_LENGTH_CAPPED")


@pytest.mark.parametrize(("local", "pool_blocks", "asked"), [(0, 0, 5), (0, 2, 3), (1, 2, 3)])
def test_a_nixl_peer_is_asked_for_the_last_blocks(
    connector: ModuleType, local: int, pool_blocks: int, asked: int
) -> None:
    """NixlConnector pairs them with the last of the prefill instance's blocks."""
    made = Composite("nixl", "kv_both", pool_blocks)
    params = NIXL_RECEIVES | {"remote_block_ids": [[7, 8, 9, 10, 11]]}
    request = PDRequest("r", 18, params)
    made.on_new_request(request)
    count = made.get_num_new_matched_tokens(request, local * BLOCK)[0] or 0
    assert count == 18 - local * BLOCK
    made.update_state_after_alloc(request, ViewedBlocks([1, 2, 3, 4, 5], local), count)
    meta = made.build_connector_meta(Bag())
    found = meta.peer.reqs_to_recv["r"]
    assert found.local_block_ids == ([1, 2, 3, 4, 5][-asked:],)
    assert found.remote.block_ids == [[7, 8, 9, 10, 11]]
    assert found.awaiting_kvs
    (join,) = meta.joins
    assert join.block_ids.tolist()[join.split :] == [1, 2, 3, 4, 5][-asked:]


def test_a_mooncake_peer_writes_to_the_last_blocks(connector: ModuleType) -> None:
    made = Composite("mooncake", "kv_consumer", 2)
    request = PDRequest("r", 18, dict(MOONCAKE_RECEIVES))
    made.on_new_request(request)
    made.update_state_after_alloc(
        request,
        ViewedBlocks([1, 2, 3, 4, 5], 0),
        made.get_num_new_matched_tokens(request, 0)[0] or 0,
    )
    meta = made.build_connector_meta(Bag())
    assert meta.peer.reqs_to_recv["e"]["r"].local_block_ids == [[3, 4, 5]]


def test_a_transfer_id_is_one_requests_until_the_peer_knows(connector: ModuleType) -> None:
    """MooncakeConnector's worker would never give the first one's blocks back."""
    made = Composite("mooncake", "kv_producer", 0)
    first, second, third = (PDRequest(name, 20, dict(MOONCAKE_SENDS)) for name in "abc")
    made.on_new_request(first)
    made.on_new_request(second)
    assert (first.kv_transfer_params, second.kv_transfer_params) == (MOONCAKE_SENDS, None)
    first.status = _status("FINISHED_ABORTED")
    made.request_finished_all_groups(first, ([1, 2],))
    made.build_connector_meta(Bag())
    made.build_connector_meta(Bag())
    made.on_new_request(third)
    assert third.kv_transfer_params == MOONCAKE_SENDS


def _status(name: str) -> Any:
    from vllm.v1.request import RequestStatus

    return RequestStatus[name]


@given(anything)
def test_a_dialect_never_raises(params: Any) -> None:
    from moonpool.vllm.pd.params import Asked

    Dialect("nixl", "kv_both").clean(params, Asked(10, 1))
