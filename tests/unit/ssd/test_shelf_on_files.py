"""A shelf on real files: what comes back after a restart, and what damage does."""

from __future__ import annotations

import logging
import os
from pathlib import Path

import numpy as np
import pytest

from moonpool.errors import ConfigError, InvalidArgumentError
from moonpool.ssd import local
from moonpool.ssd.local import LocalVolume
from moonpool.ssd.reading import STORED, Wanted
from moonpool.ssd.records import Record
from moonpool.ssd.shelf import STALE, TOO_LARGE, Shelf
from moonpool.ssd.spans import Item
from moonpool.ssd.volume import VolumeError
from tests.unit.ssd.disk import Memory, item_of, value_of

MIB = 1 << 20
SIZES = [1, 4096, 5000, 100_000, 3 * MIB + 17, 4096 * 3 - 1]


def _shelf(path: Path, capacity: int = 64 * MIB, lost: list[Record] | None = None) -> Shelf:
    gone: list[Record] = [] if lost is None else lost
    volume = LocalVolume(path, "n1")
    return Shelf(volume, "n1", capacity, 8 * MIB, on_lost=lambda some, _why: gone.extend(some))


def _items(memory: Memory, sizes: list[int] = SIZES, first: int = 0) -> list[Item]:
    items, at = [], 0
    for i, size in enumerate(sizes, first):
        items.append(item_of(memory, at, i, 1, size, i + 1))
        at += -(-size // 4096) * 4096
    return items


def _wanted(items: list[Item], room: Memory) -> list[Wanted]:
    wanted, at = [], room.address
    for item in items:
        wanted.append(Wanted(item.key, item.generation, item.size, item.checksum, at))
        at += -(-item.size // 4096) * 4096
    return wanted


def _has(room: Memory, wanted: Wanted, name: int) -> bool:
    start = wanted.address - room.address
    got = room.bytes[start : start + wanted.size].tobytes()
    return got == value_of(name, 1, wanted.size)


@pytest.mark.parametrize("direct", [True, False])
def test_objects_of_all_sizes_come_back_after_a_restart(
    tmp_path: Path, direct: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    if not direct:
        monkeypatch.setattr(local, "_takes_direct", lambda _path: False)
    memory, room = Memory(8 * MIB), Memory(8 * MIB)
    shelf = _shelf(tmp_path)
    assert ("buffered" in shelf.volume.describe()) is not direct or direct
    items = _items(memory)
    assert shelf.write(items) == [STORED] * len(items)
    shelf.close()
    again = _shelf(tmp_path)
    found = {each.key: each for each in again.recover()}
    assert {key: each.size for key, each in found.items()} == {i.key: i.size for i in items}
    wanted = _wanted(items, room)
    # Memory behind an object's end is not its own.
    ends = [each.address - room.address + each.size for each in wanted]
    room.bytes[:] = 0xAB
    assert again.read(wanted) == [STORED] * len(items)
    assert all(_has(room, each, i) for i, each in enumerate(wanted))
    assert all(room.bytes[end] == 0xAB for end in ends if end % 4096)
    again.close()


def test_a_directory_has_one_node_at_a_time(tmp_path: Path) -> None:
    first = LocalVolume(tmp_path, "n1")
    with pytest.raises(ConfigError, match="in use by a node 'n1'"):
        LocalVolume(tmp_path, "n1")
    other = LocalVolume(tmp_path, "n2")
    first.close()
    LocalVolume(tmp_path, "n1").close()
    other.close()


def test_a_directory_that_cannot_be_made_is_a_configuration_error(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    with pytest.raises(ConfigError, match="ssd"):
        LocalVolume(tmp_path / "file", "n1")


def test_an_extent_of_another_node_is_not_taken(tmp_path: Path) -> None:
    memory = Memory(8 * MIB)
    shelf = _shelf(tmp_path)
    shelf.write(_items(memory))
    shelf.close()
    (tmp_path / "n1").rename(tmp_path / "n2")
    other = Shelf(LocalVolume(tmp_path, "n2"), "n2", 64 * MIB, 8 * MIB)
    assert other.recover() == []
    assert other.counts["error_corrupt"] == 1
    other.close()


def _damage(path: Path, how: str) -> None:
    if how == "truncated":
        os.truncate(path, 4096)
    elif how == "gone":
        path.unlink()
    else:
        raw = np.fromfile(path, np.uint8)
        raw[:: 1 << 10] ^= 1
        raw.tofile(path)


@pytest.mark.parametrize("how", ["truncated", "gone", "corrupt"])
def test_damage_is_a_miss_with_a_reason_said_once(
    tmp_path: Path, how: str, caplog: pytest.LogCaptureFixture
) -> None:
    memory, room = Memory(8 * MIB), Memory(8 * MIB)
    lost: list[Record] = []
    shelf = _shelf(tmp_path, lost=lost)
    items = _items(memory, [50_000, 60_000])
    shelf.write(items)
    _damage(tmp_path / "n1" / "00000001.data", how)
    with caplog.at_level(logging.WARNING):
        reasons = shelf.read(_wanted(items, room))
    assert reasons == [how, how]
    assert shelf.read(_wanted(items, room)) == ["gone", "gone"]
    assert [each.key for each in lost] == [item.key for item in items]
    assert len(caplog.records) == (how != "gone")
    assert shelf.counts["missed"] == 4
    shelf.close()
    again = _shelf(tmp_path)
    assert again.recover() == []
    again.close()


def test_a_torn_index_loses_only_what_is_torn(tmp_path: Path) -> None:
    memory = Memory(8 * MIB)
    shelf = _shelf(tmp_path)
    items = _items(memory)
    for item in items:
        shelf.write([item])
    shelf.close()
    index = tmp_path / "n1" / "00000001.index"
    os.truncate(index, index.stat().st_size - 3)
    again = _shelf(tmp_path)
    assert {each.key for each in again.recover()} == {each.key for each in items[:-1]}
    assert again.counts["torn"] == 1
    again.drop([(items[0].key, items[0].generation)])
    again.close()
    third = _shelf(tmp_path)
    assert {each.key for each in third.recover()} == {each.key for each in items[1:-1]}
    third.close()


def test_room_comes_back_by_whole_extents_the_coldest_first(tmp_path: Path) -> None:
    memory = Memory(8 * MIB)
    lost: list[Record] = []
    shelf = _shelf(tmp_path, 32 * MIB, lost)
    kept = _items(memory, [7 * MIB])[0]
    shelf.write([kept])
    for first in range(1, 12):
        shelf.touch([kept.key])
        assert shelf.write(_items(memory, [7 * MIB], first)) == [STORED]
    names = [each.key for each in shelf.records()]
    assert kept.key in names
    assert len(names) == 4
    assert len(lost) == 8
    assert len(list((tmp_path / "n1").glob("*.data"))) == 4
    shelf.close()


def test_what_is_too_large_or_was_overwritten_meanwhile_is_not_stored(tmp_path: Path) -> None:
    memory = Memory(16 * MIB)
    shelf = _shelf(tmp_path)
    large, small = _items(memory, [9 * MIB, 5000])
    assert shelf.write([large, small], lambda item: False) == [TOO_LARGE, STALE]
    assert shelf.records() == []
    assert shelf.write([small]) == [STORED]
    with pytest.raises(InvalidArgumentError):
        shelf.read([Wanted(small.key, small.generation, small.size, small.checksum, 1)])
    shelf.close()


def test_a_full_disk_makes_room_by_giving_extents_up(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    memory = Memory(8 * MIB)
    lost: list[Record] = []
    shelf = _shelf(tmp_path, lost=lost)
    assert shelf.write(_items(memory, [7 * MIB])) == [STORED]
    assert shelf.write(_items(memory, [7 * MIB], 1)) == [STORED]
    make = shelf.volume.make

    def full(number: int, size: int) -> None:
        if len(list((tmp_path / "n1").glob("*.data"))) >= 2:
            raise VolumeError("no space left", "full")
        make(number, size)

    monkeypatch.setattr(shelf.volume, "make", full)
    assert shelf.write(_items(memory, [7 * MIB], 2)) == [STORED]
    assert len(lost) == 1
    assert shelf.counts["full"] == 1
    shelf.close()
