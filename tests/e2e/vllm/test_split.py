"""Prefill and decode on two real engines that share nothing but the pool."""

from __future__ import annotations

import contextlib
import http.client
import itertools
import os
import signal
import time
from collections.abc import Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass, field
from typing import Any

import pytest

from moonpool.client.store import Store
from moonpool.demo.model import build_model
from tests.e2e.vllm.conftest import NEW, SHAPE
from tests.e2e.vllm.logprobs import difference
from tests.e2e.vllm.servers import BLOCK, OBJECT, Server, prompt
from tests.integration.processes import Master, eventually, pool

pytestmark = [pytest.mark.e2e, pytest.mark.timeout(600)]

SAME = 1e-4
LONG = 900
WHOLE = LONG // BLOCK * BLOCK
OBJECTS = -(-WHOLE // OBJECT)
WAIT_S = 10.0
NEVER = "nobody prefills this"


def config(role: str) -> dict[str, Any]:
    extra = {"object_tokens": OBJECT, "lookup_wait_ms": 2000, "pd_wait_s": WAIT_S}
    return {
        "kv_connector": "MoonpoolConnector",
        "kv_role": role,
        "kv_connector_extra_config": extra,
    }


def to_p(transfer: Any) -> dict[str, Any]:
    return {"do_remote_decode": True, "do_remote_prefill": False, "transfer_id": transfer}


def to_d(transfer: Any) -> dict[str, Any]:
    return {"do_remote_decode": False, "do_remote_prefill": True, "transfer_id": transfer}


@dataclass
class Split:
    """A prefill and a decode instance, and what a router does with them."""

    prefill: Server
    decode: Server
    store: Store
    threads: ThreadPoolExecutor
    master: Master
    numbers: Iterator[int] = field(default_factory=itertools.count)

    def begin(
        self, tokens: list[int], count: int = 4
    ) -> tuple[Future[dict[str, Any]], Future[dict[str, Any]]]:
        """Send a prompt to both at the same time."""
        transfer = f"transfer-{next(self.numbers)}"
        first = self.threads.submit(
            self.prefill.complete, tokens, 1, kv_transfer_params=to_p(transfer)
        )
        second = self.threads.submit(
            self.decode.complete, tokens, count, kv_transfer_params=to_d(transfer)
        )
        return first, second

    def ask(self, tokens: list[int], count: int = 4) -> dict[str, Any]:
        first, second = self.begin(tokens, count)
        first.result()
        return second.result()

    def plain(self, tokens: list[int], count: int = 4) -> dict[str, Any]:
        """Serve a prompt on one instance; the salt hides all that was computed before."""
        return self.decode.complete(tokens, count, cache_salt="plain")

    def counted(self, name: str) -> float:
        return self.decode.metric(f"vllm:moonpool_{name}_total")


@pytest.fixture(scope="module")
def split(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Split]:
    pytest.importorskip("vllm")
    if not NEW:
        pytest.skip("this release needs PYTHONHASHSEED")
    folder = tmp_path_factory.mktemp("split")
    model = build_model(folder, SHAPE)
    with contextlib.ExitStack() as stack:
        master, _ = stack.enter_context(pool(folder, size="256MB"))
        servers = [
            stack.enter_context(Server(name, model, folder, config(role), master.address))
            for name, role in (("prefill", "kv_producer"), ("decode", "kv_consumer"))
        ]
        # Small steps: a prompt takes many, so that what happens meanwhile can be seen.
        servers[0].spawn("--max-num-batched-tokens", "32")
        servers[1].spawn()
        store = stack.enter_context(Store.connect(master.address, name="probe"))
        threads = stack.enter_context(ThreadPoolExecutor(8))
        prefill, decode = (server.ready() for server in servers)
        yield Split(prefill, decode, store, threads, master)


def test_d_answers_like_one_engine_and_loads_while_p_computes(split: Split) -> None:
    found = []
    for seed in range(10):
        tokens = prompt(seed, LONG)
        before = split.counted("remote_objects_early"), split.counted("remote_tokens")
        answer = split.ask(tokens)
        assert difference(answer, split.plain(tokens)) < SAME
        early = split.counted("remote_objects_early") - before[0]
        found.append((early, split.counted("remote_tokens") - before[1]))
        # On a busy machine P may stand still for so long that D does not wait for all of it.
        if early >= OBJECTS / 2 and found[-1][1] == WHOLE:
            return
    pytest.fail(f"D has never loaded a whole prompt while P computed it: {found}")


def test_the_next_turn_is_prefilled_from_what_d_has_saved(split: Split) -> None:
    tokens = prompt(20, 300)
    answer = split.ask(tokens, 90)
    turn = [*tokens, *answer["tokens"], *prompt(21, 50)]
    computed = (300 + 90 - 1) // BLOCK * BLOCK

    def hit() -> bool:
        first, second = split.begin(turn)
        assert difference(second.result(), split.plain(turn)) < SAME
        return bool(first.result()["cached"] >= computed)

    assert split.prefill.metric("vllm:moonpool_hit_tokens_total") == 0
    eventually("P finds D's answer", hit, 30)
    assert split.prefill.metric("vllm:moonpool_hit_tokens_total") >= 64


def test_many_at_once(split: Split) -> None:
    prompts = [prompt(30 + n, 200 + 30 * n) for n in range(4)]
    begun = [split.begin(tokens) for tokens in prompts]
    for tokens, (first, second) in zip(prompts, begun, strict=True):
        stored = first.result()["params"]["moonpool"]["tokens"]
        assert stored == len(tokens) // BLOCK * BLOCK
        assert difference(second.result(), split.plain(tokens)) < SAME
    eventually(
        "all handoffs are over",
        lambda: split.prefill.metric("vllm:moonpool_open_handoffs") == 0,
    )
    assert split.prefill.metric("vllm:moonpool_handoffs_failed_total") == 0


def test_who_leaves_d_while_it_waits_leaves_nothing_behind(split: Split) -> None:
    with pytest.raises(TimeoutError):
        split.decode.post(prompt(40, LONG), timeout_s=1, kv_transfer_params=to_d(NEVER))
    eventually(
        "nothing is loading", lambda: split.decode.metric("vllm:moonpool_loading_requests") == 0
    )
    eventually("nothing runs", lambda: split.decode.metric("vllm:kv_cache_usage_perc") == 0)


HOSTILE: list[Any] = [
    {**to_d("x"), "do_remote_decode": True},
    to_d(None),
    to_d(7),
    to_d(["a", {"b": 1}]),
    to_d("x" * 10_000),
    to_d("\ud800"),
    to_p({"a": 1}),
    {**to_p("x"), "do_remote_decode": "yes"},
    {"do_remote_prefill": float("nan"), "transfer_id": float("inf")},
    {"do_remote_prefill": 2**70, "transfer_id": 2**70},
    {**to_p("twice"), "remote_prefill_cached_tokens": -5},
    to_p("twice"),
    {"a": [[[[[[[[[[[[{}]]]]]]]]]]]] * 50},
    {"k" * 10_000: "v" * 100_000},
    [1, 2],
    "do_remote_prefill",
    7,
]


def test_nothing_that_a_client_sends_hurts_an_engine(split: Split) -> None:
    tokens = prompt(50, 100)
    expected = split.plain(tokens)
    for server in (split.prefill, split.decode):
        for params in HOSTILE:
            status, body = server.post(tokens, kv_transfer_params=params)
            assert status in (200, 400, 422, 500), body
        for odd in ("text", 7, [1.0, 2.0]):
            server.post(tokens, vllm_xargs={"kv_transfer_params": odd})
        assert server.serves()
        assert difference(server.complete(tokens), expected) < SAME
        assert server.metric("vllm:moonpool_errors_total") == 0
        assert server.metric("vllm:moonpool_params_ignored_total") >= 8


def test_without_p_d_computes_the_prompt_itself(split: Split) -> None:
    tokens = prompt(60, LONG)
    began = time.monotonic()
    answer = split.decode.complete(tokens, kv_transfer_params=to_d(NEVER))
    assert time.monotonic() - began >= WAIT_S
    assert difference(answer, split.plain(tokens)) < SAME


def test_a_p_that_is_killed_costs_a_recompute(split: Split) -> None:
    """In the middle of a prefill: some objects are there, others never come."""
    failed = split.counted("remote_prefills_failed")
    for seed in range(70, 90):
        tokens = prompt(seed, LONG)
        before = split.store.status().objects
        first, second = split.begin(tokens)
        while split.store.status().objects <= before:
            assert not first.done(), "P has stored nothing"
        os.killpg(split.prefill.pid, signal.SIGSTOP)
        if split.store.status().objects < before + OBJECTS - 2:
            break
        os.killpg(split.prefill.pid, signal.SIGCONT)
        first.result()
        second.result()
    split.prefill.kill()
    assert isinstance(first.exception(), OSError | http.client.HTTPException)
    answer = second.result()
    assert difference(answer, split.plain(tokens)) < SAME
    assert split.counted("remote_prefills_failed") > failed
    assert split.decode.metric("vllm:moonpool_errors_total") == 0


def test_a_split_whose_master_is_gone_is_computed_by_d(split: Split) -> None:
    """The very last. The first request finds out; those after it know."""
    prompts = [prompt(90 + n, LONG) for n in range(3)]
    plain = [split.plain(tokens) for tokens in prompts]
    split.master.kill()
    for tokens, expected in zip(prompts, plain, strict=True):
        answer = split.decode.complete(tokens, kv_transfer_params=to_d(NEVER))
        assert difference(answer, expected) < SAME
    assert split.decode.metric("vllm:moonpool_pool_connected") == 0
    assert split.decode.metric("vllm:moonpool_errors_total") == 0
