"""Copies and moves to a node that somebody names."""

from __future__ import annotations

import pytest

from moonpool.core import messages as m
from moonpool.core.keys import key_of
from tests.unit.core.test_copies import Pool

A, B, C = key_of("a"), key_of("b"), key_of("c")


class Asked(Pool):
    """Nodes of one host, of which somebody names some."""

    def __init__(self) -> None:
        super().__init__(copy_rate=0)

    def replicate(self, key: bytes, node: str, source: str = "") -> int:
        return self.expect(m.Codes, m.Replicate(key, node, source)).codes[0]

    def until_done(self, key: bytes, node: str, source: str = "") -> int:
        for _ in range(10):
            code = self.replicate(key, node, source)
            if code != -703:
                return code
            self.made(*self.copies())
            self.tick(0.1)
        raise AssertionError("still on its way")


@pytest.fixture
def pool() -> Asked:
    made = Asked()
    for node in ("one", "two", "three"):
        made.join(node, host="host")
    made.put(A, preferred="one")
    return made


def test_a_copy_is_made_once_and_then_there(pool: Asked) -> None:
    assert pool.replicate(A, "two") == -703
    assert pool.replicate(A, "two") == -703
    copies = pool.copies()
    assert [(peer, item.generation > 0) for peer, item in copies] == [("two", True)]
    assert pool.made(*copies) == [0]
    assert pool.replicate(A, "two") == 0
    assert pool.nodes_of(A) == {"one", "two"}
    assert not pool.copies()


def test_it_outlives_the_first(pool: Asked) -> None:
    assert pool.until_done(A, "two") == 0
    pool.gone("one", "node")
    assert (pool.nodes_of(A), pool.exists(A)) == ({"two"}, [1])


def test_a_move_leaves_the_source(pool: Asked) -> None:
    assert pool.until_done(A, "two", "one") == 0
    pool.tick()
    assert pool.nodes_of(A) == {"two"}
    assert pool.until_done(A, "one", "two") == 0
    assert pool.nodes_of(A) == {"one"}


def test_a_move_waits_for_readers_who_know_no_other_place(pool: Asked) -> None:
    pool.get(A, lease_s=5.0)
    assert pool.until_done(A, "two", "one") == 0
    assert pool.nodes_of(A) == {"one", "two"}
    pool.tick(5.0)
    pool.tick()
    assert pool.nodes_of(A) == {"two"}


def test_copies_go_before_objects_do() -> None:
    pool = Asked()
    for node in ("one", "two"):
        pool.join(node, pages=2, host="host")
    pool.put(A, preferred="one")
    assert pool.until_done(A, "two") == 0
    pool.put(B, C)
    pool.put(key_of("d"))
    assert pool.exists(A, B, C, key_of("d")) == [1] * 4
    assert pool.nodes_of(A) == {"one"}


def test_what_cannot_be(pool: Asked) -> None:
    assert pool.replicate(B, "two") == -704
    assert pool.replicate(A, "nosuch") == -710
    assert pool.replicate(A, "two", "three") == -710
    assert pool.expect(m.Failed, m.Replicate(A, "two", "two")).code == -600
    pool.mount("old")
    assert pool.replicate(A, "old") == -710
    pool.drain("three")
    assert pool.replicate(A, "three") == -710


def test_a_full_target_is_no_place() -> None:
    pool = Asked()
    pool.join("one", host="host")
    pool.join("two", pages=1, host="host")
    pool.put(A, preferred="one")
    pool.put(B, preferred="two")
    assert pool.replicate(A, "two") == -200


def test_a_copy_that_fails_is_begun_again(pool: Asked) -> None:
    assert pool.replicate(A, "two") == -703
    pool.failed(*pool.copies())
    assert pool.until_done(A, "two") == 0


def test_an_object_that_goes_meanwhile(pool: Asked) -> None:
    assert pool.replicate(A, "two") == -703
    copies = pool.copies()
    assert pool.remove(A) == [0]
    assert pool.made(*copies) == [-700]
    assert pool.replicate(A, "two") == -704
