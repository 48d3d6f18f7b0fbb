"""Real vLLM with models that mix sliding windows and full attention, or have latent attention."""

from __future__ import annotations

import pytest

from tests.e2e.vllm.conftest import NEW, Findings, run_module
from tests.integration.processes import pool

pytestmark = [
    pytest.mark.e2e,
    pytest.mark.timeout(900),
    pytest.mark.skipif(not NEW, reason="several groups of layers need vLLM 0.30"),
]

SAME = 1e-4
"""Float32 logprobs may differ by this much."""
WINDOWS = ["gemma3", "gpt_oss"]


@pytest.fixture(scope="module")
def shapes(tmp_path_factory: pytest.TempPathFactory) -> Findings:
    """What was found, by model. One process, engines one after the other."""
    pytest.importorskip("vllm")
    folder = tmp_path_factory.mktemp("shapes")
    with pool(folder, size="256MB") as (master, _):
        return run_module("shapes", [str(folder)], folder, {"TEST_MASTER": master.address})


@pytest.mark.parametrize("model", WINDOWS)
@pytest.mark.parametrize(("prompt", "hit"), [("shared", 288), ("whole", 320), ("short", 128)])
def test_windows_beside_full_attention_give_the_same_logprobs(
    shapes: Findings, model: str, prompt: str, hit: int
) -> None:
    """As vLLM alone, computed and from the pool; what comes first in the prompt matters."""
    found = shapes[model][prompt]
    assert found["cached"] == [0, hit]
    assert found["difference"] < SAME
    assert shapes[model]["sensitive"] > 100 * SAME


def test_only_what_the_next_token_sees_is_stored(shapes: Findings) -> None:
    """Objects of two blocks of 16,384 bytes a layer: of a window shorter than a block only one."""
    assert shapes["gemma3"]["stored"] == [2 * 2 * 16384, 4 * 2 * 16384]
    assert shapes["gpt_oss"]["stored"] == [2 * 2 * 16384, 2 * 1 * 16384]


def test_only_what_the_next_token_sees_is_loaded(shapes: Findings) -> None:
    """Objects of full attention, and of the window."""
    assert [shapes["gemma3"][name]["loaded"] for name in ("shared", "whole", "short")] == [
        [[0, 5], [1, 2]],
        [[0, 5], [1, 2]],
        [[0, 2], [1, 2]],
    ]
    assert [shapes["gpt_oss"][name]["loaded"] for name in ("shared", "whole", "short")] == [
        [[0, 5], [1, 1]],
        [[0, 5], [1, 1]],
        [[0, 2], [1, 1]],
    ]


@pytest.mark.parametrize("model", WINDOWS)
def test_a_next_turn_goes_on_where_the_engines_own_hit_ends(shapes: Findings, model: str) -> None:
    assert shapes[model]["turn"]["cached"] == 384
    assert shapes[model]["turn"]["difference"] < SAME


@pytest.mark.parametrize("model", WINDOWS)
def test_a_failed_load_of_either_kind_is_recomputed(shapes: Findings, model: str) -> None:
    """The memory was scribbled over."""
    found = shapes[model]["failed"]
    assert found["difference"] < SAME
    assert found["again"] == [288, 288]
    assert shapes[model]["errors"] == 0


@pytest.mark.parametrize(("model", "hits"), [("gemma3", [288, 0]), ("gpt_oss", [288, 288])])
def test_what_a_window_has_left_may_be_evicted(
    shapes: Findings, model: str, hits: list[int]
) -> None:
    """First the two oldest of a window's objects are gone, then all but the prompt's tail."""
    found = shapes[model]["evicted"]
    assert found["gone"] == [0, 0]
    assert found["cached"] == hits
    assert found["difference"] < SAME


def test_latent_attention_comes_back_byte_by_byte(shapes: Findings) -> None:
    found = shapes["deepseek"]
    assert found["cached"] == 288
    assert found["compared"] == 5
    assert found["equal"]
    assert not found["empty"]
