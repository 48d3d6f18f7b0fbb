"""``moonpool bench restart``, small: it kills, starts again, and finds everything."""

from __future__ import annotations

import pytest

from moonpool.bench.restart import run
from moonpool.errors import ConfigError


@pytest.mark.parametrize(("role", "size"), [("master", 4096), ("node", 300_000)])
def test_everything_is_found_again(role: str, size: int) -> None:
    for found in run(role, 640, size, 2, rounds=2):
        assert found.serves_s > 0
        assert 0 < found.back_s < 120
        assert found.master_cpu_s >= 0
        assert found.node_cpu_s >= 0


def test_a_role_that_there_is_not() -> None:
    with pytest.raises(ConfigError, match="role"):
        run("engine", 64, 4096, 1, 1)


def test_more_than_memory_holds_is_refused_before_anything_is_started() -> None:
    with pytest.raises(ConfigError, match=r"objects: they take \d+ bytes and \d+ are free"):
        run("node", 1 << 30, 1 << 20, 1, 1)
