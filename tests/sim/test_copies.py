"""Many seeds of the simulator with copies, and proofs that it notices what it is to notice."""

from __future__ import annotations

from collections import Counter
from dataclasses import replace

import pytest

from moonpool.core import draining, retiring
from moonpool.core import messages as m
from moonpool.core.index import Object
from moonpool.core.master import MasterState
from moonpool.core.state import State
from tests.sim.copies import CopySimulation
from tests.sim.disks import DiskSimulation
from tests.sim.simulator import Call, Corruption, Process, Shape, Task

SEEDS = 50
GROUPS = 5
ROOMY = Shape(nodes=5, keys=60, pages=48, slots=64, stall=0.01, client_crash=0.001)


def simulate(seed: int, shape: Shape) -> Counter[str]:
    simulation = CopySimulation(seed, shape)
    simulation.run(shape.steps)
    simulation.wind_down()
    return simulation.count


@pytest.mark.parametrize("group", range(GROUPS))
def test_copies_are_never_of_foreign_bytes_and_no_space_leaks(group: int) -> None:
    total: Counter[str] = Counter()
    for seed in range(group, SEEDS, GROUPS):
        total += simulate(seed, ROOMY)
    for event in (
        "reads",
        "copy PutEnd 0",
        "copy PutEnd -700",
        "copy PutRevoke 0",
        "repair_copies",
        "drain_copies",
        "hot_copies",
        "copies_failed",
        "copies_dropped",
        "node_crashes",
        "master_crashes",
    ):
        assert total[event] > 0, f"{event} never happened: {total}"


class WithDisks(CopySimulation, DiskSimulation):
    """One seeded run with copies and disks."""


def test_copies_and_disks_do_not_get_into_each_others_way() -> None:
    total: Counter[str] = Counter()
    for seed in range(12):
        simulation = WithDisks(seed, replace(ROOMY, pages=32 if seed % 2 else 16, steps=3000))
        simulation.run(3000)
        simulation.wind_down()
        total += simulation.count
    for event in ("reads", "copy PutEnd 0", "drain_copies", "shelved", "promoted"):
        assert total[event] > 0, f"{event} never happened: {total}"


def test_a_run_can_be_repeated() -> None:
    assert simulate(3, ROOMY) == simulate(3, ROOMY)


# --- drains lose nothing --------------------------------------------------------------------------

CALM = replace(
    ROOMY,
    keys=40,
    pages=256,
    slots=256,
    lost=0,
    client_crash=0,
    node_crash=0,
    node_blink=0,
    master_crash=0,
    steps=6000,
)
LEASE_S = 20.0


class Lost(AssertionError):
    """An object that was found could not be read anywhere it was said to be."""


class Readers(CopySimulation):
    """Clients that put and read, nothing else; there is room for all, and nobody crashes."""

    drain = 0.01

    def _thread(self, client: Process) -> Task:
        while True:
            yield self._pause()
            yield from self._put(client) if self.rng.random() < 0.3 else self._get(client)

    def _get(self, client: Process) -> Task:
        key, asked = self._key(), self.now
        self._leases += 1
        lease = self._leases
        reply = yield from self._call(client, m.Get([key], lease, LEASE_S))
        epoch = self.master.state.epoch
        for located in reply.objects:
            if located.generation:
                yield from self._read_any(epoch, key, located, asked + LEASE_S)
        yield from self._call(client, m.Release([lease]))

    def _read_any(self, epoch: int, key: bytes, located: m.Located, until: float) -> Call:
        for slot in located.slots:
            before = self.count["reads"]
            one = m.Located(
                located.size, located.checksum, slot.generation or located.generation, [slot]
            )
            yield from self._read(epoch, key, one)
            if self.count["reads"] > before:
                return
        if self.now < until:
            raise Lost(f"{key!r} at {located}")


def lose(shape: Shape, seeds: int) -> bool:
    for seed in range(seeds):
        try:
            Readers(seed, shape).run(shape.steps)
        except (Lost, Corruption, AssertionError):
            return True
    return False


def test_no_hit_is_lost_while_nodes_are_drained() -> None:
    total: Counter[str] = Counter()
    for seed in range(15):
        simulation = Readers(seed, CALM)
        simulation.run(CALM.steps)
        state = simulation.master.state
        found = simulation.handle(m.Exists([simulation._key_of(i) for i in range(CALM.keys)]), "c")
        assert sum(found.present) == state.counters["puts"], "an object is gone"
        total += simulation.count
        total += state.counters
    assert total["drain_copies"] > 100
    assert total["copies_dropped"] > 100
    assert total["reads"] > 1000


def test_giving_up_a_place_that_is_read_is_noticed(monkeypatch: pytest.MonkeyPatch) -> None:
    right = retiring.retire_now

    def retire_now(state: State, each: Object, handle: int) -> None:
        leases, each.leases = each.leases, 0
        right(state, each, handle)
        each.leases = leases

    # The place is used again once the node is.
    tight = replace(CALM, pages=24)
    assert not lose(tight, 5)
    monkeypatch.setattr(retiring, "retire_now", retire_now)
    assert lose(tight, 40)


def test_giving_up_a_place_before_the_copy_is_there_is_noticed(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(retiring, "is_needless", lambda *_: True)
    monkeypatch.setattr(
        draining, "healthy_hosts", lambda _state, each: {"any"} if each.slots else set()
    )
    monkeypatch.setattr(MasterState, "validate_state", lambda _self: None)
    assert lose(CALM, 15)
