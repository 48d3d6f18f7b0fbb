"""What waits on an instance."""

from __future__ import annotations

import pytest

from moonpool.router.queue import Queue


def test_what_waits_is_added_up_and_the_first_is_being_computed() -> None:
    queue = Queue()
    assert queue.wait_s(5.0) == 0.0
    queue.enter("a", 2.0, 10.0)
    queue.enter("b", 1.0, 10.5)
    assert queue.wait_s(11.0) == pytest.approx(2.0)
    # However long the first one takes, the second still has to be computed.
    assert queue.wait_s(20.0) == pytest.approx(1.0)
    queue.leave("a")
    assert queue.wait_s(20.5) == pytest.approx(0.5)
    queue.leave("b")
    queue.leave("b")
    assert queue.wait_s(20.5) == 0.0


def test_one_that_leaves_early_takes_its_work_along() -> None:
    queue = Queue()
    queue.enter("a", 2.0, 0.0)
    queue.enter("b", 3.0, 0.0)
    queue.leave("b")
    assert queue.wait_s(0.0) == pytest.approx(2.0)
