"""When a request that two fill is reported, with which blocks, and what becomes of late peers."""

from __future__ import annotations

import random

import pytest

from moonpool.vllm.pd import joins
from moonpool.vllm.pd.joins import Joins

POOL, PEER = [1, 2, 3], [4, 5]


@pytest.fixture
def one() -> Joins:
    made = Joins()
    made.add(joins.make(1, "r", POOL + PEER, len(POOL), 10.0), 100.0)
    return made


@pytest.mark.parametrize("pool_first", [True, False])
def test_a_request_is_reported_once_when_both_are_done(one: Joins, pool_first: bool) -> None:
    def pool() -> None:
        one.pool_ended({"r"}, set())

    def peer() -> None:
        one.peer_ended({"r"}, set(), set())

    first, second = (pool, peer) if pool_first else (peer, pool)
    first()
    assert one.take(101.0).finished == set()
    second()
    out = one.take(101.0)
    assert (out.finished, out.restarted, out.bad, out.ended) == ({"r"}, set(), set(), [1])
    assert one.take(200.0) == joins.Outcome()


@pytest.mark.parametrize("by_block", [True, False])
def test_a_peer_that_fails_costs_its_blocks_only(one: Joins, by_block: bool) -> None:
    one.pool_ended({"r"}, set())
    one.peer_ended({"r"}, set() if by_block else {"r"}, {5} if by_block else set())
    out = one.take(101.0)
    assert (out.finished, out.restarted, out.bad) == ({"r"}, set(), set(PEER))
    assert (out.failed, out.abandoned) == ([1], [])


def test_failed_blocks_may_be_named_before_the_request(one: Joins) -> None:
    one.peer_ended(set(), set(), {4})
    one.pool_ended({"r"}, set())
    assert not one.take(101.0).finished
    one.peer_ended({"r"}, set(), set())
    assert one.take(101.0).bad == set(PEER)


def test_where_the_pool_fails_all_after_it_waits_for_the_peer(one: Joins) -> None:
    """vLLM computes from the first bad block on, into blocks the peer may be writing."""
    one.pool_ended({"r"}, {2, 3})
    out = one.take(105.0)
    assert not out.finished
    assert not out.bad
    one.peer_ended({"r"}, set(), set())
    assert one.take(106.0).bad == {2, 3}


def test_a_peer_that_does_not_answer_is_given_up_and_its_blocks_kept(one: Joins) -> None:
    one.pool_ended({"r"}, set())
    assert not one.take(109.9).finished
    out = one.take(110.0)
    assert (out.finished, out.restarted, out.bad) == ({"r"}, {"r"}, set())
    assert (out.ended, out.abandoned, out.released) == ([1], [1], [])
    # It answers after all: not vLLM's business any more.
    one.peer_ended({"r"}, set(), set())
    out = one.take(300.0)
    assert (out.finished, out.released) == (set(), [1])


def test_the_pool_is_awaited_past_the_peers_deadline(one: Joins) -> None:
    assert not one.take(500.0).finished
    one.pool_ended({"r"}, {1, 2, 3})
    out = one.take(500.0)
    assert (out.finished, out.restarted) == ({"r"}, {"r"})


def test_without_a_prefix_in_the_pool_only_the_peer_is_awaited() -> None:
    made = Joins()
    made.add(joins.make(1, "r", [7, 8], 0, 10.0), 0.0)
    made.peer_ended({"r"}, set(), set())
    assert made.take(1.0).finished == {"r"}


def test_the_pools_other_requests_are_reported_at_once(one: Joins) -> None:
    one.pool_ended({"other"}, {9})
    out = one.take(101.0)
    assert (out.finished, out.bad) == ({"other"}, {9})


def test_what_the_peer_says_of_strangers_is_dropped(one: Joins) -> None:
    one.peer_ended({"stranger"}, {"another"}, {99})
    assert one.take(101.0) == joins.Outcome()


def test_a_join_that_was_seen_before_is_ignored(one: Joins) -> None:
    one.pool_ended({"r"}, set())
    one.peer_ended({"r"}, set(), set())
    one.take(101.0)
    one.add(joins.make(1, "r", POOL + PEER, 3, 10.0), 102.0)
    assert len(one) == 0


@pytest.mark.parametrize("seed", range(100))
def test_in_any_order_each_is_reported_once_and_never_while_it_is_written(seed: int) -> None:
    rng = random.Random(seed)
    made, now = Joins(), 0.0
    writing: dict[str, set[int]] = {}
    reported: list[str] = []
    kept: dict[int, set[int]] = {}
    pending: list[tuple[str, str]] = []
    for serial in range(1, 9):
        name, ids = f"r{serial}", [serial * 10 + n for n in range(4)]
        split = rng.randint(0, 3)
        made.add(joins.make(serial, name, ids, split, rng.choice([5.0, 50.0])), now)
        pending += [("pool", name)] * bool(split) + [("peer", name)]
        writing[name] = set(ids[split:])
    rng.shuffle(pending)
    while pending or len(made):
        now += rng.random() * 4
        if pending and rng.random() < 0.6:
            who, name = pending.pop()
            if who == "peer":
                bad = rng.sample(sorted(writing[name]), rng.randint(0, 1))
                made.peer_ended({name}, set(), bad)
                writing[name] = set()
            else:
                made.pool_ended({name}, set())
        out = made.take(now)
        for serial in out.abandoned:
            kept[serial] = writing[f"r{serial}"]
        for serial in out.released:
            assert not writing[f"r{serial}"]
            del kept[serial]
        for name in out.finished:
            assert not writing[name] or name in out.restarted
            reported.append(name)
        assert not out.restarted & {f"r{s}" for s in out.failed}
    out = made.take(now)
    for serial in out.released:
        del kept[serial]
    assert sorted(reported) == sorted(writing)
    assert not kept
