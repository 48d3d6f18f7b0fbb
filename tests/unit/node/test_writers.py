"""Who may write, and when a fenced client is gone."""

from __future__ import annotations

import socket
from collections.abc import Iterator

import numpy as np
import pytest

from moonpool.node.writers import Writers
from moonpool.transport.wire import Wire


class Log:
    def __init__(self) -> None:
        self.gone: list[tuple[str, int]] = []

    def __call__(self, client: str, generation: int) -> None:
        self.gone.append((client, generation))


@pytest.fixture
def wire() -> Iterator[Wire]:
    near, far = socket.socketpair()
    made = Wire(near)
    yield made
    made.close()
    far.close()


GENERATIONS = np.array([0, 5, 10, 11, 2**64 - 1], np.uint64)


def test_a_client_that_is_not_here_is_gone_at_once() -> None:
    log = Log()
    writers = Writers(log)
    writers.fence("a", 10)
    assert log.gone == [("a", 10)]


def test_a_fence_refuses_what_is_older() -> None:
    writers = Writers()
    assert not writers.refused("a", GENERATIONS).any()
    writers.fence("a", 10)
    assert writers.refused("a", GENERATIONS).tolist() == [True, True, True, False, False]
    assert not writers.refused("b", GENERATIONS).any()
    writers.fence("a", 7)
    assert writers.refused("a", GENERATIONS).tolist() == [True, True, True, False, False]
    writers.fence("a")
    assert writers.refused("a", GENERATIONS).all()


@pytest.mark.parametrize("kind", ["attached", "writing"])
def test_gone_when_the_last_connection_ends(kind: str, wire: Wire) -> None:
    log = Log()
    writers = Writers(log)
    with getattr(writers, kind)("a", wire):
        writers.fence("b", 1)
        writers.fence("a", 2)
        assert log.gone == [("b", 1)]
        assert writers.any_left(writers.snapshot())
    assert log.gone == [("b", 1), ("a", 2)]
    with getattr(writers, kind)("a", wire):
        pass
    assert len(log.gone) == 2


def test_both_kinds_count(wire: Wire) -> None:
    log = Log()
    writers = Writers(log)
    with writers.attached("a", wire):
        assert writers.clients() == ["a"]
        with writers.writing("a", wire):
            writers.fence("a", 3)
        assert log.gone == []
    assert log.gone == [("a", 3)]


def test_a_snapshot_does_not_count_newcomers(wire: Wire) -> None:
    writers = Writers()
    before = writers.snapshot()
    with writers.attached("a", wire):
        assert not writers.any_left(before)


def test_fences_are_bounded(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("moonpool.node.writers.FENCES_MAX", 3)
    writers = Writers()
    for name in "abcde":
        writers.fence(name, 10)
    assert not writers.refused("b", GENERATIONS).any()
    assert writers.refused("e", GENERATIONS).any()
