"""The composite over vLLM's MooncakeConnector: prefill pushes its part while the pool brings its.

Needs Mooncake's own wheel (``mooncake-transfer-engine-non-cuda`` runs on a CPU, over TCP), which is
no dependency of moonpool: without it all of this is skipped.
"""

from __future__ import annotations

import contextlib
import json
import urllib.request
import uuid
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from typing import Any

import pytest

from moonpool.demo.model import build_model
from tests.e2e.vllm.conftest import NEW, SHAPE
from tests.e2e.vllm.logprobs import difference
from tests.e2e.vllm.servers import OBJECT, Server, prompt
from tests.integration.processes import eventually, pool

pytestmark = [pytest.mark.e2e, pytest.mark.timeout(600)]

SAME = 1e-4
PEER_TIMEOUT_S = 15.0


def transfer(role: str) -> dict[str, Any]:
    return {
        "kv_connector": "MoonpoolPDConnector",
        "kv_role": "kv_both",
        "kv_connector_extra_config": {
            "object_tokens": OBJECT,
            "lookup_wait_ms": 2000,
            "peer_timeout_s": PEER_TIMEOUT_S,
            "peer": {
                "kv_connector": "MooncakeConnector",
                "kv_role": role,
                "kv_connector_extra_config": {"mooncake_protocol": "tcp"},
            },
        },
    }


@dataclass
class Pair:
    """A prefill and a decode instance."""

    prefill: Server
    decode: Server

    def received(self, **changes: Any) -> dict[str, Any]:
        """What a router tells D: where P is, and the transfer's id."""
        address = f"http://127.0.0.1:{self.prefill.bootstrap}"
        with urllib.request.urlopen(f"{address}/query", timeout=30) as response:
            engine = json.load(response)["0"]["engine_id"]
        return {
            "do_remote_decode": False,
            "do_remote_prefill": True,
            "transfer_id": f"xfer-{uuid.uuid4().hex}",
            "remote_bootstrap_addr": address,
            "remote_engine_id": engine,
            **changes,
        }

    def ask(self, tokens: list[int], count: int = 8) -> dict[str, Any]:
        """Serve a prompt as a router does: both at once."""
        told = self.received()
        sends = {"do_remote_decode": True, "do_remote_prefill": False}
        sends["transfer_id"] = told["transfer_id"]
        with ThreadPoolExecutor() as threads:
            first = threads.submit(self.prefill.complete, tokens, 1, kv_transfer_params=sends)
            answer = self.decode.complete(tokens, count, kv_transfer_params=told)
            first.result()
        return answer

    def plain(self, tokens: list[int], count: int = 8) -> dict[str, Any]:
        return self.prefill.complete(tokens, count, cache_salt="plain")

    def in_pool(self, tokens: list[int]) -> None:
        """Have a prefix computed and stored."""
        self.prefill.complete(tokens, 1)
        saved = "vllm:moonpool_save_jobs"
        eventually("it is stored", lambda: self.prefill.metric(saved) == 0, 30)


@pytest.fixture(scope="module")
def pair(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Pair]:
    pytest.importorskip("vllm")
    pytest.importorskip("mooncake.engine", exc_type=ImportError)
    if not NEW:
        pytest.skip("MooncakeConnector on a CPU")
    folder = tmp_path_factory.mktemp("mooncake")
    model = build_model(folder, SHAPE)
    with contextlib.ExitStack() as stack:
        master, _ = stack.enter_context(pool(folder, size="256MB"))
        servers = [
            stack.enter_context(Server(name, model, folder, transfer(role), master.address))
            for name, role in (("prefill", "kv_producer"), ("decode", "kv_consumer"))
        ]
        for server in servers:
            server.spawn()
        yield Pair(*(server.ready() for server in servers))


def test_prefix_and_rest_come_at_the_same_time(pair: Pair) -> None:
    tokens = prompt(1, 500)
    pair.in_pool(tokens[:256])
    answer = pair.ask(tokens, 40)
    assert answer["cached"] == 500
    # What P stores while D is still asking counts as well.
    assert pair.decode.metric("vllm:moonpool_hit_tokens_total") >= 256
    assert pair.decode.metric("vllm:moonpool_peer_loads_total") == 1
    assert difference(answer, pair.plain(tokens, 40)) < SAME


