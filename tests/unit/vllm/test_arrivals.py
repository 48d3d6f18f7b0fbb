"""How long a load waits for what another engine computes."""

from __future__ import annotations

import math

import pytest
from hypothesis import given
from hypothesis import strategies as st

from moonpool.core.messages import ENDED, FAILED, OPEN, UNHEARD, Awaited
from moonpool.vllm.arrivals import AWAY_S, LIMIT_S, RETRY_S, WAIT_S_MAX, WINDOW, Arrival


def test_it_asks_for_what_comes_next_until_all_is_there() -> None:
    arrival = Arrival(3, 5.0, 0.0)
    assert arrival.question(0.0) == (0, 3, 5.0)
    assert arrival.question(0.0) is None
    arrival.heard(Awaited(2, OPEN), 1.0)
    assert (arrival.ready, arrival.early, arrival.over) == (2, 2, False)
    assert arrival.question(1.0) == (2, 3, 5.0)
    arrival.heard(Awaited(1, ENDED), 2.0)
    assert (arrival.ready, arrival.early, arrival.over, arrival.complete) == (3, 2, True, True)
    assert arrival.question(2.0) is None


def test_long_prefixes_are_asked_about_in_parts() -> None:
    arrival = Arrival(WINDOW + 1, 5.0, 0.0)
    assert arrival.question(0.0) == (0, WINDOW, 5.0)
    # The end of the handoff does not say that the rest is missing.
    arrival.heard(Awaited(WINDOW, FAILED), 0.0)
    assert not arrival.over
    assert arrival.question(0.0) == (WINDOW, WINDOW + 1, 5.0)


@pytest.mark.parametrize("state", [ENDED, FAILED])
@pytest.mark.parametrize("count", [0, 2])
def test_when_the_handoff_is_over_the_rest_does_not_come(state: int, count: int) -> None:
    arrival = Arrival(3, 5.0, 0.0)
    arrival.question(0.0)
    arrival.heard(Awaited(count, state), 1.0)
    assert (arrival.over, arrival.complete, arrival.ready) == (True, False, count)


def test_nobody_who_works_for_it_is_waited_for_only_so_long() -> None:
    arrival = Arrival(3, 5.0, 100.0)
    arrival.question(100.0)
    assert arrival.due == 105.0
    assert not arrival.tick(104.9)
    arrival.heard(Awaited(0, UNHEARD), 104.95)
    assert arrival.question(104.95) is not None
    assert arrival.tick(105.0)


def test_signs_of_life_keep_hope_up_and_silence_ends_it() -> None:
    arrival = Arrival(3, 5.0, 0.0)
    arrival.question(0.0)
    arrival.heard(Awaited(0, OPEN, 1.0), 5.0)
    assert not arrival.tick(5.0)
    assert arrival.question(5.0) == (0, 3, 4.0)
    arrival.heard(Awaited(0, OPEN, 5.0), 9.0)
    assert arrival.tick(9.0)


def test_progress_keeps_hope_up() -> None:
    arrival = Arrival(3, 5.0, 0.0)
    arrival.question(0.0)
    arrival.heard(Awaited(1, UNHEARD), 4.0)
    assert arrival.early == 0
    assert not arrival.tick(8.9)
    assert arrival.tick(9.0)


def test_no_wait_is_without_end() -> None:
    arrival = Arrival(1, 5.0, 0.0)
    now = 0.0
    while not arrival.tick(now):
        assert now < LIMIT_S
        arrival.question(now)
        arrival.heard(Awaited(0, OPEN, 0.0), now)
        now += 4.0


def test_a_master_that_is_away_is_asked_again_after_a_rest() -> None:
    arrival = Arrival(1, 5.0, 0.0)
    arrival.question(0.0)
    arrival.heard(None, 1.0)
    assert arrival.due == 1.0 + RETRY_S
    assert arrival.question(1.0) is None
    assert arrival.question(1.0 + RETRY_S) is not None
    assert arrival.tick(5.0)


def test_a_master_that_stays_away_ends_the_waiting() -> None:
    """Long before the patience with a silent prefill is over."""
    arrival, now = Arrival(1, 60.0, 0.0), 0.0
    while not arrival.tick(now):
        assert arrival.question(now) is not None
        arrival.heard(None, now)
        now = min(arrival.due, now + RETRY_S)
    assert now == AWAY_S


def test_a_master_that_is_back_is_trusted_again() -> None:
    arrival = Arrival(1, 60.0, 0.0)
    for now, answer in ((0.0, None), (1.0, Awaited(0, OPEN, 0.0)), (2.0, None)):
        assert arrival.question(now) is not None
        arrival.heard(answer, now)
    assert not arrival.tick(2.0 + AWAY_S - 0.1)
    assert arrival.tick(2.0 + AWAY_S)


answers = st.none() | st.builds(
    Awaited,
    st.integers(-(2**63), 2**63),
    st.integers(-1, 9),
    st.floats() | st.floats(0, 10),
)


@given(st.integers(1, 200), st.floats(0.1, 100), st.lists(st.tuples(answers, st.floats(0, 30))))
def test_whatever_is_heard_it_ends_and_counts_right(
    count: int, patience_s: float, story: list[tuple[Awaited | None, float]]
) -> None:
    arrival, now, asked = Arrival(count, patience_s, 0.0), 0.0, 0
    for answer, passed_s in story:
        now += passed_s
        question = arrival.question(now)
        if question is not None:
            first, last, wait_s = question
            assert first == arrival.ready < last <= count
            assert 0 < wait_s <= WAIT_S_MAX
            asked = last - first
        before = arrival.ready
        if asked:
            arrival.heard(answer, now)
            assert before <= arrival.ready <= before + asked <= count
            asked = 0
        arrival.tick(now)
        assert not math.isnan(arrival.due)
    assert arrival.tick(now + LIMIT_S + patience_s + 1)
