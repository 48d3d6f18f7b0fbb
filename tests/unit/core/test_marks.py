"""The table of marks against a plain set, and beside a reader that looks while it is written."""

from __future__ import annotations

import hashlib

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from moonpool.core import marks as module
from moonpool.core.keys import key_of, pack
from moonpool.core.marks import SLOTS_MIN, U64, Marker, Marks, PlainRoom, prefix, present

SPACE = b"N" * 16


def digest(number: int) -> bytes:
    return hashlib.sha256(number.to_bytes(8, "big")).digest()[:16]


def packed(numbers: range) -> bytes:
    return b"".join(map(digest, numbers))


class CrowdedMarks(Marks):
    """Gives most marks one of a few homes at the end of the table, so that chains wrap around."""

    def _home(self, low: int, high: int) -> int:
        return (self.slots - 1 - low % 4) & (self.slots - 1)


numbers = st.integers(0, 30)
steps = st.lists(
    st.tuples(st.booleans(), numbers, st.sampled_from([b"", b"n", SPACE])), max_size=80
)


@settings(max_examples=200, deadline=None)
@given(steps, st.booleans())
def test_the_table_holds_what_was_added_and_not_removed(
    script: list[tuple[bool, int, bytes]], crowded: bool
) -> None:
    table = CrowdedMarks() if crowded else Marks(b"seed")
    there: dict[bytes, None] = {}
    for add, number, space in script:
        # Small numbers as digests, as names of other lengths, and real digests.
        name = (number.to_bytes(16, "big"), str(number).encode(), digest(number))[number % 3]
        key = pack(name, space)
        if add:
            table.add(key)
            there[key] = None
        else:
            table.remove(key)
            there.pop(key, None)
        table.validate(list(there))
        assert (key in table) == add


@settings(max_examples=100, deadline=None)
@given(
    st.sets(st.integers(0, 40)),
    st.integers(0, 41),
    st.integers(1, 12),
    st.sampled_from([SPACE, b"", b"other"]),
)
def test_a_prefix_is_counted_as_by_hand(
    there: set[int], length: int, stride: int, space: bytes
) -> None:
    table = Marks(b"seed")
    for number in there:
        table.add(pack(digest(number), SPACE))
    full = 0
    known = there if space == SPACE else set()
    while full + stride <= length and full + stride - 1 in known:
        full += stride
    tails = [i for i in range(full, min(full + stride - 1, length)) if i in known]
    expected = max(tails) + 1 if tails else full
    assert table.prefix(space, packed(range(length)), stride) == expected


@pytest.mark.parametrize("count", [SLOTS_MIN // 2, SLOTS_MIN // 2 + 1, 5000, 40_000])
def test_growth_keeps_everything(count: int) -> None:
    table = Marks()
    keys = [pack(digest(i), SPACE) for i in range(count)]
    for key in keys:
        table.add(key)
    table.validate(keys)
    assert count <= table.slots / 2
    assert table.prefix(SPACE, packed(range(count))) == count
    for key in keys[::2]:
        table.remove(key)
    table.validate(keys[1::2])


def test_numbers_in_sequence_do_not_crowd() -> None:
    table = Marks()
    low, high = table.marker.marks(
        SPACE,
        np.frombuffer(b"".join(i.to_bytes(16, "big") for i in range(10_000)), "<u8").reshape(-1, 2),
    )
    homes = module.home_slots(low, high, 1 << 15)
    assert np.bincount(homes).max() < 12


def test_long_chains_are_followed_to_their_end() -> None:
    slots = 1024
    rng = np.random.default_rng(1)
    low, high = rng.integers(1, 1 << 63, (2, 60_000), np.uint64)
    crowd = module.home_slots(low, high, slots) == slots - 3
    low, high = low[crowd], high[crowd]
    table = np.zeros((slots, 2), np.uint64)
    places = (np.arange(len(low)) + slots - 3) % slots
    table[places[:-1], 0], table[places[:-1], 1] = low[:-1], high[:-1]
    assert len(low) > 40
    assert present(table, low, high).tolist() == [True] * (len(low) - 1) + [False]


def test_a_full_table_ends_a_search() -> None:
    table = np.full((1024, 2), 7, np.uint64)
    low, high = np.arange(1, 4, dtype=np.uint64), np.zeros(3, np.uint64)
    assert not present(table, low, high).any()


def test_seeds_and_namespaces_give_other_marks() -> None:
    key = pack(digest(1), SPACE)
    marks = {Marker(b"a").mark(key), Marker(b"b").mark(key), Marker(b"a").mark(pack(digest(1)))}
    assert len(marks) == 3
    assert Marker(b"a").mark(key_of("x" * 16)) != Marker(b"a").mark(key_of("x" * 15))


class Watched(PlainRoom):
    """Notes what is made and when it is put to use."""

    def __init__(self) -> None:
        self.made: list[U64] = []
        self.used = 0

    def make(self, slots: int) -> U64:
        self.made.append(super().make(slots))
        return self.made[-1]

    def use(self) -> None:
        assert self.used < len(self.made)
        self.used = len(self.made)


def test_a_table_is_used_only_when_it_is_complete() -> None:
    room = Watched()
    table = Marks(b"seed", room)
    for i in range(SLOTS_MIN):
        table.add(pack(digest(i), SPACE))
        if len(room.made) == 2 and i == SLOTS_MIN // 2:
            old = prefix(room.made[0], table.marker, SPACE, packed(range(i + 1)))
            assert old == SLOTS_MIN // 2
    assert (room.used, len(room.made)) == (2, 2)
    assert [len(made) for made in room.made] == [SLOTS_MIN, 2 * SLOTS_MIN]
