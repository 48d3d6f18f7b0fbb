"""``bench e2e`` and a recording router on two real engines below one pool."""

from __future__ import annotations

import contextlib
import json
import urllib.request
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from moonpool.bench.e2e.counters import Counts
from moonpool.bench.e2e.measure import COMPLETE, Sources, measure
from moonpool.bench.e2e.options import Options
from moonpool.bench.e2e.record import Record
from moonpool.client.store import Store
from moonpool.demo.model import build_model
from moonpool.workload.prompts import Prompts
from moonpool.workload.selection import Cut, Selection, select
from moonpool.workload.stats import stats_of
from moonpool.workload.traces import read_trace
from tests.e2e.router_process import Router
from tests.e2e.vllm.conftest import NEW, SHAPE
from tests.e2e.vllm.servers import BLOCK, Server
from tests.integration.processes import Master, eventually, pool
from tests.unit.workload.test_traces import _trace

pytestmark = [pytest.mark.e2e, pytest.mark.timeout(600)]

ANSWER = 2
SAVED_S = 60.0
VOCABULARY = 200
CONFIG = {
    "kv_connector": "MoonpoolConnector",
    "kv_role": "kv_both",
    # An object for every block, and lookups that never come late: nothing depends on speed.
    "kv_connector_extra_config": {
        "object_tokens": BLOCK,
        "lookup_wait_ms": 10_000,
        "cost_model": False,
        "save_timeout_s": 120.0,
        "load_timeout_s": 120.0,
    },
}


@pytest.fixture(scope="module")
def engines(tmp_path_factory: pytest.TempPathFactory) -> Iterator[tuple[Master, list[Server]]]:
    pytest.importorskip("vllm")
    if not NEW:
        pytest.skip("this release needs PYTHONHASHSEED")
    folder = tmp_path_factory.mktemp("replay")
    model = build_model(folder, SHAPE)
    with contextlib.ExitStack() as stack:
        master, _ = stack.enter_context(pool(folder, size="256MB"))
        servers = [
            stack.enter_context(Server(name, model, folder, CONFIG, master.address)).spawn()
            for name in ("one", "two")
        ]
        yield master, [server.ready() for server in servers]


def _selection() -> Selection:
    """Conversations of a real trace, cut to a small model."""
    cut = Cut(sessions=4, turns=6, block_tokens=3, output_tokens=ANSWER, context_tokens=1000)
    found = select(read_trace(_trace("claude-code-60.jsonl.gz")), cut)
    # An answer must not complete a block: that would be one more object in the pool.
    found.items = [item for item in found.items if item.input_tokens % BLOCK != BLOCK - 1]
    return found


def _heads(prompt: list[int]) -> list[tuple[int, ...]]:
    return [tuple(prompt[:end]) for end in range(BLOCK, len(prompt) + 1, BLOCK)]


class _Brute:
    """Engines' caches and the pool as sets of whole prefixes, each of which forgets nothing."""

    def __init__(self) -> None:
        self.own: list[set[tuple[int, ...]]] = [set(), set()]
        self.pool: set[tuple[int, ...]] = set()
        self.hbm_tokens = self.pool_tokens = 0

    def ask(self, engine: int, prompt: list[int]) -> None:
        could = _heads(prompt[:-1])
        own = sum(head in self.own[engine] for head in could)
        both = max(own, sum(head in self.pool for head in could))
        self.hbm_tokens += BLOCK * own
        self.pool_tokens += BLOCK * (both - own)
        self.own[engine].update(_heads(prompt))
        self.pool.update(_heads(prompt))


