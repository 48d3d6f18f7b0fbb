"""Mappings on the border of a huge page, and ranges made of huge pages: the bytes stay."""

from __future__ import annotations

import errno
import mmap
import os
import tempfile
from collections.abc import Iterator

import numpy as np
import pytest

from moonpool.transport import huge

MIB = 1024 * 1024
MAY_BE_REFUSED = (0, errno.EINVAL, errno.ENOMEM, errno.EAGAIN, errno.EBUSY)


@pytest.fixture
def shared_fd() -> Iterator[int]:
    directory = "/dev/shm" if os.access("/dev/shm", os.W_OK) else None
    with tempfile.TemporaryFile(dir=directory) as file:
        yield file.fileno()


def bytes_of(mapping: mmap.mmap, first: int, nbytes: int) -> np.ndarray[tuple[int], np.dtype]:
    return np.frombuffer(mapping, np.uint8)[first : first + nbytes]


def test_a_large_file_begins_on_a_border(shared_fd: int) -> None:
    nbytes = huge.ALIGN_FROM_BYTES + 4096
    os.ftruncate(shared_fd, nbytes)
    mapping, first = huge.mapped(shared_fd, nbytes, writable=True)
    view = bytes_of(mapping, first, nbytes)
    assert view.ctypes.data % huge.HUGE_BYTES == 0
    view[0], view[-1] = 7, 9
    assert os.pread(shared_fd, 1, 0) == b"\x07"
    assert os.pread(shared_fd, 1, nbytes - 1) == b"\x09"


def test_a_reader_sees_the_same(shared_fd: int) -> None:
    nbytes = huge.ALIGN_FROM_BYTES
    os.ftruncate(shared_fd, nbytes)
    os.pwrite(shared_fd, b"hello", 12345)
    mapping, first = huge.mapped(shared_fd, nbytes, writable=False)
    assert bytes_of(mapping, first, nbytes)[12345:12350].tobytes() == b"hello"


def test_a_small_file_is_mapped_anywhere(shared_fd: int) -> None:
    os.ftruncate(shared_fd, 8192)
    mapping, first = huge.mapped(shared_fd, 8192, writable=True)
    assert (first, len(mapping)) == (0, 8192)


def test_collapsing_keeps_what_is_there(shared_fd: int) -> None:
    nbytes = huge.ALIGN_FROM_BYTES
    os.ftruncate(shared_fd, nbytes)
    mapping, first = huge.mapped(shared_fd, nbytes, writable=True)
    view = bytes_of(mapping, first, nbytes)
    view[3 * MIB : 5 * MIB] = np.arange(2 * MIB, dtype=np.uint8)
    assert huge.collapse(view.ctypes.data, 16 * MIB) in MAY_BE_REFUSED
    assert (view[3 * MIB : 5 * MIB] == np.arange(2 * MIB, dtype=np.uint8)).all()
    assert not view[5 * MIB : 16 * MIB].any()


def test_less_than_a_huge_page_is_left_alone() -> None:
    assert huge.collapse(0, huge.HUGE_BYTES - 1) == 0
