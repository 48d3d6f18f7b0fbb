"""Chunks in turn: each once, none after a failure, nothing left running."""

from __future__ import annotations

import threading

import pytest

from moonpool.client.turns import in_turn

RANGES = [(i, i + 1) for i in range(50)]


@pytest.mark.parametrize("workers", [1, 2, 5, 100])
def test_every_range_once(workers: int) -> None:
    seen: list[tuple[int, int]] = []
    in_turn(lambda first, last: seen.append((first, last)), RANGES, workers)
    assert sorted(seen) == RANGES


def test_they_run_beside_each_other() -> None:
    both = threading.Barrier(2, timeout=30)

    def work(_first: int, _last: int) -> None:
        both.wait()

    in_turn(work, RANGES[:2], 2)


@pytest.mark.parametrize("workers", [1, 3])
def test_none_is_begun_after_a_failure(workers: int) -> None:
    begun: list[int] = []
    threads = threading.active_count()

    def work(first: int, _last: int) -> None:
        begun.append(first)
        raise KeyError(first)

    with pytest.raises(KeyError):
        in_turn(work, RANGES, workers)
    assert len(begun) <= workers
    assert threading.active_count() == threads


def test_no_thread_to_be_had(monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(self: threading.Thread) -> None:
        raise RuntimeError("can't start new thread")

    monkeypatch.setattr(threading.Thread, "start", refuse)
    seen: list[tuple[int, int]] = []
    in_turn(lambda first, last: seen.append((first, last)), RANGES, 3)
    assert sorted(seen) == RANGES
