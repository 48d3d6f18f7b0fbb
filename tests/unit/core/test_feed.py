"""The feed of changes, and an index kept by it: the same as what the master would answer."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from moonpool.core import messages as m
from moonpool.core.feed import IDLE_S, PAGE_MAX, Feed
from moonpool.core.keys import key_of
from moonpool.router.pool_index import PoolIndex
from tests.unit.core.driver import NAMESPACE, Driver, block

NAMES = 12


class Followed(Driver):
    """A pool, and an index that follows it as a router does."""

    def __init__(self, kept: int) -> None:
        super().__init__()
        self.mount()
        self.master.state.feed = Feed(kept)
        self.index = PoolIndex()
        self._after: int | None = None

    def step(self, limit: int = 2) -> None:
        """Ask once: for changes, or for a page where a snapshot is due."""
        if self._after is None:
            told = self.ask(m.GetChanges(self.index.next, limit))
            assert isinstance(told, m.Changes)
            if self.index.take(told):
                return
            self.index.begin()
            self._after = -1
        page = self.ask(m.GetKeys(self._after, limit))
        assert isinstance(page, m.Keys)
        self.index.page(page)
        self._after = page.next or None
        if self._after is None:
            self.index.end()

    def catch_up(self) -> None:
        for _ in range(200):
            self.step(limit=50)
            told = self.ask(m.GetChanges(self.index.next))
            assert isinstance(told, m.Changes)
            if self.index.synced and not told.lost and told.next == self.index.next:
                return
        raise AssertionError("it does not catch up")

    def there(self, number: int) -> bool:
        return bool(self.index.prefix(NAMESPACE, [block(number)[17:]], 1))


_STEPS = st.lists(
    st.tuples(st.sampled_from(["put", "remove", "step"]), st.integers(0, NAMES - 1)), max_size=60
)


@given(_STEPS, st.integers(1, 8))
def test_an_index_that_follows_is_the_pool_s(steps: list[tuple[str, int]], kept: int) -> None:
    pool = Followed(kept)
    for what, number in steps:
        if what == "step":
            pool.step()
        elif what == "remove":
            pool.ask(m.Remove([block(number)]))
        elif pool.master.state.index.find(block(number)) is None:
            pool.put(block(number))
    pool.catch_up()
    known = {number for number in range(NAMES) if pool.master.state.index.find(block(number))}
    assert {number for number in range(NAMES) if pool.there(number)} == known
    assert pool.index.blocks == len(known)
    assert len(pool.master.state.feed._changes) <= kept


def test_nothing_is_recorded_while_nobody_asks() -> None:
    pool = Followed(100)
    feed = pool.master.state.feed
    pool.put(block(1))
    assert (feed.active, feed.next, len(feed._changes)) == (False, 1, 0)
    pool.catch_up()
    pool.put(block(2))
    assert len(feed._changes) == 1
    pool.tick(IDLE_S)
    assert not feed.active
    assert not feed._changes
    pool.put(block(3))
    # What was missed meanwhile is a gap, and the index is the pool's again.
    before = pool.index.counts.gaps
    pool.catch_up()
    assert pool.index.counts.gaps == before + 1
    assert all(pool.there(number) for number in (1, 2, 3))


def test_only_engines_blocks_count_and_hosts_are_told() -> None:
    pool = Followed(100)
    pool.catch_up()
    pool.put(key_of("a person's"))
    pool.put(block(1))
    told = pool.ask(m.GetChanges(pool.index.next))
    assert isinstance(told, m.Changes)
    assert (told.keys, told.places) == ([block(1)], [1])
    pool.catch_up()
    hashes = [block(0)[17:], block(1)[17:]]
    assert pool.index.hosts(NAMESPACE, hashes, 2, 2) == {told.hosts[0]: 2}


def test_odd_questions_are_answered() -> None:
    pool = Followed(3)
    for first in (-1, 0, 2, 10**9):
        told = pool.ask(m.GetChanges(first, limit=-5))
        assert isinstance(told, m.Changes)
        assert told.lost
    assert isinstance(pool.ask(m.GetKeys(-2)), m.Failed)
    assert isinstance(pool.ask(m.GetKeys(10**9, PAGE_MAX * 10)), m.Keys)


def test_another_master_s_changes_are_not_taken() -> None:
    index = PoolIndex()
    assert not index.take(m.Changes(1, 5, 5, [], [], [], lost=True))
    index.begin()
    index.end()
    assert index.take(m.Changes(1, 5, 6, [block(1)], [1], ["h"]))
    assert index.blocks == 1
    assert not index.take(m.Changes(2, 6, 7, [block(2)], [1], ["h"]))
    assert not index.synced
    assert index.counts.gaps == 1
    # Nonsense is left out.
    assert not index.take(m.Changes(2, 9, 9, [], [], []))
    assert index.take(m.Changes(2, 9, 10, [block(3), b"", block(4)], [7, 1, -1], []))
