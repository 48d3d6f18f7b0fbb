"""Prefill and decode with NIXL between them and the pool beside: below MultiConnector, and joined.

Three instances: ``prefill`` and ``decode`` have MultiConnector, ``joined`` has MoonpoolPDConnector.
"""

from __future__ import annotations

import contextlib
import importlib
import json
import socket
import threading
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import closing
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

import msgspec
import pytest

from moonpool.demo.model import build_model
from moonpool.demo.place import free_ports
from tests.e2e.router_process import Router, count
from tests.e2e.vllm.conftest import NEW, SHAPE
from tests.e2e.vllm.logprobs import difference
from tests.e2e.vllm.servers import BLOCK, OBJECT, Server, prompt, read
from tests.integration.processes import Master, Node, eventually, freeze, pool

pytestmark = [pytest.mark.e2e, pytest.mark.timeout(600)]

SAME = 1e-4
PEER_TIMEOUT_S = 8.0
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


def joined() -> dict[str, Any]:
    """The composite, of docs/pd.md too."""
    return {
        "kv_connector": "MoonpoolPDConnector",
        "kv_role": "kv_both",
        "kv_connector_extra_config": {
            "object_tokens": OBJECT,
            "lookup_wait_ms": 2000,
            "peer_timeout_s": PEER_TIMEOUT_S,
            "peer": {"kv_connector": "NixlConnector"},
        },
    }


@dataclass
class Trio:
    """A prefill and two decode instances; the last can be either."""

    prefill: Server
    decode: Server
    joined: Server
    listener: Any
    """Hears the KV events of ``joined``."""
    pool: tuple[Master, Node]

    def heard(self) -> list[Any]:
        """Return the events that have come since the last call."""
        found = []
        while self.listener.poll(200):
            *_, payload = self.listener.recv_multipart()
            found += msgspec.msgpack.decode(payload)[1]
        return found

    def ask(
        self,
        tokens: list[int],
        count: int = 4,
        *,
        first: Server | None = None,
        second: Server | None = None,
    ) -> dict[str, Any]:
        """Serve a prompt as a proxy does: P first, its parameters to D."""
        told = (first or self.prefill).complete(tokens, 1, kv_transfer_params=REMOTE_DECODE)
        server = second or self.decode
        return server.complete(tokens, count, kv_transfer_params=told["params"])

    def plain(self, tokens: list[int], count: int = 4) -> dict[str, Any]:
        """Serve a prompt on one instance; the salt hides all that was computed before."""
        return self.prefill.complete(tokens, count, cache_salt="plain")


@pytest.fixture(scope="module")
def trio(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Trio]:
    pytest.importorskip("vllm")
    pytest.importorskip("nixl")
    if not NEW:
        pytest.skip("NixlConnector on a CPU")
    folder = tmp_path_factory.mktemp("multi")
    model = build_model(folder, SHAPE)
    with contextlib.ExitStack() as stack:
        master, (node,) = stack.enter_context(pool(folder, size="256MB"))
        configs = {
            "prefill": multi("kv_producer"),
            "decode": multi("kv_consumer"),
            "joined": joined(),
        }
        servers = [
            stack.enter_context(Server(name, model, folder, config, master.address))
            for name, config in configs.items()
        ]
        (port,) = free_ports(1)
        zmq: Any = importlib.import_module("zmq")
        context = zmq.Context()
        stack.callback(context.term)
        listener = stack.enter_context(closing(context.socket(zmq.SUB)))
        listener.connect(f"tcp://127.0.0.1:{port}")
        listener.subscribe("")
        events = {"enable_kv_cache_events": True, "publisher": "zmq"}
        events["endpoint"] = f"tcp://*:{port}"
        for server in servers:
            published = (
                ("--kv-events-config", json.dumps(events)) if server.name == "joined" else ()
            )
            server.spawn(*published)
        for server in servers:
            server.ready()
        prefill, decode, both = servers
        yield Trio(prefill, decode, both, listener, (master, node))


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


