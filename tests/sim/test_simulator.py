"""Many seeds of the simulator; and proofs that it notices what it is there to notice."""

from __future__ import annotations

from collections import Counter
from dataclasses import replace

import pytest

from moonpool.core import nodes, puts
from moonpool.core.master import MasterState
from moonpool.core.segments import Put
from moonpool.core.state import State
from tests.sim.simulator import Corruption, Shape, Simulation

SEEDS = 200
GROUPS = 10


def simulate(seed: int, shape: Shape) -> Counter[str]:
    simulation = Simulation(seed, shape)
    simulation.run(shape.steps)
    simulation.wind_down()
    return simulation.count


@pytest.mark.parametrize("group", range(GROUPS))
def test_no_read_returns_foreign_bytes_and_no_space_leaks(group: int) -> None:
    total: Counter[str] = Counter()
    for seed in range(group, SEEDS, GROUPS):
        total += simulate(seed, Shape())
    for event in ("reads", "grant 0", "PutEnd 0", "PutEnd -700", "node_crashes", "client_crashes"):
        assert total[event] > 0, f"{event} never happened: {total}"


def test_a_run_can_be_repeated() -> None:
    assert simulate(7, Shape()) == simulate(7, Shape())


# --- broken masters, which the simulator must find out --------------------------------------------


def corrupts(monkeypatch: pytest.MonkeyPatch, shape: Shape, seeds: int = 40) -> bool:
    monkeypatch.setattr(MasterState, "validate_state", lambda _self: None)
    for seed in range(seeds):
        try:
            Simulation(seed, shape).run(shape.steps)
        except Corruption:
            return True
    return False


def free_places(state: State, put: Put) -> None:
    for slot in put.held:
        state.segments.by_handle[slot.segment].release(slot)
    put.held = []


FEW = Shape(nodes=3, keys=40, node_crash=0, node_blink=0, master_crash=0)


def test_a_small_pool_is_sound(monkeypatch: pytest.MonkeyPatch) -> None:
    assert not corrupts(monkeypatch, FEW)


def test_freeing_by_time_alone_is_noticed(monkeypatch: pytest.MonkeyPatch) -> None:
    right = State.discard_put

    def discard_put(self: State, put: Put) -> None:
        right(self, put)
        free_places(self, put)

    monkeypatch.setattr(State, "discard_put", discard_put)
    assert corrupts(monkeypatch, FEW)


def test_freeing_without_the_nodes_word_is_noticed(monkeypatch: pytest.MonkeyPatch) -> None:
    def client_gone(state: State, client: str) -> None:
        right(state, client)
        for put in [each for each in state.puts.values() if each.client == client]:
            free_places(state, put)

    right = puts.client_gone
    monkeypatch.setattr(puts, "client_gone", client_gone)
    assert corrupts(monkeypatch, replace(FEW, lost=0.05))


def test_forgetting_the_places_on_absent_nodes_is_noticed(monkeypatch: pytest.MonkeyPatch) -> None:
    def forget(state: State, _segment: object) -> None:
        for places in state.absent.values():
            for generation in places:
                state.puts[generation].absent -= 1
        state.absent.clear()
        state.absent_shapes.clear()

    shape = replace(FEW, node_blink=0.02)
    assert not corrupts(monkeypatch, shape)
    monkeypatch.setattr(nodes, "_take_back_places", forget)
    monkeypatch.setattr(nodes, "_keep_writing", lambda _state, _segment, _found: True)
    assert corrupts(monkeypatch, shape)


def test_forgetting_the_writers_of_the_last_epoch_is_noticed(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    shape = replace(FEW, master_crash=0.02)
    assert not corrupts(monkeypatch, shape)
    monkeypatch.setattr(nodes, "_keep_writing", lambda _state, _segment, _found: True)
    assert corrupts(monkeypatch, shape)
