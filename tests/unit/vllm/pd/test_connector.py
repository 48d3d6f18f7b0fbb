"""Prefix from the pool, the rest from a peer: what reaches vLLM, when, which bytes are where."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest

from moonpool.errors import ConfigError
from tests.unit.vllm.fakes import FakePool
from tests.unit.vllm.pd.engine import (
    SENDS,
    TIMEOUT_S,
    PDEngine,
    PDRequest,
    config,
    pool_of,
    receives,
)
from tests.unit.vllm.test_connector import BLOCK, make, pool  # noqa: F401

Make = Callable[..., Any]
PREFIX, ALL = 4, 5
"""Blocks of the prompt that the pool holds, and of the prompt."""


@pytest.fixture
def engine(make: Make, pool: FakePool) -> PDEngine:  # noqa: F811
    return PDEngine(make, pool, peer_timeout_s=TIMEOUT_S)


def fill_pool(engine: PDEngine, blocks: int = PREFIX) -> None:
    """Serve a request that begins like the others, and forget its blocks."""
    first = PDRequest("first", blocks * BLOCK)
    engine.add(first)
    engine.compute(first)
    engine.finish(first)
    engine.settle()
    assert engine.pool.objects
    assert all(block.ref_cnt == 0 for block in engine.block_pool.blocks)


def start(engine: PDEngine, name: str = "r") -> PDRequest:
    """A request that waits for both."""
    request = receives(name)
    assert engine.add(request) == ALL * BLOCK
    engine.step()
    assert engine.peer.fills[name] == engine.tables[name][PREFIX:]
    return request


def test_the_pool_brings_the_prefix_and_the_peer_the_rest(engine: PDEngine) -> None:
    fill_pool(engine)
    request = start(engine)
    engine.until(
        lambda: not engine.step().finished_recving and not engine.worker._pool._worker._spread.loads
    )
    assert engine.reported == []
    engine.peer.write = lambda blocks: engine.send(request, blocks)
    engine.peer.arrive("r")
    assert engine.step().finished_recving == {"r"}
    assert engine.right(request)
    assert request.num_computed_tokens == ALL * BLOCK
    for _ in range(3):
        assert not engine.step().finished_recving


def test_without_a_prefix_in_the_pool_the_peer_brings_all(engine: PDEngine) -> None:
    request = receives("r")
    assert engine.add(request) == ALL * BLOCK
    engine.step()
    assert engine.peer.fills["r"] == engine.tables["r"]
    engine.peer.write = lambda blocks: engine.send(request, blocks)
    engine.peer.arrive("r")
    engine.until_reported("r")
    assert engine.right(request)


def test_the_engines_own_hit_comes_before_both(engine: PDEngine) -> None:
    fill_pool(engine)
    request = receives("r")
    assert engine.add(request, local=2) == (ALL - 2) * BLOCK
    engine.step()
    assert engine.peer.fills["r"] == engine.tables["r"][PREFIX:]
    engine.peer.write = lambda blocks: engine.send(request, blocks)
    engine.peer.arrive("r")
    engine.until_reported("r")
    assert engine.right(request)


def test_a_prompt_that_the_pool_holds_asks_nothing_of_the_peer(engine: PDEngine) -> None:
    """The prefill instance is let go at once."""
    fill_pool(engine, ALL)
    request = receives("r")
    assert engine.add(request) == ALL * BLOCK
    engine.until_reported("r")
    assert engine.peer.notified == ["r"]
    assert engine.right(request)


def test_a_failed_peer_costs_the_rest_only(engine: PDEngine) -> None:
    fill_pool(engine)
    request = start(engine)
    engine.peer.arrive("r", failed=True)
    engine.until_reported("r")
    assert request.num_computed_tokens == PREFIX * BLOCK
    assert engine.right(request)
    assert engine.restarted == set()


def test_a_failed_pool_waits_for_the_peer(engine: PDEngine) -> None:
    fill_pool(engine)
    request = receives("r")
    assert engine.add(request) == ALL * BLOCK
    engine.pool.objects.clear()
    for _ in range(50):
        engine.step()
    assert engine.reported == []
    engine.peer.write = lambda blocks: engine.send(request, blocks)
    engine.peer.arrive("r")
    engine.until_reported("r")
    assert request.num_computed_tokens == 0
    engine.compute(request)
    assert engine.right(request)


def test_a_silent_peer_is_given_up_and_cannot_hurt_anybody(engine: PDEngine) -> None:
    fill_pool(engine)
    request = start(engine)
    lost = engine.peer.fills["r"]
    engine.clock.now += TIMEOUT_S
    engine.until_reported("r")
    assert engine.restarted == {"r"}
    assert [engine.block_pool.blocks[block].ref_cnt for block in lost] == [1]
    # It begins anew: the pool's part again, the rest is computed; the peer is not asked twice.
    assert engine.admit(request) == PREFIX * BLOCK
    assert not set(engine.tables["r"]) & set(lost)
    engine.reported.clear()
    engine.until_reported("r")
    engine.compute(request)
    # The late transfer writes where nobody reads, and then lets go.
    engine.peer.write = engine.scribble
    engine.peer.arrive("r")
    engine.step()
    assert engine.reported == ["r"]
    assert [engine.block_pool.blocks[block].ref_cnt for block in lost] == [0]
    assert engine.right(request)
    engine.finish(request)
    engine.settle()
    assert all(block.ref_cnt == 0 for block in engine.block_pool.blocks)


def test_nobody_is_waited_for_who_is_gone(engine: PDEngine) -> None:
    """Long before the deadline; a peer that pushes may not notice for minutes."""
    fill_pool(engine)
    request = start(engine)
    lost = engine.peer.fills["r"]
    engine.clock.now += 3.0
    for _ in range(50):
        engine.step()
    assert engine.reported == []
    engine.listening = False
    engine.until_reported("r")
    assert engine.restarted == {"r"}
    assert [engine.block_pool.blocks[block].ref_cnt for block in lost] == [1]
    assert engine.admit(request) == PREFIX * BLOCK


def test_an_abort_waits_for_both(engine: PDEngine) -> None:
    fill_pool(engine)
    request = start(engine)
    engine.finish(request, "FINISHED_ABORTED")
    for _ in range(50):
        engine.step()
    assert "r" in engine.requests
    engine.peer.arrive("r")
    engine.step()
    assert "r" not in engine.requests
    engine.settle()
    assert all(block.ref_cnt == 0 for block in engine.block_pool.blocks)


def test_an_abort_saves_nothing_that_the_pool_failed_to_bring(engine: PDEngine) -> None:
    """While the peer is waited for, vLLM has not heard yet that the pool's part has failed."""
    fill_pool(engine)
    request = receives("r")
    assert engine.add(request) == ALL * BLOCK
    engine.pool.objects.clear()
    tracker = pool_of(engine.scheduler)._scheduler._trackers["r"]
    engine.until(lambda: engine.step() and tracker.cap == 0)
    assert engine.reported == []
    engine.finish(request, "FINISHED_ABORTED")
    engine.peer.arrive("r")
    engine.until(lambda: engine.step() and "r" not in engine.requests)
    engine.settle()
    assert engine.pool.objects == {}