def test_decode_takes_the_prompt_from_prefill_and_the_pool_keeps_both(trio: Trio) -> None:
    tokens = prompt(1, 300)
    answer = trio.ask(tokens, 90)
    assert trio.decode.metric("vllm:nixl_xfer_time_seconds_count") == 1
    assert difference(answer, trio.plain(tokens, 90)) < SAME

    # The prompt was stored by P, the answer by D: the next turn finds both.
    turn = [*tokens, *answer["tokens"], *prompt(2, 50)]
    computed = (300 + 90 - 1) // BLOCK * BLOCK

    def found() -> bool:
        again = trio.prefill.complete(turn)
        assert difference(again, trio.plain(turn)) < SAME
        return bool(again["cached"] == computed)

    eventually("the answer is in the pool", found, 30)
    assert trio.decode.metric("vllm:moonpool_saves_total") >= 1
    assert trio.prefill.metric("vllm:moonpool_hit_tokens_total") >= 64


def test_both_connectors_are_on_vllms_metrics_page(trio: Trio) -> None:
    """MultiConnector wants both or neither of stats and metrics of each child."""
    trio.ask(prompt(3, 100))
    assert trio.decode.metric("vllm:nixl_bytes_transferred_count") >= 1
    for server in (trio.prefill, trio.decode):
        assert server.metric("vllm:moonpool_pool_connected") == 1
        assert server.metric("vllm:moonpool_errors_total") == 0
        assert server.serves()


def test_an_unreachable_prefill_costs_a_recompute(trio: Trio) -> None:
    """With ``kv_load_failure_policy`` at the top level."""
    tokens = prompt(4, 200)
    first = trio.prefill.complete(tokens, 1, kv_transfer_params=REMOTE_DECODE)
    with silent_port() as port:
        lost = first["params"] | {"remote_port": port, "remote_engine_id": "gone"}
        answer = trio.decode.complete(tokens, kv_transfer_params=lost)
    assert difference(answer, trio.plain(tokens)) < SAME


def test_an_abort_while_prefill_is_awaited_saves_nothing_wrong(trio: Trio) -> None:
    """The request's blocks are not filled yet, although it counts their tokens as computed."""
    tokens = prompt(5, 300)
    first = trio.prefill.complete(tokens, 1, cache_salt="s", kv_transfer_params=REMOTE_DECODE)
    with silent_port() as port:
        lost = first["params"] | {"remote_port": port, "remote_engine_id": "silent"}
        with pytest.raises(TimeoutError):
            trio.decode.post(tokens, timeout_s=2, kv_transfer_params=lost)
        eventually(
            "the request is gone",
            lambda: trio.decode.metric("vllm:num_requests_waiting") == 0,
            60,
        )
        assert trio.decode.serves()
        answer = trio.prefill.complete(tokens)
    assert difference(answer, trio.plain(tokens)) < SAME


# --- the composite -------------------------------------------------------------------------------


def in_pool(trio: Trio, tokens: list[int]) -> None:
    """Have a prefix computed and stored."""
    trio.prefill.complete(tokens, 1)
    blocks = len(tokens) // BLOCK * BLOCK

    def stored() -> bool:
        trio.decode.complete(tokens, 1)
        return bool(trio.decode.complete(tokens, 1)["cached"] == blocks)

    eventually("the prefix is in the pool", stored, 30)


def test_the_prefix_comes_from_the_pool_and_the_rest_from_prefill(trio: Trio) -> None:
    tokens = prompt(11, 500)
    in_pool(trio, tokens[:256])
    before = trio.joined.metric("vllm:moonpool_hit_tokens_total")
    answer = trio.ask(tokens, 40, second=trio.joined)
    assert difference(answer, trio.plain(tokens, 40)) < SAME
    assert trio.joined.metric("vllm:moonpool_hit_tokens_total") - before >= 256
    assert trio.joined.metric("vllm:moonpool_peer_loads_total") == 1
    assert trio.joined.metric("vllm:nixl_xfer_time_seconds_count") == 1
    # Of 16 blocks, 32 KiB each, those that the pool held did not come from the other instance.
    assert trio.joined.metric("vllm:nixl_bytes_transferred_sum") <= 8 * 32 * 1024
    assert trio.joined.metric("vllm:moonpool_peer_failures_total") == 0


