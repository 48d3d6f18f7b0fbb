"""Writes wait for reads and for their rate, never for ever."""

from __future__ import annotations

import threading

from moonpool.ssd.pace import Pace, Rate


def test_a_rate_spreads_bytes_over_time() -> None:
    rate = Rate(100.0)
    assert rate.delay_s(50, 10.0) == 0.0
    assert rate.delay_s(100, 10.0) == 0.5
    assert rate.delay_s(1, 10.0) == 1.5
    assert rate.delay_s(1, 20.0) == 0.0


def test_no_rate_is_any_rate() -> None:
    rate = Rate(0)
    assert [rate.delay_s(1 << 40, 0.0) for _ in range(3)] == [0.0] * 3


def test_a_write_begins_when_the_last_read_has_ended() -> None:
    pace = Pace(reads_first_s=60.0)
    begun = threading.Event()

    def write() -> None:
        pace.before_write(1)
        begun.set()

    with pace.reading():
        with pace.reading():
            thread = threading.Thread(target=write)
            thread.start()
        assert not begun.wait(0.05)
    assert begun.wait(30.0)
    thread.join()


def test_reads_do_not_hold_a_write_back_for_ever() -> None:
    pace = Pace(reads_first_s=0.01)
    with pace.reading():
        pace.before_write(1)


def test_the_end_holds_nothing_back() -> None:
    pace = Pace(1.0, reads_first_s=60.0)
    pace.close()
    with pace.reading():
        pace.before_write(1 << 40)
        pace.before_write(1 << 40)
