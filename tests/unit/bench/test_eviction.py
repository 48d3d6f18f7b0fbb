"""``moonpool bench eviction``: its counts beside the whole master's, and the bound beside a search
through all that could be done."""

from __future__ import annotations

import json
import random
from functools import lru_cache
from itertools import combinations
from pathlib import Path

import pytest
from typer.testing import CliRunner

from moonpool.bench.eviction import OPTIMUM, SESSIONS, measure, run
from moonpool.bench.eviction_load import Ask, Load
from moonpool.bench.optimum import optimum
from moonpool.cli.app import app
from moonpool.core.eviction import POLICIES
from tests.unit.core.driver import block
from tests.unit.core.eviction.references import REFERENCES
from tests.unit.core.eviction.traffic import Traffic, paths

TRACES = Path(__file__).resolve().parents[4] / "shared" / "traces"


def load_of(requests: list[list[int]], objects: int) -> Load:
    asks = [Ask(10 * len(each), each) for each in requests]
    return Load("made", asks, [bytes(block(number)) for number in range(objects)], 10)


@pytest.mark.parametrize("seed", range(3))
@pytest.mark.parametrize("policy", POLICIES)
def test_hits_are_those_of_the_master_and_of_the_plain_model(policy: str, seed: int) -> None:
    requests = list(paths(seed, 60, 80))
    load = load_of(requests, 60)
    point = measure(load, policy, 0.25)
    assert point.capacity == 15
    traffic, model = Traffic(policy, 15), REFERENCES[policy](15)
    master = plain = 0
    for path in requests:
        master += traffic.request(path)
        leading = True
        for i, number in enumerate(path):
            leading &= model.access(number, path[i - 1] if i else None)
            plain += leading
    assert point.hit_tokens == 10 * master == 10 * plain
    assert point.hit_rate == point.hit_tokens / sum(10 * len(each) for each in requests)


def best(requests: list[list[int]], capacity: int) -> int:
    """Return the most hits that are possible, by trying whatever may be kept after each request:
    any of what was there or came, as many as there is room for."""

    @lru_cache(None)
    def search(at: int, there: frozenset[int]) -> int:
        if at == len(requests):
            return 0
        request = requests[at]
        leading = next((i for i, each in enumerate(request) if each not in there), len(request))
        have = sorted(there | set(request))
        kept = combinations(have, min(capacity, len(have)))
        return leading + max(search(at + 1, frozenset(each)) for each in kept)

    return search(0, frozenset())


@pytest.mark.parametrize("seed", range(12))
def test_nothing_that_could_be_kept_hits_more_than_the_optimum(seed: int) -> None:
    requests = list(paths(seed, 7, 9))
    for capacity in (1, 2, 3):
        assert sum(optimum(requests, 7, capacity)) == best(requests, capacity)


def test_no_policy_hits_more_than_the_optimum() -> None:
    requests = list(paths(9, 300, 500))
    load = load_of(requests, 300)
    for share in (0.05, 0.2, 0.6):
        bound = measure(load, OPTIMUM, share)
        for policy in POLICIES:
            point = measure(load, policy, share)
            assert point.hit_tokens <= bound.hit_tokens
        assert bound.seconds_saved < 1


def test_with_room_for_everything_all_are_the_same() -> None:
    load = load_of(list(paths(2, 50, 60)), 50)
    rates = {measure(load, policy, 1.0).hit_rate for policy in (*POLICIES, OPTIMUM)}
    assert len(rates) == 1


@pytest.mark.skipif(not TRACES.is_dir(), reason="the real traces are not here")
def test_the_ceiling_of_a_real_trace_is_what_it_is_known_for() -> None:
    report = run([TRACES / "mooncake-fast25-synthetic.jsonl.gz"], [OPTIMUM], [1.0])
    # Its own sum counts a last block that is not full.
    assert report.traces[0].ceiling == pytest.approx(0.6512, abs=1e-3)
    assert report.points[0].hit_rate == pytest.approx(report.traces[0].ceiling)


def test_conversations_that_are_over_make_room_for_those_that_go_on() -> None:
    asks = []
    for turn in range(1, 9):
        asks.append(Ask(10 * turn, list(range(200, 200 + turn)), "long", turn == 8))
        asks += [
            Ask(60, list(range(6 * short, 6 * short + 6)), f"short {short}", True)
            for short in range(3 * turn, 3 * turn + 3)
        ]
    load = Load("made", asks, [bytes(block(number)) for number in range(208)], 10)
    told, untold = measure(load, SESSIONS, 0.072), measure(load, "leaf-lru", 0.072)
    assert told.capacity == untold.capacity == 15
    assert (told.hit_tokens, untold.hit_tokens) == (10 * sum(range(1, 8)), 0)


def trace_file(folder: Path) -> Path:
    rng = random.Random(4)
    lines = []
    for at in range(60):
        first = 20 * rng.randrange(5)
        ids = list(range(first, first + rng.randint(2, 20)))
        line = {"timestamp": at, "input_length": 512 * len(ids), "output_length": 1}
        lines.append(json.dumps({**line, "hash_ids": ids}))
    file = folder / "made.jsonl"
    file.write_text("\n".join(lines) + "\n")
    return file


def test_the_command_prints_and_writes_what_it_measured(tmp_path: Path) -> None:
    results, picture = tmp_path / "found.json", tmp_path / "found.png"
    arguments = ["bench", "eviction", "--trace", str(trace_file(tmp_path)), "--sizes", "0.1,0.5"]
    ran = CliRunner().invoke(app, [*arguments, "--json", str(results), "--png", str(picture)])
    assert ran.exit_code == 0, ran.output
    found = json.loads(results.read_text())
    assert len(found["points"]) == 2 * (len(POLICIES) + 1)
    assert found["traces"][0]["requests"] == 60
    assert all(0 <= each["hit_rate"] <= 1 for each in found["points"])
    assert picture.read_bytes().startswith(b"\x89PNG")
    assert "leaf-lru" in ran.output


@pytest.mark.parametrize(
    "wrong", [["--policies", "best"], ["--sizes", "0"], ["--sizes", "half"], ["--trace", "no-file"]]
)
def test_what_is_wrong_is_said_in_one_line(tmp_path: Path, wrong: list[str]) -> None:
    arguments = ["bench", "eviction", "--trace", str(trace_file(tmp_path)), *wrong]
    ran = CliRunner().invoke(app, arguments)
    assert ran.exit_code == 2
