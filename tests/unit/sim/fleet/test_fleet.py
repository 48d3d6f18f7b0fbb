"""Fleets: times and hits that can be checked by hand."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace

import pytest

from moonpool.errors import ConfigError
from moonpool.sim.events import Clock
from moonpool.sim.fleet.fleet import Fleet
from moonpool.sim.fleet.master import ROUND_TRIP_S, Prices
from moonpool.sim.fleet.pool import PoolShape
from moonpool.sim.fleet.request import Request
from moonpool.sim.fleet.shape import FleetShape, Group
from moonpool.sim.fleet.traffic import Conversations, Plan
from moonpool.sim.hardware import Hardware
from moonpool.workload.session import Session, Turn

BLOCK = 100
FREE = Prices(dict.fromkeys(Prices().message, 0.0), dict.fromkeys(Prices().item, 0.0))
# A token takes 1 ms, a step 10 ms; a block of KV is 10^8 bytes.
HARDWARE = Hardware(
    prefill_s=0.001,
    attention_s=0.0,
    step_s=0.01,
    kv_read_s=0.0,
    overhead_s=0.0,
    hbm_tokens=10_000,
    kv_bytes=1_000_000,
    batch_tokens=1000,
    local_gb_s=10.0,
    load_latency_s=0.0,
)


class Timed:
    """Requests at given times."""

    def __init__(self, *requests: tuple[float, Request]) -> None:
        self._requests = requests

    def start(self, clock: Clock, submit: Callable[[Request], None], until_s: float) -> None:
        for at, request in self._requests:
            clock.at(at, lambda request=request: submit(request))  # type: ignore[misc]


def request(number: int, prompt: int, output: int = 1) -> Request:
    keys = [*range(number * 1000, number * 1000 + prompt // BLOCK)]
    return Request(str(number), 0, keys, prompt, output, runs=((number, len(keys)),))


def both(engines: int = 1, **more: object) -> FleetShape:
    group = Group(engines, HARDWARE, 1.0)
    shape = FleetShape(both=group, block_tokens=BLOCK, prices=FREE)
    return replace(shape, **more)  # type: ignore[arg-type]


def test_a_prompt_is_computed_in_chunks_and_decoded_step_by_step() -> None:
    asked = request(1, 2500, output=4)
    Fleet(both()).run(Timed((0.0, asked)))
    # Chunks of 1000, 1000 and 500 tokens; then three more tokens.
    assert asked.ttft_s == pytest.approx(2.5 + 3 * 0.01)
    assert asked.e2e_s == pytest.approx(2.5 + 3 * 0.01 + 3 * 0.01)


def test_decoding_goes_on_beside_a_prefill() -> None:
    first, second = request(1, 100, output=100), request(2, 600)
    Fleet(both()).run(Timed((0.0, first), (0.5, second)))
    # The first: 0.11 s to its first token, then 99 steps of 0.01 s, of which one took 0.6 s more.
    # The second comes at a step's boundary (0.11 + 39 x 0.01 = 0.5).
    assert second.ttft_s == pytest.approx(0.61)
    assert first.e2e_s == pytest.approx(0.11 + 99 * 0.01 + 0.6)


def test_what_the_engine_has_is_not_computed_again() -> None:
    first, again = request(1, 950), request(1, 1000)
    Fleet(both()).run(Timed((0.0, first), (10.0, again)))
    assert (again.local_tokens, again.pool_tokens) == (900, 0)
    assert again.ttft_s == pytest.approx(0.1 + 0.01)


def test_the_last_token_is_always_computed() -> None:
    first, again = request(1, 1000), request(1, 1000)
    Fleet(both()).run(Timed((0.0, first), (10.0, again)))
    assert again.local_tokens == 900  # as vLLM: whole blocks, and never all of a prompt


@pytest.mark.parametrize("runs", [False, True])
def test_another_engine_loads_what_the_pool_has(runs: bool) -> None:
    first, again = request(1, 1000), request(1, 1500)
    pool = PoolShape(dram_gb=100.0)
    shape = both(2, pool=pool, nic_gb_s=2.0, runs=runs)
    fleet = Fleet(shape)
    fleet.run(Timed((0.0, first), (10.0, again)))
    assert (first.engine, again.engine) == (0, 1)
    assert (again.local_tokens, again.pool_tokens) == (0, 1000)
    # A GB in 0.5 s over the network, while it takes 0.1 s into the engine; 500 tokens are left.
    # The master is asked for the prefix, the lease, the places, each a round trip.
    assert again.ttft_s == pytest.approx(0.5 + 0.5 + 0.01 + 3 * ROUND_TRIP_S)
    assert fleet.traffic_of_hosts()["nic_in"] == 1_000_000_000
    assert fleet.master.messages["match"] == 2


def test_two_loads_share_the_network() -> None:
    first, second = request(1, 1000), request(2, 1000)
    again, other = request(1, 1001), request(2, 1001)
    pool = PoolShape(dram_gb=100.0)
    shape = both(2, pool=pool, nic_gb_s=2.0)
    # Round robin: 0 computes both, 1 idles on a stranger between; then 1 loads both at once.
    strangers = [request(8, 100), request(9, 100)]
    times = [(0.0, first), (5.0, strangers[0]), (10.0, second), (15.0, strangers[1])]
    times += [(20.0, request(7, 100)), (30.0, again), (30.0, request(6, 100)), (30.0, other)]
    Fleet(shape).run(Timed(*times))
    assert again.engine == other.engine == 1
    assert again.pool_tokens == other.pool_tokens == 1000
    # Two GB over 2 GB/s (one alone would take 0.5 s); then one token each, in a step or two.
    for each in (again, other):
        assert 1.0 + 0.01 < each.ttft_s < 1.0 + 0.025


def test_engines_of_one_host_slow_one_another_down() -> None:
    group = Group(2, replace(HARDWARE, contention=0.5), 0.5)
    first, second = request(1, 1000), request(2, 1000)
    Fleet(both(both=group)).run(Timed((0.0, first), (0.5, second)))
    # The first step began alone; the second beside it, with half as much on top.
    assert first.ttft_s == pytest.approx(1.01)
    assert second.ttft_s == pytest.approx(1.5 * 1.01)


def split(**more: object) -> FleetShape:
    shape = FleetShape(
        prefill=Group(1, HARDWARE), decode=Group(1, HARDWARE), block_tokens=BLOCK, prices=FREE
    )
    return replace(shape, **more)  # type: ignore[arg-type]


def test_prefill_here_decode_there() -> None:
    asked = request(1, 1000, output=5)
    fleet = Fleet(split(nic_gb_s=1.0))
    fleet.run(Timed((0.0, asked)))
    # One chunk, a GB over the network, and a step for each token.
    assert asked.ttft_s == pytest.approx(1.01 + 1.0 + 0.01)
    assert asked.e2e_s == pytest.approx(1.01 + 1.0 + 5 * 0.01)
    assert fleet.handed_bytes == 1_000_000_000
    assert (asked.engine, asked.decoder) == (0, 1)


def test_the_decoding_engine_is_sent_what_it_does_not_have() -> None:
    first, again = request(1, 1000, output=2), request(1, 1500, output=2)
    fleet = Fleet(split(nic_gb_s=1.0))
    fleet.run(Timed((0.0, first), (10.0, again)))
    assert again.local_tokens == 1000
    assert fleet.handed_bytes == 1_500_000_000


def test_a_full_decoding_engine_lets_others_wait() -> None:
    small = replace(HARDWARE, hbm_tokens=1500)
    first, second = request(1, 1000, output=100), request(2, 1000, output=100)
    shape = split(decode=Group(1, small), nic_gb_s=1000.0)
    Fleet(shape).run(Timed((0.0, first), (0.0, second)))
    assert second.first_s > first.end_s


def test_a_shape_is_one_thing_or_the_other() -> None:
    with pytest.raises(ConfigError, match="engines"):
        FleetShape()


def sessions(count: int, turns: int) -> list[Session]:
    each = tuple(Turn(500 + 300 * turn, 10, 1.0) for turn in range(turns))
    return [Session(f"s{n}", "scope", 1, each, 200) for n in range(count)]


def test_hits_are_those_of_a_count_by_brute_force() -> None:
    traffic = Conversations(sessions(6, 8), BLOCK, Plan(3))
    shape = both(2, pool=PoolShape(dram_gb=1000.0))
    records = Fleet(shape).run(traffic)
    assert len(records) == 48
    # With room for all, each turn finds all full blocks of the one before, and the first of each
    # conversation what is common, but for the very first.
    prompts = [500 + 300 * turn for turn in range(8)]
    expected = 6 * sum(prompts[:-1]) + 5 * 200
    found = records.column("local_tokens").sum() + records.column("pool_tokens").sum()
    ideal = records.column("could_hit_tokens").sum()
    assert ideal == expected
    # Conversations that begin while the first is still computing may miss what is common.
    assert expected - 2 * 200 <= found <= expected


def test_the_same_again() -> None:
    def once() -> list[float]:
        traffic = Conversations(sessions(4, 5), BLOCK, Plan(2, seed=3))
        shape = both(2, pool=PoolShape(dram_gb=2.0), policy="prefix")
        return [*Fleet(shape).run(traffic).column("end_s")]

    assert once() == once()
