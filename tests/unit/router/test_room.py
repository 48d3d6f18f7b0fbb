"""How long an instance's cache keeps what it has."""

from __future__ import annotations

import math

from moonpool.router.room import Room


def test_with_room_left_nothing_is_forgotten() -> None:
    room = Room()
    room.sent(range(10), 0, 1.0, 30)
    assert room.age_s(5.0, 30, 20) == math.inf
    assert room.age_s(5.0, 30, 21) == 4.0
    assert room.age_s(5.0, 0, 1000) == math.inf


def test_a_prompt_that_grows_counts_once_and_tells_its_pause() -> None:
    room = Room()
    assert room.sent(list(range(10)), 0, 1.0, 30) is None
    assert room.sent(list(range(15)), 10, 4.0, 30) == 3.0
    assert room.sent(list(range(15)), 15, 6.0, 30) == 2.0
    assert room.age_s(6.0, 30, 15) == math.inf
    assert room.age_s(7.0, 30, 16) == 1.0


def test_the_oldest_prompt_makes_way() -> None:
    room = Room()
    room.sent(list(range(10)), 0, 1.0, 25)
    room.sent(list(range(100, 110)), 0, 2.0, 25)
    room.sent(list(range(200, 210)), 0, 3.0, 25)
    # Of the first prompt five blocks have gone already.
    assert room.age_s(10.0, 25, 5) == 9.0
    assert room.age_s(10.0, 25, 6) == 8.0
    assert room.age_s(10.0, 25, 1000) == 0.0