def test_the_composite_prefills_for_others(trio: Trio) -> None:
    """Routers and other instances see no difference."""
    tokens = prompt(12, 300)
    in_pool(trio, tokens[:128])
    before = trio.decode.metric("vllm:nixl_xfer_time_seconds_count")
    answer = trio.ask(tokens, first=trio.joined, second=trio.decode)
    assert difference(answer, trio.plain(tokens)) < SAME
    assert trio.decode.metric("vllm:nixl_xfer_time_seconds_count") == before + 1


def test_requests_without_parameters_are_served_from_the_pool(trio: Trio) -> None:
    tokens = prompt(13, 300)
    in_pool(trio, tokens)
    answer = trio.joined.complete(tokens)
    assert answer["cached"] == 288
    assert answer["params"] is None
    assert difference(answer, trio.plain(tokens)) < SAME


def test_a_router_for_nixl_needs_to_know_nothing_of_the_composite(
    trio: Trio, tmp_path: Path
) -> None:
    tokens = prompt(40, 300)
    before = trio.joined.metric("vllm:moonpool_peer_loads_total")
    flags = ("--bypass-tokens", "48", "--policy", "round_robin")
    ends = ("--prefill", trio.prefill.url, "--decode", trio.joined.url)
    with Router(tmp_path, *ends, *flags) as router:
        status, body = trio.joined.post(tokens, url=router.url)
        assert count(router.metrics(), "pd_requests_total", path="split", reason="before") == 1
    assert status == 200
    assert difference(read(body), trio.plain(tokens)) < SAME
    # The pool has whole blocks only: the last comes from the other instance in any case.
    assert trio.joined.metric("vllm:moonpool_peer_loads_total") == before + 1


def test_what_is_stored_in_the_pool_is_published_beside_vllms_own_events(trio: Trio) -> None:
    trio.heard()
    trio.joined.complete(prompt(50, 200))
    hashes: dict[str, set[int]] = {"GPU": set(), "CPU": set()}

    def both() -> bool:
        for event in trio.heard():
            if event["type"] == "BlockStored":
                hashes[event["medium"]] |= set(event["block_hashes"])
        return len(hashes["CPU"]) == 200 // BLOCK

    eventually("the pool's events have come", both, 60)
    assert hashes["CPU"] <= hashes["GPU"]


def test_silent_peers_cost_a_recompute_and_nothing_hangs(trio: Trio) -> None:
    """NIXL's handshakes wait for one another: some fail in time, others are given up. The client of
    the last leaves meanwhile."""
    prompts = [prompt(14 + n, 300) for n in range(4)]
    told = [trio.prefill.complete(one, 1, kv_transfer_params=REMOTE_DECODE) for one in prompts]
    with silent_port() as port, ThreadPoolExecutor() as threads:
        lost = [
            one["params"] | {"remote_port": port, "remote_engine_id": f"silent{n}"}
            for n, one in enumerate(told)
        ]
        asked = [
            threads.submit(trio.joined.complete, one, kv_transfer_params=params)
            for one, params in zip(prompts[:3], lost[:3], strict=True)
        ]
        with pytest.raises(TimeoutError):
            trio.joined.post(prompts[3], timeout_s=2, kv_transfer_params=lost[3])
        answers = [one.result() for one in asked]
    answers.append(trio.joined.complete(prompts[3]))
    for one, answer in zip(prompts, answers, strict=True):
        assert difference(answer, trio.plain(one)) < SAME
    assert trio.joined.metric("vllm:moonpool_peer_timeouts_total") >= 1
    # When the handshakes have failed as well, no block is out of use any more.
    eventually(
        "the peer lets go",
        lambda: (
            trio.joined.complete(prompts[0], 1)
            and trio.joined.metric("vllm:moonpool_peer_held_blocks") == 0
        ),
        90,
    )


HOSTILE: list[Any] = [
    {"do_remote_prefill": True},
    {"do_remote_prefill": True, "do_remote_decode": True},
    {"do_remote_prefill": "yes", "do_remote_decode": {"a": []}},
    {"do_remote_decode": True, "remote_block_ids": [[1]], "remote_num_tokens": 1 << 60},
    {"remote_engine_id": []},
    {"pp_size": 1 << 40},
    {"remote_request_id": "\ud800"},
    {"remote_request_id": {"a": 1}},
    {"remote_block_ids": [[1, -1] * 5]},
    {"remote_block_ids": [[1 << 62] * 10]},
    {"remote_block_ids": [[1 << 30] * 10]},
    {"remote_block_ids": [list(range(100_000, 100_010))]},
    {"remote_block_ids": [[1]]},
    {"remote_block_ids": "1234567890"},
    {"remote_host": "not a host", "remote_port": -1},
    {"tp_size": 0},
    {"transfer_mode": ["pull"]},
]


