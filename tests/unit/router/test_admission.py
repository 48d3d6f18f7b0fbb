"""Who may begin, who waits, and who is sent away; in virtual time."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from moonpool.router.admission import Admission, Entry, Limits, Refused
from moonpool.router.ratelimit import RateLimiter


def _deciding(entry: Entry) -> list[bool]:
    decisions: list[bool] = []
    entry.decided = decisions.append
    return decisions


def test_priority_then_arrival() -> None:
    admission = Admission(Limits(in_flight=1))
    first = admission.arrive("", 0, 0.0)
    entries = [admission.arrive("", priority, 0.0) for priority in (5, 0, 5, -1)]
    decisions = [_deciding(entry) for entry in entries]
    assert first.admitted
    assert not any(entry.admitted for entry in entries)
    order = []
    running = first
    while admission.waiting:
        admission.leave(running)
        running = next(e for e in entries if e.admitted and not e.over)
        order.append(entries.index(running))
    assert order == [3, 1, 0, 2]
    assert decisions == [[True]] * 4


def test_a_full_queue_refuses_and_says_when_to_come_back() -> None:
    admission = Admission(Limits(in_flight=1, queue=2))
    for _ in range(3):
        admission.arrive("", 0, 0.0)
    with pytest.raises(Refused) as caught:
        admission.arrive("", 0, 0.0)
    assert caught.value.reason == "queue"
    assert caught.value.retry_after_s >= 1


def test_a_more_urgent_request_takes_the_last_place() -> None:
    admission = Admission(Limits(in_flight=1, queue=1))
    admission.arrive("", 0, 0.0)
    last = admission.arrive("", 3, 0.0)
    decisions = _deciding(last)
    urgent = admission.arrive("", 0, 0.0)
    assert decisions == [False]
    assert last.over
    assert admission.waiting == 1
    admission.leave(last)
    assert not urgent.over


def test_instances_decide_the_capacity() -> None:
    admission = Admission(Limits(in_flight=100, per_instance=2), instances=1)
    entries = [admission.arrive("", 0, 0.0) for _ in range(5)]
    assert [e.admitted for e in entries] == [True, True, False, False, False]
    admission.resize(2)
    assert [e.admitted for e in entries] == [True] * 4 + [False]


def test_other_limits_lose_nobody() -> None:
    admission = Admission(Limits(in_flight=1))
    admission.arrive("", 0, 0.0)
    waiting = admission.arrive("", 0, 0.0)
    admission.replace(Limits(in_flight=2))
    assert waiting.admitted
    assert admission.in_flight == 2


def test_keys_are_limited_apart() -> None:
    admission = Admission(Limits(rate_per_minute=60, rate_burst=2))
    for _ in range(2):
        admission.arrive("a", 0, 0.0)
    with pytest.raises(Refused) as caught:
        admission.arrive("a", 0, 0.0)
    assert (caught.value.reason, caught.value.retry_after_s) == ("rate", 1)
    admission.arrive("b", 0, 0.0)
    admission.arrive("a", 0, 1.1)


def test_a_key_that_a_client_invents_is_no_key() -> None:
    limits = Limits(rate_keys=frozenset({"known"}))
    assert limits.counted_as("Bearer known", "1.2.3.4") == "key known"
    assert limits.counted_as("known", "5.6.7.8") == "key known"
    for invented in ("", "Bearer a", "Bearer b", "Basic known=", "known known"):
        assert limits.counted_as(invented, "1.2.3.4") == "address 1.2.3.4"
    assert Limits().counted_as("Bearer known", "1.2.3.4") == "address 1.2.3.4"


def test_keys_are_forgotten() -> None:
    limiter = RateLimiter(60, 1, keys_max=3)
    for number in range(10):
        assert limiter.take(str(number), 0.0) == 0.0
    assert len(limiter) == 3
    assert limiter.take("9", 0.0) == pytest.approx(1.0)


@given(st.lists(st.tuples(st.integers(-2, 2), st.booleans()), max_size=60))
def test_never_more_than_may_be_and_nobody_is_forgotten(steps: list[tuple[int, bool]]) -> None:
    admission = Admission(Limits(in_flight=3, queue=4))
    entries: list[Entry] = []
    for priority, leaves in steps:
        if leaves and entries:
            admission.leave(entries.pop(abs(priority) % len(entries)), 0.1)
        else:
            try:
                entries.append(admission.arrive("", priority, 0.0))
            except Refused:
                assert admission.waiting == 4
        entries = [entry for entry in entries if not entry.over]
        admitted = [entry for entry in entries if entry.admitted]
        assert admission.in_flight == len(admitted) <= 3
        assert admission.waiting == len(entries) - len(admitted) <= 4
        assert not admission.waiting or admission.in_flight == 3
