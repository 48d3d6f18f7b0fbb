"""Epochs of lone masters only rise, and the next one need not wait for them."""

from __future__ import annotations

from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from moonpool.master.epochs import Epoch, forget_epoch, next_epoch, take_epoch


def test_one_that_knows_nothing_waits_for_the_next_second() -> None:
    assert next_epoch(None, 100.25) == Epoch(102, 0.75)


def test_one_that_knows_the_last_does_not_wait() -> None:
    assert next_epoch(90, 100.25) == Epoch(101, 0.0)
    assert next_epoch(100, 100.25) == Epoch(101, 0.0)
    assert next_epoch(101, 100.25) == Epoch(102, 0.75)


def test_a_clock_that_was_set_back_keeps_nobody_waiting() -> None:
    assert next_epoch(4000, 100.25) == Epoch(4001, 0.0)


@given(
    st.lists(st.tuples(st.floats(0, 3), st.booleans()), min_size=2, max_size=30),
)
def test_epochs_rise_whoever_of_them_could_write_theirs_down(
    lives: list[tuple[float, bool]],
) -> None:
    now, last, before = 1000.0, None, 0
    for pause, writes in lives:
        now += pause
        epoch = next_epoch(last, now)
        assert epoch.number > before
        before, last = epoch.number, epoch.number if writes else None
        # What was not written down is served when it has begun, see take_epoch.
        now += epoch.wait_s if writes else max(0.0, epoch.number - now)


def test_it_is_written_down_by_port(tmp_path: Path) -> None:
    first = take_epoch(tmp_path / "new", 50051, 100.5)
    assert first == Epoch(102, 0.5)
    assert take_epoch(tmp_path / "new", 50051, 101.5) == Epoch(103, 0.5)
    assert take_epoch(tmp_path / "new", 50052, 101.5).number == 103
    (tmp_path / "new" / "epoch-50051").write_text("no number")
    assert take_epoch(tmp_path / "new", 50051, 109.5) == Epoch(111, 0.5)


def test_a_clean_end_leaves_nothing_behind(tmp_path: Path) -> None:
    take_epoch(tmp_path, 50051, 100.5)
    forget_epoch(tmp_path, 50051)
    forget_epoch(tmp_path, 50051)
    assert not list(tmp_path.iterdir())


def test_where_it_cannot_be_written_down(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    (tmp_path / "file").write_text("")
    epoch = take_epoch(tmp_path / "file", 1, 100.5)
    assert epoch == Epoch(102, 1.5)
    assert "cannot be written" in caplog.text