def test_nothing_that_clients_write_into_the_parameters_hurts(trio: Trio) -> None:
    tokens = prompt(20, 300)
    told = trio.prefill.complete(tokens, 1, kv_transfer_params=REMOTE_DECODE)["params"]
    whole = [
        one
        if "do_remote_prefill" in one or "do_remote_decode" in one
        else told | {"remote_request_id": f"other-{n}"} | one
        for n, one in enumerate(HOSTILE)
    ]
    prompts = [prompt(30 + n, 300) for n in range(len(whole))]
    with ThreadPoolExecutor(4) as threads:
        answers = list(
            threads.map(
                lambda each: trio.joined.post(each[0], kv_transfer_params=each[1]),
                zip(prompts, whole, strict=True),
            )
        )
    for params, (status, body) in zip(whole, answers, strict=True):
        # vLLM's front cannot pass half a surrogate pair on, in any field.
        unsendable = params.get("remote_request_id") == "\ud800"
        assert (status, unsendable) in ((200, False), (500, True)), (params, body)
    assert trio.joined.serves()
    assert trio.joined.metric("vllm:moonpool_errors_total") == 0
    for one in (prompts[0], prompts[10], tokens):
        assert difference(trio.joined.complete(one), trio.plain(one)) < SAME


def test_several_answers_to_one_prompt_are_fetched_once(trio: Trio) -> None:
    """vLLM makes a request of each, all with the same parameters; P keeps its blocks for one."""
    tokens = prompt(58, 300)
    told = trio.prefill.complete(tokens, 1, kv_transfer_params=REMOTE_DECODE)["params"]
    # Almost greedy: vLLM gives several answers to samplers only.
    status, body = trio.joined.post(tokens, n=3, temperature=0.01, kv_transfer_params=told)
    assert status == 200, body
    plain = trio.plain(tokens)
    for choice in body["choices"]:
        assert difference(read({**body, "choices": [choice]}), plain) < SAME


def test_a_pool_that_dies_takes_neither_child_along(trio: Trio) -> None:
    """Below MultiConnector and in the composite: first it hangs, then it is gone."""
    prompts = [prompt(62 + n, 300) for n in range(4)]
    plain = [trio.plain(one) for one in prompts]
    for one in prompts:
        in_pool(trio, one[:256])
    master, node = trio.pool
    freeze(node.process.pid)
    answers = [trio.ask(prompts[0]), trio.ask(prompts[1], second=trio.joined)]
    node.kill()
    master.kill()
    answers += [trio.ask(prompts[2]), trio.ask(prompts[3], second=trio.joined)]
    for answer, expected in zip(answers, plain, strict=True):
        assert difference(answer, expected) < SAME
    master.start()
    node.start()
    for server in (trio.prefill, trio.decode, trio.joined):
        eventually("it has joined again", partial(_is_joined, server), 60)
        assert server.metric("vllm:moonpool_errors_total") == 0


def _is_joined(server: Server) -> bool:
    server.complete(prompt(66, 100), 1)
    saving = server.metric("vllm:moonpool_save_jobs")
    return server.metric("vllm:moonpool_pool_connected") == 1 and not saving


def test_a_killed_prefill_costs_a_recompute(trio: Trio) -> None:
    """The last of all: it is gone for good."""
    tokens, other = prompt(60, 300), prompt(61, 300)
    plain = trio.plain(tokens), trio.plain(other)
    told = [
        trio.prefill.complete(one, 1, kv_transfer_params=REMOTE_DECODE)["params"]
        for one in (tokens, other)
    ]
    trio.prefill.kill()
    for server, one, params, expected in (
        (trio.joined, tokens, told[0], plain[0]),
        (trio.decode, other, told[1], plain[1]),
    ):
        answer = server.complete(one, kv_transfer_params=params)
        assert difference(answer, expected) < SAME
        assert server.serves()
