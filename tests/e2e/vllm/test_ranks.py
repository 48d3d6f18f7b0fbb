"""Real vLLM with two workers: objects in shards, which engines of either size store and load."""

from __future__ import annotations

from typing import Any

import pytest

from moonpool.demo.model import build_model
from tests.e2e.vllm.conftest import NEW, SHAPE, run_module
from tests.integration.processes import pool

pytestmark = [
    pytest.mark.e2e,
    pytest.mark.timeout(900),
    pytest.mark.skipif(not NEW, reason="shards need vLLM 0.29"),
]

SAME = 1e-4


@pytest.fixture(scope="module")
def found(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Any]:
    """What one process found with two engines, one after the other."""
    pytest.importorskip("vllm")
    folder = tmp_path_factory.mktemp("ranks")
    model = build_model(folder, SHAPE)
    with pool(folder, size="256MB") as (master, _):
        facts = {"TEST_MASTER": master.address}
        return run_module("ranks", [str(model)], folder, facts)["llama"]


def test_two_workers_load_what_they_stored(found: dict[str, Any]) -> None:
    cold, hot, *_ = found["cached"]
    assert (cold, hot) == (0, 288)
    assert found["difference"] < SAME


def test_each_worker_stores_its_heads_of_each_object(found: dict[str, Any]) -> None:
    """Four objects of two blocks and a tail of one; a head of two layers is 16,384 bytes."""
    assert found["shards"] == 2
    assert found["alike"]
    assert found["sizes"] == [16384] * 2 + [32768] * 8


def test_an_object_that_lacks_a_shard_is_not_there(found: dict[str, Any]) -> None:
    """It is computed and stored again."""
    assert found["gone"]
    assert found["cached"][2:4] == [0, 288]


def test_one_worker_loads_what_two_stored(found: dict[str, Any]) -> None:
    assert found["cached"][4:] == [288, 320]