def test_without_a_prefix_prefill_brings_all(pair: Pair) -> None:
    tokens = prompt(2, 300)
    answer = pair.ask(tokens)
    assert answer["cached"] == 300
    assert difference(answer, pair.plain(tokens)) < SAME


@pytest.mark.parametrize(
    ("changes", "metric"),
    [
        ({"remote_bootstrap_addr": "http://127.0.0.1:9", "remote_engine_id": "x"}, "failures"),
        ({"remote_engine_id": "nobody"}, "failures"),
        ({}, "timeouts"),
    ],
    ids=["unreachable", "unknown", "never-prefilled"],
)
def test_a_prefill_that_does_not_come_costs_a_recompute(
    pair: Pair, changes: dict[str, Any], metric: str
) -> None:
    tokens = prompt(3, 256) + prompt(len(str(changes)), 200)
    pair.in_pool(tokens[:256])
    before = pair.decode.metric(f"vllm:moonpool_peer_{metric}_total")
    answer = pair.decode.complete(tokens, kv_transfer_params=pair.received(**changes))
    assert pair.decode.metric(f"vllm:moonpool_peer_{metric}_total") == before + 1
    assert difference(answer, pair.plain(tokens, 4)) < SAME
    assert pair.decode.metric("vllm:moonpool_errors_total") == 0


def test_requests_to_the_wrong_side_are_plain_requests(pair: Pair) -> None:
    """Below MultiConnector each of them ends the engine."""
    tokens = prompt(5, 200)
    sends = {"do_remote_decode": True, "do_remote_prefill": False, "transfer_id": "x"}
    for server, params in ((pair.prefill, pair.received()), (pair.decode, sends)):
        answer = server.complete(tokens, kv_transfer_params=params)
        assert difference(answer, pair.plain(tokens, 4)) < SAME
        assert server.serves()


def test_one_transfer_id_for_two_requests_holds_no_blocks(pair: Pair) -> None:
    sends = {"do_remote_decode": True, "do_remote_prefill": False, "transfer_id": "twice"}
    before = pair.prefill.metric("vllm:moonpool_peer_params_refused_total")
    for n in range(3):
        pair.prefill.complete(prompt(10 + n, 200), 1, kv_transfer_params=sends)
    assert pair.prefill.metric("vllm:moonpool_peer_params_refused_total") == before + 2


def test_a_prefill_that_dies_while_it_is_awaited_is_noticed(pair: Pair) -> None:
    """The last of all. MooncakeConnector itself goes on waiting."""
    tokens = prompt(30, 300)
    plain = pair.plain(tokens)
    told, loads = pair.received(), "vllm:moonpool_peer_loads_total"
    before = pair.decode.metric(loads)
    with ThreadPoolExecutor() as threads:
        waiting = threads.submit(pair.decode.complete, tokens, 8, kv_transfer_params=told)
        eventually("it waits", lambda: pair.decode.metric(loads) > before, 30)
        pair.prefill.kill()
        answer = waiting.result()
    assert difference(answer, plain) < SAME
    assert f"nobody listens at 127.0.0.1:{pair.prefill.bootstrap}" in pair.decode.text()


def test_a_prefill_that_comes_back_on_its_port_has_another_name(pair: Pair) -> None:
    """D has cached who was there. Whoever still gives the old name gets an answer as well."""
    if pair.prefill.serves():
        pair.prefill.kill()
    pair.prefill.spawn().ready()
    tokens, other = prompt(31, 300), prompt(32, 300)
    stale = pair.received(remote_engine_id="the one before")
    answer = pair.decode.complete(tokens, 8, kv_transfer_params=stale)
    assert difference(answer, pair.plain(tokens)) < SAME
    assert difference(pair.ask(other), pair.plain(other)) < SAME
    assert pair.decode.metric("vllm:moonpool_errors_total") == 0
