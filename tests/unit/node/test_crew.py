"""Threads that take work in batches, go on after errors, and come to rest."""

from __future__ import annotations

import logging
import threading

import pytest

from moonpool.errors import TransferError
from moonpool.node.crew import Crew


def test_work_is_served_in_batches_of_a_weight() -> None:
    served: list[list[int]] = []
    done = threading.Event()

    def serve(batch: list[int]) -> None:
        served.append(batch)
        if sum(map(len, served)) == 5:
            done.set()

    crew: Crew[int] = Crew("t", serve, batch=10, weigh=lambda each: each)
    crew.add([4, 6, 1, 30, 2])
    crew.start()
    assert done.wait(30.0)
    crew.close(30.0)
    assert served == [[4, 6], [1], [30], [2]]


def test_rest_forgets_what_was_not_begun_and_waits_for_what_was() -> None:
    begun, go = threading.Event(), threading.Event()
    served: list[int] = []

    def serve(batch: list[int]) -> None:
        begun.set()
        assert go.wait(30.0)
        served.extend(batch)

    crew: Crew[int] = Crew("t", serve)
    crew.start()
    crew.add([1, 2, 3])
    assert begun.wait(30.0)
    assert not crew.rest(0.01)
    go.set()
    assert crew.rest(30.0)
    assert served == [1]
    crew.add([4])
    crew.close(30.0)


def test_an_error_is_logged_and_the_next_batch_served(caplog: pytest.LogCaptureFixture) -> None:
    done = threading.Event()

    def serve(batch: list[str]) -> None:
        if batch == ["typed"]:
            raise TransferError("the disk is tired")
        if batch == ["bug"]:
            raise ZeroDivisionError
        done.set()

    crew: Crew[str] = Crew("t", serve)
    with caplog.at_level(logging.WARNING):
        crew.start()
        crew.add(["typed", "bug", "fine"])
        assert done.wait(30.0)
        crew.close(30.0)
    assert "the disk is tired" in caplog.text
    assert "a bug" in caplog.text
