"""On real traces hits are those of a count that knows nothing of the simulator."""

from __future__ import annotations

from itertools import islice
from pathlib import Path

import pytest

from moonpool.sim.fleet.fleet import Fleet
from moonpool.sim.fleet.master import Prices
from moonpool.sim.fleet.pool import PoolShape
from moonpool.sim.fleet.shape import FleetShape, Group
from moonpool.sim.fleet.traces import Recorded, recorded
from moonpool.sim.fleet.traffic import Plan
from moonpool.sim.hardware import Hardware
from moonpool.workload.traces import read_trace, sessions_of

TRACES = Path(__file__).resolve().parents[5] / "shared" / "traces"
pytestmark = pytest.mark.skipif(not TRACES.is_dir(), reason="the real traces are not here")

# So fast that no request meets another one: what is there then depends on nothing but order.
FAST = Hardware(
    prefill_s=1e-12,
    attention_s=0.0,
    step_s=1e-9,
    kv_read_s=0.0,
    overhead_s=0.0,
    hbm_tokens=10_000_000,
    kv_bytes=16,
    batch_tokens=1 << 20,
    local_gb_s=1e9,
    load_latency_s=0.0,
)
NOTHING = Prices(dict.fromkeys(Prices().message, 0.0), dict.fromkeys(Prices().item, 0.0))


def shape(block_tokens: int) -> FleetShape:
    return FleetShape(
        both=Group(3, FAST),
        pool=PoolShape(1000.0),
        block_tokens=block_tokens,
        nic_gb_s=1e9,
        prices=NOTHING,
    )


def brute_force(prompts: list[tuple[int, list[int]]], block_tokens: int) -> int:
    """Count the tokens in leading blocks that were seen before, the whole prefix as a tuple's hash;
    engines compute the last token themselves."""
    seen: set[int] = set()
    hits = 0
    for tokens, blocks in prompts:
        prefix, known, found = 0, True, 0
        for block in blocks[: tokens // block_tokens]:
            prefix = hash((prefix, block))
            known = known and prefix in seen
            found += known
            seen.add(prefix)
        hits += min(found * block_tokens, tokens - 1)
    return hits


def test_requests_at_their_own_times() -> None:
    path = TRACES / "mooncake-fast25-synthetic.jsonl.gz"
    (group,) = read_trace(path)
    requests = list(group.requests)
    prompts = [(each.input_tokens, each.blocks.tolist()) for each in requests]
    # A second apart: many have the same time otherwise.
    traffic = recorded(path, group.block_tokens, Plan(1), 1 << 30, speed=1e-3)
    records = Fleet(shape(group.block_tokens)).run(traffic)
    assert len(records) == len(requests)
    found = records.column("local_tokens") + records.column("pool_tokens")
    expected = brute_force(prompts, group.block_tokens)
    assert expected / sum(each.input_tokens for each in requests) > 0.6
    # What a cache that forgets nothing has, and what the fleet found, but for requests of one
    # moment: they cannot find what the others are about to compute.
    assert records.column("could_hit_tokens").sum() == expected
    assert found.sum() == pytest.approx(expected, rel=0.005)


def test_conversations() -> None:
    groups = islice(read_trace(TRACES / "claude-code-60.jsonl.gz"), 6)
    sessions = [session for group in groups for session in sessions_of(group)]
    block = sessions[0].block_tokens
    prompts = [
        (turn.input_tokens, [hash((session.scope, b)) for b in (turn.blocks.tolist())])
        for session in sessions
        for turn in session.turns
        if turn.blocks is not None
    ]
    records = Fleet(shape(block)).run(Recorded(sessions, block, Plan(1)))
    assert len(records) == len(prompts)
    found = records.column("local_tokens") + records.column("pool_tokens")
    assert found.sum() == pytest.approx(brute_force(prompts, block), abs=len(prompts) * block)
    assert found.sum() / sum(tokens for tokens, _ in prompts) > 0.9
