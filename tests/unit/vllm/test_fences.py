"""Marks in the engine's stream, on a GPU that is not there."""

from __future__ import annotations

import threading
from pathlib import Path

import pytest

from moonpool.gpu import GpuError
from moonpool.vllm.fences import EVENTS, Fences, passed
from tests.unit.gpu.fake import FakeDriver


def test_marks_are_used_in_turn_and_stand_for_what_was_launched(tmp_path: Path) -> None:
    driver = FakeDriver(tmp_path)
    stream = driver.stream_create()
    fences = Fences(driver, lambda: stream, shared=True)
    assert len(set(fences.handles())) == EVENTS
    first = fences.mark()
    others = {fences.mark() for _ in range(EVENTS - 1)}
    assert first not in others
    assert fences.mark() == first
    assert not driver.event_query(fences.events[first])
    driver.event_synchronize(fences.events[first])
    assert driver.event_query(fences.events[first])


def test_a_block_runs_once_the_event_has_happened(tmp_path: Path) -> None:
    driver = FakeDriver(tmp_path)
    stream, event = driver.stream_create(), driver.event_create()
    driver.event_record(event, stream)
    threading.Timer(0.02, driver.event_synchronize, (event,)).start()
    with passed(driver, event, 20.0):
        assert driver.event_query(event)


def test_an_event_that_never_happens_is_an_error(tmp_path: Path) -> None:
    driver = FakeDriver(tmp_path)
    stream, event = driver.stream_create(), driver.event_create()
    driver.event_record(event, stream)
    with pytest.raises(GpuError, match="did not end within 0 s"), passed(driver, event, 0.0):
        raise AssertionError("not yet")
