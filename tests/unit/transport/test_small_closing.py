"""A segment that is closed in the middle of a small batch stays mapped until the batch ends."""

from __future__ import annotations

import os
from pathlib import Path

import numpy as np
import pytest

from moonpool.errors import TransferError
from moonpool.transport import copy, native, small
from moonpool.transport.base import Places
from moonpool.transport.layout import Geometry, new_header
from moonpool.transport.segment import Segment


def test_a_write_keeps_the_memory_that_it_writes_to(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = tmp_path / "s.seg"
    shape = Geometry.within(1 << 20, per_slot=65_536)
    segment = Segment.create(path, new_header("n", "s", shape))
    mapped = []
    move = native.memmove

    def memmove(target: int, source: int, nbytes: int) -> None:
        segment.close()
        mapped.append(os.fspath(path) in Path("/proc/self/maps").read_text())
        if mapped[-1]:
            move(target, source, nbytes)

    monkeypatch.setattr(native, "memmove", memmove)
    value = np.ones(100, np.uint8)
    memory = copy.whole(np.array([value.ctypes.data], np.uint64), np.array([100], np.uint64))
    one = np.array([4096], np.uint64)
    places = Places(
        np.zeros(1, np.int64), np.zeros(1, np.uint64), memory.lengths, one, one, np.zeros(1, "u8")
    )
    with pytest.raises(TransferError):
        small.write(segment, places, memory, [b"\x00k"], [])
    assert mapped == [True]
