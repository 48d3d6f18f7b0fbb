"""What was removed does not come back with a node that did not hear of it."""

from __future__ import annotations

import numpy as np

from moonpool.core import messages as m
from moonpool.core.adopting import packed_rows
from moonpool.core.keys import key_of, pack
from moonpool.core.removed import Removed
from tests.unit.core.driver import PAGE, Driver

A, B = key_of("a"), key_of("b")
NAMESPACE = b"fingerprint"
D = pack(bytes(range(16)), NAMESPACE)


def found(key: bytes, grant: m.Grant, generation: int = 0) -> m.Found:
    slot = grant.slots[0]
    known = generation or grant.generation
    return m.Found(key, b"", 100, PAGE, 7, known, slot.index, slot.offset)


def test_a_removal_holds_though_the_node_has_not_heard_of_it() -> None:
    pool = Driver()
    pool.mount()
    grants = pool.put(A, B)
    pool.expect(m.Codes, m.Remove([A], False), "client")
    pool.gone("node", "node")

    handle = pool.mount(peer="node-2", last=False)
    back = [found(key, grant) for key, grant in zip((A, B), grants, strict=True)]
    told = pool.expect(m.Announced, m.Announce(handle, back, True), "node-2")
    assert told.rejected == [back[0].index]
    assert pool.exists(A, B) == [0, 1]


def test_what_is_put_after_the_removal_comes_back() -> None:
    pool = Driver()
    pool.mount()
    pool.put(A)
    pool.expect(m.Codes, m.Remove([A], False), "client")
    (again,) = pool.put(A)
    pool.gone("node", "node")

    handle = pool.mount(peer="node-2", last=False)
    pool.expect(m.Announced, m.Announce(handle, [found(A, again)], True), "node-2")
    assert pool.exists(A) == [1]


def test_a_digest_among_many_is_left_out() -> None:
    pool = Driver()
    pool.mount()
    (grant,) = pool.put(D)
    pool.expect(m.Codes, m.Remove([D], False), "client")
    pool.gone("node", "node")

    handle = pool.mount(peer="node-2", last=False)
    back = found(D, grant)
    columns = [np.array([getattr(back, name)], np.uint64) for name in m.PACKED_COLUMNS]
    request = m.AnnouncePacked(handle, NAMESPACE, D[-16:], bytes(16), packed_rows(columns), True)
    assert pool.expect(m.Announced, request, "node-2").rejected == [back.index]
    assert pool.exists(D) == [0]


def test_a_put_that_was_refused_at_its_end_does_not_come_back() -> None:
    pool = Driver()
    pool.mount("one")
    (old,) = pool.put(A)
    pool.gone("one", "node")
    pool.mount("two")
    (new,) = pool.start(A)
    one = pool.mount("one", peer="one-2", last=False)
    pool.expect(m.Announced, m.Announce(one, [found(A, old)], True), "one-2")
    assert pool.end(new) == [-705]
    pool.gone("two", "node")

    two = pool.mount("two", peer="two-2", last=False)
    told = pool.expect(m.Announced, m.Announce(two, [found(A, new)], True), "two-2")
    assert told.rejected == [new.slots[0].index]


def test_the_oldest_are_forgotten() -> None:
    removed = Removed(2)
    for number, key in enumerate((A, B, D), 1):
        removed.note(key, number)
    assert [removed.covers(key, 1) for key in (A, B, D)] == [False, True, True]
    assert not removed.covers(B, 3)
    heads = np.frombuffer(D[-16:], "<u8")[:1]
    assert removed.suspects(heads).tolist() == [True]