def test_blocks_of_an_aborted_request_outlive_a_silent_peer(engine: PDEngine) -> None:
    fill_pool(engine)
    request = start(engine)
    lost = engine.peer.fills["r"]
    engine.finish(request, "FINISHED_ABORTED")
    engine.clock.now += TIMEOUT_S
    engine.until(lambda: engine.step() and "r" not in engine.requests)
    assert [engine.block_pool.blocks[block].ref_cnt for block in lost] == [1]
    engine.peer.arrive("r")
    engine.step()
    assert all(block.ref_cnt == 0 for block in engine.block_pool.blocks)


def test_while_silent_peers_hold_much_no_peer_is_asked(make: Make, pool: FakePool) -> None:  # noqa: F811
    engine = PDEngine(make, pool, peer_timeout_s=TIMEOUT_S, peer_held_ratio=0.05)
    request = receives("r")
    engine.add(request)
    engine.step()
    engine.clock.now += TIMEOUT_S
    engine.until_reported("r")
    other = receives("s")
    assert engine.add(other) == 0
    engine.step()
    assert engine.peer.notified == ["s"]
    engine.peer.arrive("r")
    engine.step()
    assert engine.add(receives("t")) == ALL * BLOCK


def test_plain_requests_are_the_pools_alone(engine: PDEngine) -> None:
    fill_pool(engine)
    request = PDRequest("r", ALL * BLOCK)
    assert engine.add(request) == PREFIX * BLOCK
    engine.until_reported("r")
    engine.compute(request)
    assert engine.right(request)
    assert engine.finish(request) is None
    assert "r" not in engine.peer_scheduler.seen


