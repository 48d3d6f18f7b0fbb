"""Puts that do not end, where both masters are told to wait a second or two."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from tests.compat.beds import REAL, WHY_NOT_REAL, Bed, cases, mooncake_bed, moonpool_bed

LEASE_MS = 600_000
FLAGS = "--put_start_discard_timeout_sec=1", "--put_start_release_timeout_sec=2"


@pytest.fixture(params=["moonpool", "mooncake"])
def impatient(
    request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[Bed]:
    """A pool that gives puts up soon."""
    folder = tmp_path_factory.mktemp(request.param)
    if request.param == "moonpool":
        with moonpool_bed(folder, LEASE_MS, put_timeout_s=1.0) as bed:
            yield bed
    elif REAL:
        with mooncake_bed(folder, LEASE_MS, *FLAGS) as bed:
            yield bed
    else:
        pytest.skip(WHY_NOT_REAL)


@pytest.mark.parametrize("case", cases("hanging"))
def test_puts_that_hang(impatient: Bed, case: str) -> None:
    impatient.run(case)
