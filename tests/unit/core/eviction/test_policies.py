"""Each policy evicts what its plainest model evicts, and chains stay whole where they should."""

from __future__ import annotations

import pytest

from moonpool.core.eviction import POLICIES
from tests.unit.core.driver import block
from tests.unit.core.eviction.references import REFERENCES
from tests.unit.core.eviction.traffic import Traffic, paths

LEAF_POLICIES = [name for name in POLICIES if name in ("leaf-lru", "cost")]


def test_every_policy_has_a_reference() -> None:
    assert set(REFERENCES) == set(POLICIES)


@pytest.mark.parametrize("seed", range(4))
@pytest.mark.parametrize("capacity", [1, 4, 12, 30])
@pytest.mark.parametrize("policy", POLICIES)
def test_a_policy_evicts_what_its_model_does(policy: str, capacity: int, seed: int) -> None:
    traffic = Traffic(policy, capacity)
    model = REFERENCES[policy](capacity)
    for path in paths(seed, 60, 80):
        held = traffic.hold(path)
        assert held == next((i for i, n in enumerate(path) if n not in model.resident), len(path))
        for i, number in enumerate(path):
            parent = path[i - 1] if i else None
            hit = model.access(number, parent)
            if i >= held:
                code = traffic.put(block(number), b"" if parent is None else block(parent))
                assert (code != 0) == hit
            if i >= held - 1:
                assert traffic.resident == model.resident


@pytest.mark.parametrize("policy", LEAF_POLICIES)
@pytest.mark.parametrize("seed", range(4))
def test_leaf_policies_leave_nothing_out_of_reach(policy: str, seed: int) -> None:
    traffic = Traffic(policy, 20)
    for path in paths(seed, 100, 200):
        traffic.request(path)
        for each in traffic.pool.state.index:
            assert not each.parent_key or each.parent is not None
    assert traffic.pool.count("evicted_inner") == 0
    assert traffic.pool.count("evicted_objects") > 20


@pytest.mark.parametrize("policy", [name for name in POLICIES if name not in LEAF_POLICIES])
def test_what_hangs_on_an_evicted_block_is_counted_and_found_again(policy: str) -> None:
    traffic = Traffic(policy, 20)
    for path in paths(1, 100, 200):
        held = traffic.request(path)
        assert held <= len(path)
        orphans = [each for each in traffic.pool.state.index if each.parent_key and not each.parent]
        if orphans:
            assert traffic.pool.count("evicted_inner") > 0
    assert traffic.pool.count("evicted_inner") > 0
