"""Files that are shared stay open while they are used, and no longer than they may."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from moonpool.ssd.handles import Handles


@pytest.fixture
def opened() -> list[int]:
    return []


@pytest.fixture
def handles(tmp_path: Path, opened: list[int]) -> Handles:
    def open_(number: int) -> int:
        path = tmp_path / str(number)
        path.write_text(str(number))
        opened.append(number)
        return os.open(path, os.O_RDONLY)

    return Handles(open_, most=2)


def is_open(fd: int) -> bool:
    return Path(f"/proc/self/fd/{fd}").exists()


def test_one_is_opened_once(handles: Handles, opened: list[int]) -> None:
    first, second = handles.take(1), handles.take(1)
    assert first is second
    handles.give(first)
    handles.give(second)
    handles.give(handles.take(1))
    assert opened == [1]
    handles.close()
    assert not is_open(first.fd)


def test_what_is_used_stays_open_until_it_is_given_back(handles: Handles) -> None:
    used = handles.take(1)
    handles.forget(1)
    assert os.pread(used.fd, 9, 0) == b"1"
    again = handles.take(1)
    assert again is not used
    handles.give(used)
    assert not is_open(used.fd)
    assert os.pread(again.fd, 9, 0) == b"1"
    handles.give(again)
    handles.close()


def test_only_so_many_stay_open(handles: Handles, opened: list[int]) -> None:
    fds = []
    for number in (1, 2, 3):
        handle = handles.take(number)
        fds.append(handle.fd)
        handles.give(handle)
    assert [is_open(fd) for fd in fds] == [False, True, True]
    handles.give(handles.take(1))
    assert opened == [1, 2, 3, 1]
    handles.close()


def test_one_that_is_not_there(tmp_path: Path) -> None:
    handles = Handles(lambda number: os.open(tmp_path / str(number), os.O_RDONLY))
    with pytest.raises(FileNotFoundError):
        handles.take(1)
    handles.close()
