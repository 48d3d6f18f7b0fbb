"""Who is told one master follows as soon as that does not lead."""

from __future__ import annotations

import pytest

from moonpool.errors import MasterUnreachableError, NotLeaderError
from moonpool.ha.seeker import Seeker

ONE, OTHER = ("h1", 1), ("h2", 2)


class Connection:
    def __init__(self, epoch: int) -> None:
        self.epoch = epoch
        self.closed = False

    def close(self) -> None:
        self.closed = True


class Masters:
    """Masters of which one leads; counts who was asked."""

    def __init__(self, leader: tuple[str, int] | None, epoch: int = 7) -> None:
        self.leader, self.epoch = leader, epoch
        self.asked: list[tuple[str, int]] = []

    def open(self, where: tuple[str, int]) -> Connection:
        self.asked.append(where)
        if where == self.leader:
            return Connection(self.epoch)
        name = "" if self.leader is None else f"{self.leader[0]}:{self.leader[1]}"
        raise NotLeaderError("not me", name, self.epoch)


def test_a_lone_master_is_not_followed() -> None:
    seeker, masters = Seeker("h1:1"), Masters(ONE)
    seeker.reach(masters.open, 1.0)
    assert not seeker.follows
    seeker.lost()
    masters.epoch = 1  # it started again on a host whose clock is wrong
    assert seeker.reach(masters.open, 1.0).epoch == 1


def test_a_standby_leads_to_the_leader_and_stays_known() -> None:
    seeker, masters = Seeker("h1:1"), Masters(OTHER)
    seeker.reach(masters.open, 1.0)
    assert masters.asked == [ONE, OTHER]
    assert seeker.follows
    assert str(seeker) == "h2:2"
    seeker.lost()
    masters.leader, masters.epoch, masters.asked = ONE, 8, []
    for _ in range(2):  # the one before may be asked first
        try:
            seeker.reach(masters.open, 1.0)
            break
        except NotLeaderError:
            continue
    assert masters.asked[-1] == ONE
    assert seeker.epoch == 8


def test_one_that_names_nobody_is_asked_again_later() -> None:
    seeker, masters = Seeker("h1:1"), Masters(None)
    with pytest.raises(NotLeaderError):
        seeker.reach(masters.open, 1.0)
    masters.leader = ONE
    assert seeker.reach(masters.open, 1.0).epoch == 7


def test_a_deposed_leader_is_refused_from_then_on() -> None:
    seeker, masters = Seeker("h1:1"), Masters(OTHER, 9)
    seeker.reach(masters.open, 1.0)
    seeker.lost()
    masters.epoch = 8
    with pytest.raises(MasterUnreachableError):
        seeker.reach(masters.open, 1.0)
