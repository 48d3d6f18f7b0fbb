"""The machine of test_stateful with every other eviction policy."""

from __future__ import annotations

import pytest
from hypothesis import settings
from hypothesis.stateful import run_state_machine_as_test

from moonpool.core.eviction import DEFAULT, POLICIES
from moonpool.core.master import MasterConfig
from tests.sim import test_stateful

FEW = settings(test_stateful.TestPool.settings, max_examples=40)


@pytest.mark.parametrize("policy", [name for name in POLICIES if name != DEFAULT])
def test_any_policy_keeps_the_state_sound(policy: str) -> None:
    machine = type(
        "PoolOf",
        (test_stateful.Pool,),
        {"config": MasterConfig(eviction=policy, hard_pin_share=1.0)},
    )
    run_state_machine_as_test(machine, settings=FEW)
