"""The election: at most one acts, epochs grow, and somebody leads once faults have ended."""

from __future__ import annotations

import dataclasses

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from moonpool.ha import election as module
from moonpool.ha.election import Election, Read, Record, Seen, Write, Written
from tests.unit.ha.elections import LEASE_S, NONE, Faults, World

TIME_S = 60 * LEASE_S


@settings(max_examples=150, deadline=None)
@given(
    seed=st.integers(0, 2**32),
    lost=st.sampled_from([0.0, 0.1, 0.4]),
    slow=st.sampled_from([0.0, 0.2, 0.6]),
    frozen=st.sampled_from([0.0, 0.01, 0.05]),
    resigns=st.sampled_from([0.0, 0.02]),
)
def test_at_most_one_acts_and_somebody_leads_in_the_end(
    seed: int, lost: float, slow: float, frozen: float, resigns: float
) -> None:
    world = World(seed, faults=Faults(lost=lost, slow=slow, frozen=frozen, resigns=resigns))
    world.run(TIME_S)
    world.faults = NONE
    world.run(TIME_S + 20 * LEASE_S)
    assert len(world.leaders()) == 1
    epochs = [claim.epoch for claim in world.store.claims]
    assert epochs == sorted(set(epochs))


@pytest.mark.parametrize("seed", range(5))
def test_a_healthy_leader_stays(seed: int) -> None:
    world = World(seed, faults=NONE)
    world.run(100 * LEASE_S)
    assert len(world.terms) == 1


@pytest.mark.parametrize("seed", range(20))
def test_another_leads_soon_after_the_leader_is_frozen(seed: int) -> None:
    world = World(seed, faults=NONE)
    world.run(10 * LEASE_S)
    (leader,) = world.leaders()
    world.candidates[leader].frozen_until = world.now + 100 * LEASE_S
    world.run(world.now + 1.5 * LEASE_S)
    (other,) = world.leaders()
    assert other != leader
    assert len(world.terms) == 2


def test_leads_that_outlive_their_lease_are_noticed(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "GUARD", 1.5)

    def fails(seed: int) -> bool:
        try:
            World(seed, faults=Faults(lost=0.4, slow=0.4)).run(TIME_S)
        except AssertionError:
            return True
        return False

    assert any(fails(seed) for seed in range(30))


def led(lease_s: float = 3.0) -> Election:
    """Return an election that was won at 0 s."""
    election = Election("me", "here:1", lease_s)
    assert election.next(0.0, 100) == Read()
    election.answered(Seen("", None), 0.0)
    write = election.next(0.0, 100)
    assert write == Write(Record("me", "here:1", 100, lease_s), "")
    election.answered(Written("1"), 0.1)
    assert election.epoch(0.1) == 100
    return election


def test_a_leader_stops_by_its_own_clock_before_its_lease_ends() -> None:
    election = led()
    assert election.epoch(2.5) == 100
    assert election.epoch(2.56) is None
    assert election.epoch(2.5) == 100  # telling the time changes nothing


def test_a_renewal_counts_from_when_it_was_sent() -> None:
    election = led()
    assert isinstance(election.next(1.0, 0), Write)
    election.answered(Written("2"), 1.9)
    assert election.until == pytest.approx(1.0 + 0.85 * 3)


def test_a_term_that_ended_is_not_taken_up_again_by_a_late_answer() -> None:
    election = led()
    assert isinstance(election.next(2.0, 0), Write)
    election.answered(Written("2"), 2.7)
    assert election.epoch(2.7) is None
    assert election.next(2.7, 0) == Read()
    own = Record("me", "here:1", 100, 3.0, 1)
    election.answered(Seen("2", own), 2.8)
    again = election.next(2.8, 0)
    assert isinstance(again, Write)
    assert (again.record.epoch, again.record.beat, again.version) == (101, 0, "2")


def test_a_lost_answer_to_a_renewal_does_not_end_the_term() -> None:
    election = led()
    renewal = election.next(1.0, 0)
    assert isinstance(renewal, Write)
    election.failed(1.5)
    assert election.epoch(1.5) == 100
    assert isinstance(election.next(1.8, 0), Write)
    election.answered(Seen("2", renewal.record), 1.9)
    assert election.epoch(1.9) == 100
    assert election.until == pytest.approx(2.55)
    third = election.next(1.9, 0)
    assert isinstance(third, Write)
    assert (third.version, third.record.beat) == ("2", 2)


def test_a_leader_that_was_replaced_stops_at_once() -> None:
    election = led()
    election.next(1.0, 0)
    election.answered(Seen("9", Record("you", "there:1", 101, 3.0)), 1.1)
    assert election.epoch(1.1) is None
    assert election.leader == Record("you", "there:1", 101, 3.0)


def test_others_wait_for_a_lease_by_their_own_clock() -> None:
    election = Election("me", "here:1", 3.0)
    record = Record("you", "there:1", 7, 3.0)
    assert election.next(50.0, 0) == Read()
    election.answered(Seen("4", record), 50.0)
    now = 50.0
    while now < 52.9:
        now += max(0.01, election.wait_s(now))
        if election.next(now, 0) is not None:
            assert now >= 53.0 or election._pending == (Read(), now)
            if now < 53.0:
                election.answered(Seen("4", record), now)
    assert election._pending is not None
    action = election._pending[0]
    assert isinstance(action, Write)
    assert action.record.epoch == 8


def test_who_resigned_is_followed_at_once() -> None:
    first = led()
    write = first.resign()
    assert write is not None
    assert first.epoch(0.2) is None
    second = Election("you", "there:1", 3.0)
    second.next(5.0, 0)
    second.answered(Seen("2", write.record), 5.0)
    assert second.leader is None
    claim = second.next(5.0, 0)
    assert isinstance(claim, Write)
    assert claim.record == dataclasses.replace(claim.record, holder="you", epoch=101)
