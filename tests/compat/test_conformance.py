"""Each behaviour of the Mooncake API, asserted on Mooncake's wheel and on moonpool."""

from __future__ import annotations

import pytest

from tests.compat.beds import Bed, cases

MODULES = (
    "copying",
    "looking",
    "zerocopy",
    "configs",
    "lives",
    "sessions",
    "places",
    "memory",
    "tensors",
    "engram",
    "beside",
)


@pytest.mark.parametrize("case", cases(*MODULES))
def test_behaviour(bed: Bed, case: str) -> None:
    bed.run(case)


@pytest.mark.parametrize("case", cases("leases"))
def test_short_leases(hasty: Bed, case: str) -> None:
    hasty.run(case)
