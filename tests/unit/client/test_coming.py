"""Waiting for what comes from a disk: until it is there, can be read, or the time is over."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, cast

import pytest

from moonpool.client import coming
from moonpool.client.channel import Channel
from moonpool.client.coming import wait_for
from moonpool.core.messages import Get, Got, Located, Slot
from moonpool.errors import DeadlineError

LATER = Located(5, code=-703, retry_after_s=0.001)
CROWDED = Located(5, 7, code=-703, retry_after_s=0.001, disk="host:1", disk_generation=9)
THERE = Located(5, 7, 11, [Slot(1, 0, 0)])
GONE = Located(code=-704)
ASKED = Get([b"\0a", b"\0b"], 1, 10.0)

Answer = tuple[list[Located], int]


class Said:
    """Answers Get with what the test says, one after the other, the last one again and again."""

    def __init__(self, *answers: Answer | DeadlineError) -> None:
        self.answers = list(answers)
        self.asked: list[list[bytes]] = []

    def ask(self, request: Get, _timeout_s: float | None = None) -> tuple[Got, int]:
        self.asked.append(request.keys)
        said = self.answers.pop(0) if len(self.answers) > 1 else self.answers[0]
        if isinstance(said, DeadlineError):
            raise said
        return Got(said[0]), said[1]


def wait(
    said: Said,
    found: list[Located],
    timeout_s: float = 30.0,
    direct: Callable[[str], bool] = lambda _address: False,
) -> Any:
    places, epoch, _ = wait_for(cast("Channel", said), ASKED, found, 1, timeout_s, direct=direct)
    return places, epoch


def test_only_what_is_coming_is_asked_for_again() -> None:
    said = Said(([LATER], 1), ([THERE], 1))
    assert wait(said, [THERE, LATER]) == ([THERE, THERE], 1)
    assert said.asked == [[b"\0b"], [b"\0b"]]


def test_when_the_time_is_over_what_is_not_there_stays_a_miss() -> None:
    places, _ = wait(Said(([LATER], 1)), [THERE, LATER], 0.05)
    assert places == [THERE, LATER]


def test_a_last_answer_that_is_late_is_a_miss_and_no_failure() -> None:
    places, epoch = wait(Said(DeadlineError("late")), [THERE, LATER])
    assert (places, epoch) == ([THERE, LATER], 1)


def test_no_place_of_the_master_before_is_believed() -> None:
    said = Said(([THERE], 2), ([GONE, THERE], 2))
    assert wait(said, [THERE, LATER]) == ([GONE, THERE], 2)
    assert said.asked == [[b"\0b"], [b"\0a", b"\0b"]]
    places, epoch = wait(Said(([THERE], 2), DeadlineError("late")), [THERE, LATER])
    assert epoch == 2
    assert [(where.code, where.generation) for where in places] == [(-703, 0)] * 2


def test_what_a_disk_can_send_is_not_waited_for(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(coming, "DIRECT_AFTER_S", 0.0)
    said = Said(([LATER], 1), ([THERE], 1))
    assert wait(said, [CROWDED, LATER], direct=lambda _: True) == ([CROWDED, THERE], 1)
    assert said.asked == [[b"\0b"], [b"\0b"]]


def test_without_a_way_to_the_disk_it_is_waited_for(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(coming, "DIRECT_AFTER_S", 0.0)
    said = Said(([CROWDED, CROWDED], 1), ([THERE, THERE], 1))
    assert wait(said, [CROWDED, CROWDED]) == ([THERE, THERE], 1)