def test_a_prefill_instance_starts_from_the_pool_and_passes_all_on(engine: PDEngine) -> None:
    fill_pool(engine)
    request = PDRequest("r", ALL * BLOCK, SENDS)
    assert engine.add(request) == PREFIX * BLOCK
    engine.until_reported("r")
    engine.compute(request)
    told = engine.finish(request)
    assert told["remote_block_ids"] == [engine.tables["r"]]
    engine.peer.ended.finished_sending.add("r")
    engine.step()
    engine.settle()
    assert all(block.ref_cnt == 0 for block in engine.block_pool.blocks)


def test_what_nobody_fetches_is_bounded(make: Make, pool: FakePool) -> None:  # noqa: F811
    """vLLM's own connectors keep the blocks of all such requests, for minutes."""
    engine = PDEngine(make, pool, peer_held_ratio=0.25)
    told = []
    for n in range(6):
        request = PDRequest(f"r{n}", ALL * BLOCK, SENDS, first=1000 * n)
        engine.add(request)
        engine.compute(request)
        told.append(engine.finish(request))
    assert [each is not None for each in told] == [True] * 3 + [False] * 3
    assert sorted(engine.requests) == ["r0", "r1", "r2"]


def test_what_the_peer_says_of_requests_that_are_gone_is_not_passed_on(engine: PDEngine) -> None:
    engine.peer.ended.finished_sending.add("nobody")
    engine.peer.ended.finished_recving.add("nobody")
    engine.peer.bad.add(3)
    found = engine.step()
    assert not found.finished_sending
    assert not found.finished_recving
    assert not found.invalid_block_ids


@pytest.mark.parametrize(
    "name",
    [
        "on_new_request",
        "get_num_new_matched_tokens",
        "update_state_after_alloc",
        "build_connector_meta",
        "start_load_kv",
        "get_transfer_results",
        "request_finished_all_groups",
    ],
)
def test_whatever_the_peer_raises_the_request_is_served(engine: PDEngine, name: str) -> None:
    fill_pool(engine)
    engine.peer.raises.add(name)
    engine.peer_scheduler.raises.add(name)
    request = receives("r")
    found = engine.add(request)
    assert found in (PREFIX * BLOCK, ALL * BLOCK)
    engine.step()
    engine.clock.now += TIMEOUT_S
    engine.until_reported("r")
    if "r" in engine.restarted:
        engine.admit(request)
        engine.reported.clear()
        engine.until_reported("r")
    engine.compute(request)
    assert engine.right(request)
    engine.finish(request)
    assert "r" not in engine.requests


@pytest.mark.parametrize(
    "params",
    [
        "text",
        {"do_remote_prefill": True},
        {"do_remote_prefill": "yes", "do_remote_decode": []},
        {"do_remote_prefill": True, "do_remote_decode": True},
    ],
)
def test_parameters_that_make_no_sense_make_a_plain_request(engine: PDEngine, params: Any) -> None:
    fill_pool(engine)
    request = PDRequest("r", ALL * BLOCK, params)
    assert engine.add(request) == PREFIX * BLOCK
    assert request.kv_transfer_params is None
    engine.until_reported("r")
    assert engine.peer.notified == []


def test_what_was_fetched_once_is_not_there_any_more(engine: PDEngine) -> None:
    """The second of a request's two answers (n = 2) computes for itself."""
    first, second = receives("r"), receives("s")
    second.kv_transfer_params = dict(first.kv_transfer_params)
    assert engine.add(first) == ALL * BLOCK
    assert engine.add(second) == 0
    assert second.kv_transfer_params is None


