"""Pages that the node has filled are entered ahead of use, and no others."""

from __future__ import annotations

import tempfile
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pytest

from moonpool.transport import layout, native, warm
from moonpool.transport.layout import Geometry
from moonpool.transport.segment import Segment
from moonpool.transport.warm import Warmer

STEP = 1 << 20


def made(path: Path) -> Segment:
    return Segment.create(path, layout.new_header("node", "name", Geometry.holding(4 * STEP)))


@pytest.fixture
def shared() -> Iterator[Path]:
    with tempfile.TemporaryDirectory(dir="/dev/shm", prefix="moonpool-test-") as place:
        yield Path(place)


@pytest.fixture(autouse=True)
def small_steps(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(warm, "STEP_BYTES", STEP)
    monkeypatch.setattr(warm, "AFTER_BYTES", 100)
    monkeypatch.setattr(warm, "PAUSE_MIN_S", 0.0)


def test_only_what_is_there_is_entered(shared: Path) -> None:
    node = made(shared / "a.seg")
    node.data()[STEP : 3 * STEP] = 1
    client = Segment.open(shared / "a.seg")
    warmer = Warmer(client)
    warmer.moved(99)
    assert warmer.warm_bytes == 0
    warmer.moved(1)
    warmer.join()
    assert warmer.warm_bytes == 2 * STEP
    assert not native.is_resident(client.address, STEP)
    assert native.is_resident(client.address + STEP, 2 * STEP)
    client.close()
    node.close()


@pytest.mark.parametrize("hole", [0, 100, 255, None])
def test_one_absent_page_is_noticed(hole: int | None, shared: Path) -> None:
    segment = made(shared / "a.seg")
    for page in range(256):
        if page != hole:
            segment.data()[4096 * page] = 1
    assert native.is_resident(segment.address, STEP) is (hole is None)
    segment.close()


def test_it_ends_with_the_segment(shared: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(warm, "PAUSE_MIN_S", 60.0)
    node = made(shared / "a.seg")
    warmer = Warmer(node)
    warmer.moved(100)
    warmer.close()
    node.close()
    warmer.join()
    assert warmer.warm_bytes == 0


def test_private_memory_needs_none() -> None:
    segment = Segment.anonymous(STEP)
    warmer = Warmer(segment)
    warmer.moved(1 << 40)
    warmer.join()
    assert warmer.warm_bytes == 0
    assert np.count_nonzero(segment.data()) == 0
