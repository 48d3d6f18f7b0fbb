"""Beds that all cases of a module share."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import ExitStack

import pytest

from tests.compat.beds import REAL, WHY_NOT_REAL, Bed, mooncake_bed, moonpool_bed

LEASE_MS = 600_000


@pytest.fixture(scope="package", params=["moonpool", "mooncake"])
def bed(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Bed]:
    """An implementation whose leases last longer than a test."""
    with ExitStack() as stack:
        yield _made(request.param, LEASE_MS, tmp_path_factory, stack)


@pytest.fixture(scope="package", params=["moonpool", "mooncake"])
def hasty(
    request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[Bed]:
    """An implementation whose leases end soon."""
    with ExitStack() as stack:
        yield _made(request.param, 1000, tmp_path_factory, stack)


def _made(name: str, lease_ms: int, folders: pytest.TempPathFactory, stack: ExitStack) -> Bed:
    if name == "mooncake":
        if not REAL:
            pytest.skip(WHY_NOT_REAL)
        return stack.enter_context(mooncake_bed(folders.mktemp(name), lease_ms))
    return stack.enter_context(moonpool_bed(folders.mktemp(name), lease_ms))
