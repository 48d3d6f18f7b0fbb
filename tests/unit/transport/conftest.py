"""A segment and each way to it."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from moonpool.transport import layout
from moonpool.transport.base import Transport
from moonpool.transport.segment import Segment
from moonpool.transport.shm import ShmTransport

DATA_BYTES = 16 * 1024 * 1024


@pytest.fixture
def segment(tmp_path: Path) -> Iterator[Segment]:
    header = layout.new_header("node", "segment", layout.Geometry.holding(DATA_BYTES))
    made = Segment.create(tmp_path / "segment.seg", header)
    yield made
    made.close()


@pytest.fixture(params=["shm"])
def transport(request: pytest.FixtureRequest, segment: Segment) -> Iterator[Transport]:
    opened = Segment.open(segment.path)
    way = ShmTransport(opened)
    yield way
    way.close()
