"""Which replica is read first."""

from __future__ import annotations

from collections import Counter

from moonpool.client.choosing import Choice
from moonpool.core.messages import Located, Slot


def located(*segments: int, size: int = 100) -> Located:
    return Located(size, 7, 9, [Slot(segment, 0, 0) for segment in segments])


def segments(choice: Choice, found: list[Located], near: set[int]) -> list[list[int]]:
    with choice.reading(found, near.__contains__) as ordered:
        return [[slot.segment for slot in each.slots] for each in ordered]


def test_single_copies_are_passed_through() -> None:
    found = [located(1), located(2), located()]
    with Choice().reading(found, lambda _: False) as ordered:
        assert ordered is found


def test_what_is_in_this_hosts_memory_comes_first() -> None:
    found = [located(1, 2, 3), located(3, 2, 1), located(4)]
    for turn in range(3):
        orders = segments(Choice(turn), found, {2})
        assert [order[0] for order in orders] == [2, 2, 4]
        assert [sorted(order) for order in orders] == [[1, 2, 3], [1, 2, 3], [4]]


def test_a_batch_is_spread_over_the_others() -> None:
    for turn in range(3):
        orders = segments(Choice(turn), [located(1, 2, 3) for _ in range(300)], set())
        assert Counter(order[0] for order in orders) == {1: 100, 2: 100, 3: 100}


def test_what_is_being_read_counts_until_it_has_been() -> None:
    choice = Choice()
    with choice.reading([located(1, 2, size=1000)], lambda _: False) as ordered:
        busy = ordered[0].slots[0].segment
        other = 3 - busy
        assert segments(choice, [located(1, 2) for _ in range(9)], set()) == [[other, busy]] * 9
    orders = segments(choice, [located(1, 2) for _ in range(100)], set())
    assert Counter(order[0] for order in orders) == {1: 50, 2: 50}


def test_clients_that_read_one_by_one_do_not_all_begin_at_one_place() -> None:
    begun = Counter(segments(Choice(turn), [located(1, 2)], set())[0][0] for turn in range(100))
    assert begun == {1: 50, 2: 50}