def test_counts_are_kept(engine: PDEngine) -> None:
    fill_pool(engine)
    start(engine)
    engine.peer.arrive("r", failed=True)
    engine.until_reported("r")
    engine.add(PDRequest("bad", 20, "text"))
    counts = engine.scheduler.get_kv_connector_stats().to_dict()["MoonpoolConnector"]
    assert (counts["peer_loads"], counts["peer_failures"]) == (1, 1)
    assert counts["peer_params_refused"] == 1


# --- configuration ----------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("extra", "line"),
    [
        ({"peer": None}, "peer: missing"),
        ({"peer": {"kv_connector": "P2p"}}, "peer.kv_connector: 'P2p'; allowed: Mooncake"),
        ({"peer": {"kv_connector": "NixlConnector", "typo": 1}}, "typo"),
        ({"peer_timeout_s": -1}, "peer_timeout_s: -1"),
        ({"peer_held_ratio": "x"}, "peer_held_ratio: 'x'"),
        ({"peer_hosts": ["10.0.0.0/99"]}, "peer_hosts: ['10.0.0.0/99']"),
        ({"peer_hosts": 7}, "peer_hosts: 7"),
        ({"lookup_wait": 1}, "did you mean lookup_wait_ms?"),
    ],
)
def test_a_mistake_is_one_line_that_names_the_key(
    make: Make,  # noqa: F811
    extra: dict[str, Any],
    line: str,
) -> None:
    wrong = config()
    wrong.kv_transfer_config.kv_connector_extra_config |= extra
    with pytest.raises(ConfigError) as caught:
        make("SCHEDULER", wrong)
    assert line in str(caught.value)
    assert "\n" not in str(caught.value)


def test_turning_a_connection_round_is_refused(make: Make) -> None:  # noqa: F811
    wrong = config(peer={"kv_connector_extra_config": {"bidirectional_kv_xfer": True}})
    with pytest.raises(ConfigError, match="comes from the pool"):
        make("SCHEDULER", wrong)


def test_a_peer_that_cannot_be_imported_is_one_line(make: Make) -> None:  # noqa: F811
    wrong = config(peer={"kv_connector_module_path": "tests.unit.vllm.pd.not_there"})
    with pytest.raises(ConfigError) as caught:
        make("WORKER", wrong)
    text = str(caught.value)
    assert text.startswith("peer: NixlConnector cannot be used (ModuleNotFoundError: No module")
    assert text.endswith("Without a peer take MoonpoolConnector")
    assert "\n" not in text


def test_failed_loads_are_recomputed_and_the_peers_layout_is_taken(make: Make) -> None:  # noqa: F811
    from vllm.distributed.kv_transfer.kv_connector.factory import KVConnectorFactory

    chosen = config()
    make("SCHEDULER", chosen)
    assert chosen.kv_transfer_config.kv_load_failure_policy == "recompute"
    cls = KVConnectorFactory.get_connector_class(chosen.kv_transfer_config)
    assert cls.get_required_kvcache_layout(chosen) is None


def test_a_vllm_that_cannot_begin_a_request_anew_is_refused() -> None:
    from moonpool.vllm.pd import peers

    with pytest.raises(ConfigError, match=r"install vLLM 0\.30 or newer"):
        peers.check_version(object)


@pytest.mark.filterwarnings("ignore::pytest.PytestUnraisableExceptionWarning")
def test_a_peer_that_is_not_installed_is_one_line(make: Make) -> None:  # noqa: F811
    """vLLM's own connector, without the package it needs; it complains once more when deleted."""
    import gc
    import importlib.util

    if importlib.util.find_spec("mooncake") is not None:
        pytest.skip("Mooncake is installed")
    wrong = config()
    peer = {"kv_connector": "MooncakeConnector", "kv_role": "kv_consumer"}
    wrong.kv_transfer_config.kv_connector_extra_config["peer"] = peer
    line = ""
    try:
        make("WORKER", wrong)
    except ConfigError as error:
        line = str(error)
    gc.collect()
    assert line == (
        "peer: MooncakeConnector cannot be used (RuntimeError: Mooncake is not available); "
        "is mooncake-transfer-engine installed? Without a peer take MoonpoolConnector"
    )
