"""Touching ahead covers everything, and gives up quietly."""

from __future__ import annotations

import errno
import itertools
from pathlib import Path
from tempfile import NamedTemporaryFile

import pytest

from moonpool.node.touch import Toucher
from moonpool.transport import huge, native
from moonpool.transport.layout import Geometry, new_header
from moonpool.transport.segment import Segment

MIB = 1024 * 1024


@pytest.mark.parametrize("threads", [1, 4])
def test_all_of_the_data_area_is_touched(monkeypatch: pytest.MonkeyPatch, threads: int) -> None:
    monkeypatch.setattr("moonpool.node.touch.STEP_BYTES", MIB)
    segment = Segment.anonymous(5 * MIB)
    calls: list[tuple[int, int]] = []

    def populate(address: int, nbytes: int) -> int:
        calls.append((address, nbytes))
        return 0

    toucher = Toucher([segment], populate, threads)
    toucher.start()
    toucher.join()
    data = [(a, n) for a, n in (calls if threads == 1 else sorted(calls)) if a >= segment.address]
    assert data == [(segment.address + i * MIB, MIB) for i in range(5)]
    assert toucher.touched_bytes == sum(n for _, n in calls)
    toucher.close()


def test_the_kernel_does_it() -> None:
    segment = Segment.anonymous(MIB)
    assert native.populate(segment.address, MIB) in (0, errno.EINVAL)
    assert not segment.data().any()


def test_a_refusal_ends_it(caplog: pytest.LogCaptureFixture) -> None:
    toucher = Toucher([Segment.anonymous(MIB)], lambda _address, _nbytes: errno.ENOMEM, 4)
    toucher.start()
    toucher.join()
    assert caplog.text.count("not touched ahead") == 1
    assert toucher.touched_bytes == 0


def test_closing_stops_it() -> None:
    segment = Segment.anonymous(MIB)
    toucher = Toucher([segment], lambda _address, _nbytes: 0)
    toucher.close()
    toucher.start()
    toucher.join()
    assert toucher.touched_bytes == 0
    segment.close()
    late = Toucher([segment], lambda _address, _nbytes: 0)
    late.start()
    late.close()


def test_huge_pages_are_asked_for_first(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("moonpool.node.touch.STEP_BYTES", 2 * MIB)
    with NamedTemporaryFile(dir="/dev/shm") as file:
        Path(file.name).unlink()
        segment = Segment.create(file.name, new_header("n", "s", Geometry.within(80 * MIB)))
        asked: list[tuple[int, int]] = []

        def collapse(address: int, nbytes: int) -> int:
            asked.append((address, nbytes))
            return errno.EINVAL if len(asked) == 3 else 0

        toucher = Toucher([segment], lambda _address, _nbytes: 0, 1, collapse)
        toucher.start()
        toucher.join()
        # A kernel that cannot is asked no more; small pages serve all the same.
        assert asked == [(segment.address + i * 2 * MIB, 2 * MIB) for i in range(3)]
        assert toucher.touched_bytes > 70 * MIB
        segment.close()
        Path(file.name).touch()


def test_a_segment_of_huge_pages_holds_bytes() -> None:
    with NamedTemporaryFile(dir="/dev/shm") as file:
        Path(file.name).unlink()
        segment = Segment.create(file.name, new_header("n", "s", Geometry.within(80 * MIB)))
        other = Segment.open(file.name, writable=False)
        segment.data()[5 * MIB] = 7
        toucher = Toucher([segment], threads=2, collapse=huge.collapse)
        toucher.start()
        toucher.join()
        assert other.data()[5 * MIB] == 7
        assert not other.data().flags.writeable
        segment.data()[9 * MIB] = 8
        assert other.data()[9 * MIB] == 8
        segment.close()
        other.close()


def test_huge_pages_that_take_long_are_given_up(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("moonpool.node.touch.STEP_BYTES", 2 * MIB)
    with NamedTemporaryFile(dir="/dev/shm") as file:
        Path(file.name).unlink()
        segment = Segment.create(file.name, new_header("n", "s", Geometry.within(80 * MIB)))
        asked: list[int] = []

        def collapse(address: int, _nbytes: int) -> int:
            asked.append(address)
            return 0

        times = itertools.count()
        toucher = Toucher(
            [segment], lambda _a, _n: 0, 1, collapse, clock=lambda: float(next(times))
        )
        toucher.start()
        toucher.join()
        assert len(asked) == 3  # a second for each
        assert toucher.touched_bytes > 70 * MIB
        segment.close()
        Path(file.name).touch()
