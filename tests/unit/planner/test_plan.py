"""Plans, against figures worked out by hand and against what was measured."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from typer.testing import CliRunner

from moonpool.cli.app import app
from moonpool.errors import ConfigError
from moonpool.planner.costs import STEP_S, Engine
from moonpool.planner.demand import Demand, demand_of
from moonpool.planner.machines import GPUS, LINKS
from moonpool.planner.models import MODELS
from moonpool.planner.plan import Site, plan
from moonpool.workload.traces import read_trace
from tests.unit.workload.test_traces import _trace

LLAMA = Engine(MODELS["llama-3.1-8b"], GPUS["h200"], 1, LINKS["100G"])
RUN = CliRunner()


def _demand(tmp_path: Path, *prompts: tuple[int, list[int]], engines: int = 1) -> Demand:
    path = tmp_path / "trace.jsonl"
    lines = [
        {"timestamp": n * 1000, "input_length": length, "output_length": 1, "hash_ids": ids}
        for n, (length, ids) in enumerate(prompts)
    ]
    path.write_text("".join(json.dumps(line) + "\n" for line in lines))
    return demand_of(read_trace(path), engines)


@pytest.mark.parametrize(
    ("name", "kv_bytes"),
    [
        ("llama-3.1-8b", 131_072),
        ("llama-3.1-70b", 327_680),
        ("qwen3-8b", 147_456),
        ("deepseek-v3", 70_272),
        ("kimi-k2.5", 70_272),
    ],
)
def test_kv_follows_from_the_shape(name: str, kv_bytes: int) -> None:
    assert MODELS[name].kv_bytes() == kv_bytes
    assert MODELS[name].kv_bytes("fp8") == kv_bytes // 2


@pytest.mark.parametrize(
    ("tokens", "measured_s"), [(32_000, 1.17), (80_000, 4.52), (120_000, 8.85)]
)
def test_prefill_on_an_h200_is_what_was_measured(tokens: int, measured_s: float) -> None:
    assert LLAMA.prefill_s(0, tokens) == pytest.approx(measured_s, rel=0.08)


def test_computing_the_rest_is_what_the_whole_takes_less_the_head() -> None:
    whole, head, rest = (LLAMA.prefill_s(*ends) for ends in ((0, 900), (0, 500), (500, 900)))
    assert whole - STEP_S == pytest.approx(head + rest - 2 * STEP_S)
    each = LLAMA.prefill_each(np.array([0, 500]), np.array([900, 900]))
    assert each.tolist() == pytest.approx([whole, rest])


def test_crossover_is_where_loading_begins_to_pay() -> None:
    for gb_s in (2.0, 10.0, 43.0):
        tokens = LLAMA.crossover(gb_s)
        assert tokens is not None
        pays = [
            LLAMA.load_s(n, gb_s) < LLAMA.prefill_s(0, n) - STEP_S for n in (tokens - 1, tokens)
        ]
        assert pays == [False, True]
    assert LLAMA.crossover(1e-6) is None


def test_a_pool_serves_what_engines_in_turn_cannot(tmp_path: Path) -> None:
    # Two conversations; with two engines in turn each engine sees each prompt anew.
    a, b = [1, 2], [3, 4]
    prompts = [(1024, a), (1024, b), (1024, b), (1024, a)]
    demand = _demand(tmp_path, *prompts, engines=2)
    assert demand.hits(demand.pool, 4 * 512).tolist() == [0, 0, 1023, 1023]
    assert demand.hits(demand.own, 1e9).tolist() == [0, 0, 0, 0]
    assert demand.hits(demand.pool, 2 * 512).tolist() == [0, 0, 1023, 0]
    found = plan(demand, Site(LLAMA, 2, 1), pool_gb=4 * 512 * 131_072 / 1e9)
    assert [each.hit_rate for each in found.variants] == [0.0, 0.0, pytest.approx(0.5, abs=0.001)]
    assert found.most == 0.5
    assert found.network_gbit_s == 0.0  # one host: nothing comes from another


def test_costs_by_hand(tmp_path: Path) -> None:
    demand = _demand(tmp_path, (1024, [1, 2]), (1024, [1, 2]))
    site = Site(LLAMA, 1, 1, gpu_hour=10.0, dram_gb_month=2.0)
    found = plan(demand, site, pool_gb=1.0)
    nothing, _, pooled = found.variants
    hours = 2 * LLAMA.prefill_s(0, 1024) / 3600
    assert nothing.gpu_hours == pytest.approx(hours)
    assert nothing.cost_month == pytest.approx(hours * 30.44 * 86_400 * 10)
    assert pooled.gpu_hours == pytest.approx(
        (LLAMA.prefill_s(0, 1024) + LLAMA.prefill_s(1023, 1024)) / 3600
    )
    assert found.dram_gb + found.ssd_gb == pytest.approx(1.0)


@pytest.mark.parametrize("name", ["mooncake-fast25-conversation", "mooncake-fast25-synthetic"])
def test_a_sample_is_within_a_point(name: str) -> None:
    path = _trace(f"{name}.jsonl.gz")
    exact, sampled = demand_of(read_trace(path), 2), demand_of(read_trace(path), 2, rate=0.1)
    tokens = exact.distinct * exact.block_tokens
    for share in (0.001, 0.01, 0.03, 0.1, 0.2, 0.3, 0.5, 1.0):
        one, other = (each.hit_rate(each.pool, share * tokens) for each in (exact, sampled))
        assert other == pytest.approx(one, abs=0.01), share
    hits = [int(each.hits(each.pool, tokens).sum()) for each in (exact, sampled)]
    assert hits[1] == pytest.approx(hits[0], rel=0.05)


def test_a_trace_of_lengths_alone_is_refused(tmp_path: Path) -> None:
    path = tmp_path / "trace.csv"
    path.write_text("TIMESTAMP,ContextTokens,GeneratedTokens\n2023-11-16 18:17:03,48,10\n")
    with pytest.raises(ConfigError, match="does not say what its prompts hold"):
        demand_of(read_trace(path), 1)


def _call(tmp_path: Path, *more: str) -> Any:
    trace = tmp_path / "chat.jsonl"
    RUN.invoke(app, ["trace", "synth", "chat", str(trace), "--conversations", "40"])
    return RUN.invoke(app, ["plan", "--trace", str(trace), "--block-tokens", "64", *more])


def test_the_command_writes_a_page_a_figure_and_json(tmp_path: Path) -> None:
    prices, page, figure = (tmp_path / name for name in ("prices.toml", "p.html", "p.png"))
    prices.write_text('gpu_hour = 3\ndram_gb_month = 0.5\ncurrency = "EUR"\n')
    more = ["--prices", str(prices), "--html", str(page), "--png", str(figure), "--json"]
    found = _call(tmp_path, *more)
    assert found.exit_code == 0, found.output
    told = json.loads(found.stdout)
    rates = [rate for _, rate in told["curve"]]
    assert rates == sorted(rates)
    assert told["variants"][2]["hit_rate"] > 0.5
    assert figure.read_bytes().startswith(b"\x89PNG")
    assert "a month, EUR" in page.read_text()


@pytest.mark.parametrize(
    ("more", "reason"),
    [
        (["--model", "x"], "model: 'x' is not known; allowed: llama-3.1-8b"),
        (["--gpu", "x"], "gpu: 'x' is not known"),
        (["--kv-dtype", "x"], "kv-dtype: 'x' is not known; allowed: bf16, fp8"),
        (["--prices", "/nowhere"], "prices: /nowhere: No such file"),
        (["--pool", "x"], "pool: 'x' is no size"),
        (["--html", "/nowhere/p.html"], "/nowhere/p.html: No such file"),
    ],
)
def test_wrong_usage_is_one_line(tmp_path: Path, more: list[str], reason: str) -> None:
    found = _call(tmp_path, *more)
    assert found.exit_code == 2
    assert reason in found.stderr
    assert len(found.stderr.splitlines()) == 1
