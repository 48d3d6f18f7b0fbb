"""Prefill and decode below vLLM's MultiConnector: NIXL between the two, the pool beside it."""

from __future__ import annotations

import contextlib
import socket
import threading
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import pytest

from moonpool.demo.model import build_model
from tests.e2e.vllm.conftest import NEW, SHAPE
from tests.e2e.vllm.logprobs import difference
from tests.e2e.vllm.servers import BLOCK, OBJECT, Server, prompt
from tests.integration.processes import eventually, pool

pytestmark = [pytest.mark.e2e, pytest.mark.timeout(600)]

SAME = 1e-4
REMOTE_DECODE = {"do_remote_decode": True, "do_remote_prefill": False}
POOL = {
    "kv_connector": "MoonpoolConnector",
    "kv_role": "kv_both",
    "kv_connector_extra_config": {"object_tokens": OBJECT, "lookup_wait_ms": 2000},
}


def multi(role: str) -> dict[str, Any]:
    """The configuration of docs/pd.md."""
    return {
        "kv_connector": "MultiConnector",
        "kv_role": "kv_both",
        "kv_load_failure_policy": "recompute",
        "kv_connector_extra_config": {
            "connectors": [{"kv_connector": "NixlConnector", "kv_role": role}, POOL]
        },
    }


@dataclass
class Pair:
    """A prefill and a decode instance."""

    prefill: Server
    decode: Server

    def ask(self, tokens: list[int], count: int = 4) -> dict[str, Any]:
        """Serve a prompt as a proxy does: P first, its parameters to D."""
        first = self.prefill.complete(tokens, 1, kv_transfer_params=REMOTE_DECODE)
        return self.decode.complete(tokens, count, kv_transfer_params=first["params"])

    def plain(self, tokens: list[int], count: int = 4) -> dict[str, Any]:
        """Serve a prompt on one instance; the salt hides all that was computed before."""
        return self.prefill.complete(tokens, count, cache_salt="plain")


@pytest.fixture(scope="module")
def pair(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Pair]:
    pytest.importorskip("vllm")
    pytest.importorskip("nixl")
    if not NEW:
        pytest.skip("NixlConnector on a CPU")
    folder = tmp_path_factory.mktemp("multi")
    model = build_model(folder, SHAPE)
    with contextlib.ExitStack() as stack:
        master, _ = stack.enter_context(pool(folder, size="256MB"))
        servers = [
            stack.enter_context(Server(name, model, folder, multi(role), master.address))
            for name, role in (("prefill", "kv_producer"), ("decode", "kv_consumer"))
        ]
        for server in servers:
            server.spawn()
        yield Pair(*(server.ready() for server in servers))


@contextlib.contextmanager
def silent_port() -> Iterator[int]:
    """A port that takes connections and never answers."""
    with socket.create_server(("127.0.0.1", 0)) as listener:
        held: list[socket.socket] = []

        def accept() -> None:
            with contextlib.suppress(OSError):
                while True:
                    held.append(listener.accept()[0])

        threading.Thread(target=accept, daemon=True).start()
        try:
            yield listener.getsockname()[1]
        finally:
            listener.shutdown(socket.SHUT_RDWR)
            for one in held:
                one.close()


def test_decode_takes_the_prompt_from_prefill_and_the_pool_keeps_both(pair: Pair) -> None:
    tokens = prompt(1, 300)
    answer = pair.ask(tokens, 90)
    assert pair.decode.metric("vllm:nixl_xfer_time_seconds_count") == 1
    assert difference(answer, pair.plain(tokens, 90)) < SAME

    # The prompt was stored by P, the answer by D: the next turn finds both.
    turn = [*tokens, *answer["tokens"], *prompt(2, 50)]
    computed = (300 + 90 - 1) // BLOCK * BLOCK

    def found() -> bool:
        again = pair.prefill.complete(turn)
        assert difference(again, pair.plain(turn)) < SAME
        return bool(again["cached"] == computed)

    eventually("the answer is in the pool", found, 30)
    assert pair.decode.metric("vllm:moonpool_saves_total") >= 1
    assert pair.prefill.metric("vllm:moonpool_hit_tokens_total") >= 64


def test_both_connectors_are_on_vllms_metrics_page(pair: Pair) -> None:
    """MultiConnector wants both or neither of stats and metrics of each child."""
    pair.ask(prompt(3, 100))
    assert pair.decode.metric("vllm:nixl_bytes_transferred_count") >= 1
    for server in (pair.prefill, pair.decode):
        assert server.metric("vllm:moonpool_pool_connected") == 1
        assert server.metric("vllm:moonpool_errors_total") == 0
        assert server.serves()


def test_an_unreachable_prefill_costs_a_recompute(pair: Pair) -> None:
    """With ``kv_load_failure_policy`` at the top level."""
    tokens = prompt(4, 200)
    first = pair.prefill.complete(tokens, 1, kv_transfer_params=REMOTE_DECODE)
    with silent_port() as port:
        lost = first["params"] | {"remote_port": port, "remote_engine_id": "gone"}
        answer = pair.decode.complete(tokens, kv_transfer_params=lost)
    assert difference(answer, pair.plain(tokens)) < SAME


def test_an_abort_while_prefill_is_awaited_saves_nothing_wrong(pair: Pair) -> None:
    """The request's blocks are not filled yet, although it counts their tokens as computed."""
    tokens = prompt(5, 300)
    first = pair.prefill.complete(tokens, 1, cache_salt="s", kv_transfer_params=REMOTE_DECODE)
    with silent_port() as port:
        lost = first["params"] | {"remote_port": port, "remote_engine_id": "silent"}
        with pytest.raises(TimeoutError):
            pair.decode.post(tokens, timeout_s=2, kv_transfer_params=lost)
        eventually(
            "the request is gone",
            lambda: pair.decode.metric("vllm:num_requests_waiting") == 0,
            60,
        )
        assert pair.decode.serves()
        answer = pair.prefill.complete(tokens)
    assert difference(answer, pair.plain(tokens)) < SAME
