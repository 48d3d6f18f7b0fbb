"""Announcements and back-off."""

from __future__ import annotations

import pytest

from moonpool.config import NodeConfig
from moonpool.core.messages import Announce, Found
from moonpool.errors import ConfigError
from moonpool.node.daemon import advertised
from moonpool.node.session import ANNOUNCE_OBJECTS, back_off_s, generations_of, pieces
from moonpool.transport.scan import Scan


def found(index: int, *, writing: bool = False) -> Found:
    return Found(b"\0k", b"", 1, 4096, 0, index + 1, index, 4096 * index, writing)


@pytest.mark.parametrize(
    ("count", "lengths"),
    [
        (0, [0]),
        (1, [1]),
        (ANNOUNCE_OBJECTS, [ANNOUNCE_OBJECTS]),
        (2 * ANNOUNCE_OBJECTS + 1, [ANNOUNCE_OBJECTS, ANNOUNCE_OBJECTS, 1]),
    ],
)
def test_announcements_are_cut(count: int, lengths: list[int]) -> None:
    cut = [*pieces(Scan([found(i) for i in range(count)], [], 0, 0), 3, 1)]
    assert all(isinstance(each, Announce) for each in cut)
    assert [len(generations_of(each)) for each in cut] == lengths
    assert [each.last for each in cut] == [False] * (len(cut) - 1) + [True]


def test_unfinished_slots_are_announced_too() -> None:
    (piece,) = pieces(Scan([found(0)], [found(1, writing=True)], 0, 0), 3, 1)
    assert isinstance(piece, Announce)
    assert [f.writing for f in piece.objects] == [True, False]


def test_back_off_grows_to_a_bound() -> None:
    waits = [back_off_s(n, 1.0) for n in range(40)]
    assert waits == sorted(waits)
    assert waits[0] == pytest.approx(0.1)
    assert waits[-1] == pytest.approx(0.25)
    assert back_off_s(40, 0.0) == pytest.approx(0.125)
    assert 0.125 <= back_off_s(40) <= 0.25


@pytest.mark.parametrize(
    ("host", "advertise", "address"),
    [
        ("127.0.0.1", "", "127.0.0.1:7"),
        ("0.0.0.0", "10.0.0.1", "10.0.0.1:7"),
        ("0.0.0.0", "node.example:9", "node.example:9"),
    ],
)
def test_what_others_are_told(host: str, advertise: str, address: str) -> None:
    assert advertised(NodeConfig(host=host, advertise=advertise), 7) == address


def test_an_unspecified_host_is_not_told() -> None:
    assert not advertised(NodeConfig(host="0.0.0.0"), 7).startswith("0.")


@pytest.mark.parametrize("wrong", [":", "a:b", "a:0", "a:99999", ":5"])
def test_advertise_must_be_an_address(wrong: str) -> None:
    with pytest.raises(ConfigError, match=r"^advertise: "):
        advertised(NodeConfig(advertise=wrong), 7)
