"""Objects by key and age, parents and children, under any order of coming and going."""

from __future__ import annotations

from hypothesis import given, settings
from hypothesis import strategies as st

from moonpool.core.index import Index, Object, children_of, placed
from moonpool.core.keys import key_of
from moonpool.core.marks import Marks
from moonpool.core.messages import Located, Slot

KEYS = [key_of(f"k{i}") for i in range(12)]


def make(key: bytes, parent: bytes, serial: int) -> Object:
    return Object(-1, serial, serial, key, parent, placed(Located()))


@settings(max_examples=200, deadline=None)
@given(st.lists(st.tuples(st.integers(0, 11), st.integers(-1, 11))))
def test_links_follow_what_is_there(script: list[tuple[int, int]]) -> None:
    index = Index(Marks())
    parents: dict[bytes, bytes] = {}
    for serial, (number, above) in enumerate(script, 1):
        key = KEYS[number]
        known = index.find(key)
        if known is not None:
            index.remove(known)
            del parents[key]
        elif above != number:
            parent = KEYS[above] if above >= 0 else b""
            index.add(make(key, parent, serial))
            parents[key] = parent
        index.validate()
        for each in index:
            expected = {child for child, parent in parents.items() if parent == each.key}
            assert {child.key for child in children_of(each)} == expected
            assert (each.parent is not None) == (parents[each.key] in parents)
    for each in list(index):
        index.remove(each)
    assert (index.count, index.by_key, index.orphans) == (0, {}, {})


@settings(max_examples=200, deadline=None)
@given(st.permutations(range(12)), st.lists(st.integers(0, 11), min_size=12, max_size=12))
def test_every_cycle_is_cut(order: list[int], parents: list[int]) -> None:
    index = Index(Marks())
    for serial, number in enumerate(order, 1):
        parent = KEYS[parents[number]] if parents[number] != number else b""
        index.add(make(KEYS[number], parent, serial))
    index.cut_cycles()
    index.validate()
    for each in index:
        steps, above = 0, each.parent
        while above is not None:
            steps, above = steps + 1, above.parent
            assert steps <= 12
    assert index.cut_cycles() == []


def test_the_log_is_compacted_and_pages_stay_right() -> None:
    index = Index(Marks())
    for serial in range(1, 5001):
        index.add(make(key_of(f"n{serial}"), b"", serial))
    for serial in range(1, 5001):
        if serial % 10:
            found = index.find(key_of(f"n{serial}"))
            assert found is not None
            index.remove(found)
    index.validate()
    page, more = index.page(2500, 10_000)
    assert [each.serial for each in page if each.alive] == list(range(2510, 5001, 10))
    assert not more
    assert len(index.page(0, 10_000)[0]) < 2500


@given(
    st.builds(
        Located,
        st.integers(1, 1 << 50),
        st.integers(0, (1 << 64) - 1),
        st.integers(0, 1 << 63),
        st.lists(
            st.builds(
                Slot,
                st.integers(0, (1 << 32) - 1),
                st.integers(0, (1 << 24) - 1),
                st.integers(0, 1 << 42),
            ),
            max_size=4,
        ),
    )
)
def test_a_place_is_kept_as_it_is(where: Located) -> None:
    each = Object(-1, 1, 1, key_of("k"), b"", placed(where))
    assert each.where == where
    assert each.slots == where.slots
    assert each.generation == where.generation
    each.move(where.slots[1:])
    assert each.slots == where.slots[1:]
    assert each.where.checksum == where.checksum
