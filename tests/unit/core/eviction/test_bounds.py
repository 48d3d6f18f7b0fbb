"""What policies remember is bounded, and lookups never hold eviction back."""

from __future__ import annotations

import pytest

from moonpool.core import messages as m
from moonpool.core.eviction import POLICIES, make_policy
from moonpool.core.eviction.arc import Arc
from moonpool.core.eviction.cost import CostAware
from moonpool.core.eviction.ghosts import Ghosts
from moonpool.core.eviction.s3fifo import S3Fifo
from moonpool.core.index import Object, placed
from moonpool.core.keys import key_of
from moonpool.errors import ConfigError
from tests.unit.core.driver import NAMESPACE, Driver, block, digests
from tests.unit.core.eviction.traffic import Traffic, paths


def test_a_policy_that_does_not_exist_is_refused() -> None:
    with pytest.raises(ConfigError, match="leaf-lru"):
        Driver(eviction="belady")


@pytest.mark.parametrize("policy", POLICIES)
def test_lookups_without_a_lease_hold_nothing_back(policy: str) -> None:
    """A prober that never stops must not keep what it asks for, nor change what goes next."""
    gone: list[list[int]] = []
    for probes in (False, True):
        traffic = Traffic(policy, 8)
        for path in paths(3, 40, 80):
            for number in path:
                if probes:
                    pool = traffic.pool
                    names: list[bytes] = [block(each) for each in range(40)]
                    pool.ask(m.Exists(names))
                    pool.ask(m.MatchKeys(names))
                    pool.ask(m.Match(NAMESPACE, digests(*range(40)), 16))
                    pool.ask(m.Stat(block(number)))
            traffic.request(path)
            gone.append(sorted(traffic.resident))
    half = len(gone) // 2
    assert gone[:half] == gone[half:]


@pytest.mark.parametrize("policy", POLICIES)
def test_reads_without_a_lease_cannot_stop_a_put(policy: str) -> None:
    traffic = Traffic(policy, 4)
    for number in range(40):
        traffic.pool.get(*(block(each) for each in range(number)), lease_s=0.0)
        assert traffic.put(block(number), b"") == 0


@pytest.mark.parametrize("policy", POLICIES)
def test_what_is_leased_stays_until_its_lease_ends(policy: str) -> None:
    traffic = Traffic(policy, 6)
    traffic.request(list(range(6)))
    held: list[bytes] = [block(number) for number in (0, 1, 2)]
    pool = traffic.pool
    assert pool.expect(m.Matched, m.Hold(held, 99, 50.0)).count == 3
    for number in range(10, 30):
        traffic.request([number])
        assert pool.exists(*held) == [1, 1, 1]
    pool.ask(m.Release([99]))
    for number in range(30, 60):
        traffic.request([number, number + 100])
        traffic.request([number, number + 100])
    assert not any(pool.exists(*held[1:]))


@pytest.mark.parametrize("policy", POLICIES)
def test_what_came_and_went_costs_nothing(policy: str) -> None:
    made = make_policy(policy, lambda: 1 << 30)
    queues = 0
    for serial in range(1, 10_000):
        key = key_of(f"k{serial}")
        each = Object(-1, serial, serial, key, b"", placed(m.Located(4096)))
        made.offer(each, 1)
        made.used([each])
        made.removed(each)
        each.place = b""
        held = [value for value in vars(made).values() if hasattr(value, "__len__")]
        flat = [part for value in held for part in (value if isinstance(value, tuple) else [value])]
        queues = max(queues, *(len(each) for each in flat if not isinstance(each, Ghosts)))
    assert queues < 1100
    assert made.pop() is None


def test_ghosts_are_no_more_than_the_pool_would_hold() -> None:
    for policy in ("s3fifo", "arc"):
        traffic = Traffic(policy, 10)
        for path in paths(5, 400, 60):
            traffic.request(path)
        found = traffic.pool.state.eviction
        if isinstance(found, S3Fifo):
            assert 0 < len(found.ghosts) <= 9
        else:
            assert isinstance(found, Arc)
            assert 0 < sum(map(len, found.ghosts)) <= 20


def test_a_removed_object_is_no_ghost() -> None:
    for policy in ("s3fifo", "arc"):
        traffic = Traffic(policy, 10)
        traffic.request([1, 2, 3])
        traffic.pool.remove(block(3))
        found = traffic.pool.state.eviction
        ghosts = [found.ghosts] if isinstance(found, S3Fifo) else found.ghosts  # type: ignore[attr-defined]
        assert not any(map(len, ghosts))


def test_cost_prefers_what_is_deep_small_or_used_again() -> None:
    pool = Driver(eviction="cost")
    pool.mount(pages=64, slots=400)
    state = pool.state
    chain = [block(number) for number in range(40)]
    pool.put_chain(*chain)
    pool.put(block(100))
    policy = state.eviction
    assert isinstance(policy, CostAware)
    worth = {key: policy._notes[each].worth for key, each in state.index.by_key.items()}
    assert worth[chain[39]] > worth[chain[0]] == worth[block(100)]
    pool.get(block(100), lease_s=0.0)
    other = block(1, b"small model")
    pool.put(other, size=512)
    notes = {each.key: policy._notes[each] for each in state.index}
    assert notes[block(100)].worth == 2 * worth[block(100)]
    assert notes[other].worth == 8 * worth[block(100)]
    assert notes[block(100)].uses == 2
