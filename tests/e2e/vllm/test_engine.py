"""Real vLLM engines on one pool: logprobs from the pool equal those that were computed."""

from __future__ import annotations

import pytest

from tests.e2e.vllm.conftest import NEW, Findings
from tests.e2e.vllm.logprobs import difference

pytestmark = [pytest.mark.e2e, pytest.mark.timeout(900)]

SAME = 1e-4
"""Float32 logprobs may differ by this much."""

All = dict[str, Findings]


@pytest.fixture
def plain(findings: All) -> Findings:
    return findings["plain"]


@pytest.fixture
def small(findings: All) -> Findings:
    return findings["small"]


@pytest.fixture
def stranger(findings: All) -> Findings:
    return findings["stranger"]


def test_a_hit_gives_the_same_logprobs(plain: Findings) -> None:
    found = plain["shared"]
    assert (found["cold_cached"], found["hot_cached"]) == (0, 288)
    assert found["difference"] < SAME


def test_a_whole_prompt_may_come_from_the_pool(plain: Findings) -> None:
    found = plain["full_prompt"]
    assert found["hot_cached"] == 320
    assert found["difference"] < SAME


def test_the_engines_own_hit_may_end_inside_an_object(plain: Findings) -> None:
    found = plain["local_hit_inside_an_object"]
    assert found["hot_cached"] == 288
    assert found["difference"] < SAME


@pytest.mark.parametrize("place", [0, 2, 4])
@pytest.mark.parametrize("kind", ["gone", "wrong"])
def test_a_failed_load_is_recomputed(plain: Findings, kind: str, place: int) -> None:
    """First, middle and last object; the memory was scribbled over."""
    found = plain["failures"][f"{kind} {place}"]
    assert found["difference"] < SAME
    assert found["again_cached"] == 288


def test_a_lost_master_costs_a_recompute(plain: Findings) -> None:
    assert plain["master_lost"]["difference"] < SAME


def test_salted_requests_share_with_their_like_only(plain: Findings) -> None:
    assert plain["salt"] == {"same": 288, "other": 0, "none": 0}


def test_many_requests_at_once(plain: Findings) -> None:
    found = plain["many_at_once"]
    hits = [length // 32 * 32 for length in found["lengths"]]
    assert found["cached"] == hits
    assert found["difference"] < SAME


def test_an_abort_while_loading_leaves_nothing_behind(plain: Findings) -> None:
    found = plain["abort_while_loading"]
    assert (found["held"], found["left"]) == (1, 0)
    assert found["hot_cached"] == 288
    assert found["difference"] < SAME


def test_requests_that_want_prompt_logprobs_load_nothing(plain: Findings) -> None:
    assert plain["prompt_logprobs_read_nothing"]["gets"] == 0


def test_the_next_turn_finds_the_last_answer(plain: Findings) -> None:
    found = plain["next_turn"]
    assert (found["cold_cached"], found["hot_cached"]) == (0, 288)
    assert found["difference"] < SAME


def test_a_session_that_has_ended_is_released_and_can_still_be_read(plain: Findings) -> None:
    found = plain["session"]
    assert found["before"] == []
    # Four whole objects of 264 tokens: those of the turn before, and what this one added.
    assert found["told"] == [["chat", 4]]
    assert (found["last_cached"], found["again_cached"]) == (192, 256)
    assert found["difference"] < SAME
    assert found["other"] == 3


def test_a_reset_hides_but_does_not_wipe(plain: Findings) -> None:
    assert plain["reset"] == {"cached": 0, "kept": True}


def test_vllm_is_told_to_recompute_and_not_to_wait_for_saves(plain: Findings) -> None:
    """Weakness 22, and the default policy "fail"."""
    assert plain["facts"]["recompute"]
    assert not plain["facts"]["delivery"]


def test_vllms_block_hash_is_the_documented_one(plain: Findings) -> None:
    if not NEW:
        pytest.skip("before vLLM 0.29 it depends on PYTHONHASHSEED")
    expected = "0db0828314ff9bb9ee27d0d4170d37d870c6cf026ce2a408f9f9cb4e7e05d524"
    assert plain["facts"]["hash"] == expected


def test_metrics_are_on_vllms_page(plain: Findings) -> None:
    """Weakness 30."""
    found = plain["facts"]
    assert found["errors"] == 0
    # An LLM object of an older vLLM drops the counts of steps without output.
    assert all(found["counted"].values()) or not NEW
    assert found["load_seconds"] == found["counted"]["loads"]
    assert found["leases"] == 0


def test_another_process_loads_over_tcp_what_one_saved(plain: Findings, small: Findings) -> None:
    one, other = plain["shared"]["output"], small["shared_by_another_process"]["output"]
    assert other["cached"] == 288
    assert difference(one, other) < SAME


def test_corrupt_bytes_are_a_miss(small: Findings) -> None:
    """A byte of the segment was changed behind the pool's back."""
    found = small["corrupted"]
    assert found["corrupt"] == 1 or not NEW
    assert found["difference"] < SAME
    assert found["again_cached"] == 288


def test_preemptions_leave_the_right_bytes_under_every_key(small: Findings) -> None:
    found = small["preemption"]
    assert found["preempted"] >= 2
    assert found["compared"] >= 24
    assert found["worst"] < SAME
    assert found["difference"] < SAME


def test_below_multiconnector_nothing_breaks(small: Findings) -> None:
    found = small["counted"]
    assert found["saves"] > 0
    assert found["errors"] == 0


def test_another_block_size_never_hits(stranger: Findings) -> None:
    assert stranger["another_block_size"] == {"cached": 0, "again": 256}


def test_a_killed_node_costs_a_recompute(stranger: Findings) -> None:
    assert stranger["node_killed"]["difference"] < SAME
