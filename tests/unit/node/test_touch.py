"""Touching ahead covers everything, and gives up quietly."""

from __future__ import annotations

import errno

import pytest

from moonpool.node.touch import Toucher
from moonpool.transport import native
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