async def test_hits_by_source_are_those_of_a_brute_count(
    engines: tuple[Master, list[Server]],
) -> None:
    master, servers = engines
    urls = tuple(server.url for server in servers)
    selection, prompts, brute = _selection(), Prompts(VOCABULARY), _Brute()
    items = {(item.session, item.turn): item for item in selection.items}
    before = _objects(master.address)

    def saved(record: Record) -> None:
        """Wait until the pool has what was just computed: the next request may want it."""
        brute.ask(record.endpoint, prompts.prompt(items[record.session, record.turn]))
        wanted = before + 4 + len(brute.pool)
        eventually("all is saved", lambda: _objects(master.address) >= wanted, SAVED_S)

    options = Options(urls, "tiny", concurrency=1, think_scale=0.0, request_timeout_s=300.0)
    pages = [f"http://127.0.0.1:{master.ready['http_port']}"]
    found = await measure(options, selection, prompts, Sources(urls, pages), done=saved)
    assert found.ended == COMPLETE
    assert not found.summary.failures
    assert found.summary.answered == len(selection.items) > 5
    assert found.engine_block_tokens == BLOCK
    hits = found.hits
    assert hits.hbm == brute.hbm_tokens > 0
    assert hits.pool == brute.pool_tokens > 0
    assert hits.hbm + hits.pool == hits.answered_cached == hits.ideal
    assert hits.queries == sum(item.input_tokens for item in selection.items)
    assert hits.hit_rate == hits.ideal_rate
    # What connectors and the pool count themselves says the same.
    loaded = sum(_loaded(each) for each in found.engines.values())
    assert loaded == brute.pool_tokens
    assert found.pools[pages[0]] is not None
    assert found.summary.output_tokens == ANSWER * len(selection.items)
    assert all(each.ttft_s <= each.e2e_s for each in found.records)


def _objects(address: str) -> int:
    with Store.connect(address, name="probe") as store:
        return store.status().objects


def _loaded(counts: Counts | None) -> float:
    assert counts is not None
    return counts["vllm:moonpool_hit_tokens_total"]


def test_text_is_recorded_in_the_engines_own_blocks(
    engines: tuple[Master, list[Server]], tmp_path: Path
) -> None:
    """Two questions to the same document: lengths are those that the engine counts, and the
    blocks that the two share are the document's."""
    _, servers = engines
    out = tmp_path / "recorded.jsonl"
    document = "All work and no play makes a dull day. " * 8
    flags = ("--record", str(out), "--policy", "prefix")
    counted = []
    with Router(tmp_path, *flags, *(f"--instance={server.url}" for server in servers)) as router:
        eventually("prompts are known as tokens", lambda: _exact(router.url), SAVED_S)
        for question in ("Who works here?", "And who plays at all?"):
            body = {"model": "tiny", "prompt": document + question, "max_tokens": 3}
            body |= {"ignore_eos": True, "user": "somebody"}
            counted.append(_post(f"{router.url}/v1/completions", body)["usage"])
    lines = [json.loads(line) for line in out.read_text().splitlines()]
    assert [line["input_length"] for line in lines] == [u["prompt_tokens"] for u in counted]
    assert [line["output_length"] for line in lines] == [3, 3]
    assert len({line["session_id"] for line in lines}) == 1
    first, second = (line["hash_ids"] for line in lines)
    shared = sum(one == other for one, other in zip(first, second, strict=False))
    # A token is a byte of the text.
    assert shared == len(document) // BLOCK < len(first) <= len(second)
    assert shared * BLOCK >= (counted[1]["prompt_tokens_details"] or {}).get("cached_tokens", 0)
    assert "dull" not in out.read_text()
    stats = stats_of(read_trace(out))
    assert (stats.requests, stats.sessions) == (2, 1)


def _exact(url: str) -> bool:
    with urllib.request.urlopen(f"{url}/status", timeout=SAVED_S) as response:
        return bool(json.load(response)["prompts"]["kind"] != "text")


def _post(url: str, body: dict[str, Any]) -> dict[str, Any]:
    data = json.dumps(body).encode()
    request = urllib.request.Request(url, data, {"Content-Type": "application/json"})
    with urllib.request.urlopen(request, timeout=300) as response:
        answer: dict[str, Any] = json.load(response)
    return answer
